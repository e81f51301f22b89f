# SPDX-License-Identifier: MIT
"""What logs say of bytes and traffic beside their formulas, and how their numbers are written."""
import math
from fractions import Fraction

from runs import KINDS


def wrong_bytes(runs):
    """A sentence for each kind of memory that does not equal its formula."""
    return [f"{run.chapter} {run.dtype}, {kind}{place}: {what} {held[kind][what]} bytes, "
            f"formula {held[kind][formula]}"
            for run in runs for place, held in (("", run.memory), (" on the host", run.on_host))
            for kind in KINDS if kind in held
            for what, formula in (("resident", "predicted_resident"), ("peak", "predicted"))
            if held[kind][what] != held[kind][formula]]


def wrong_traffic(runs):
    """A sentence for each phase that did not send the number of elements of its formula, and each
    direction of the bus. What a library sends within its own collectives is not counted."""
    return [f"{run.chapter} {run.dtype}, {row}: sent {sent['counted']} elements, "
            f"formula {sent['predicted']}"
            for run in runs for traffic in [run.summary["traffic"]]
            for row, sent in [*traffic["phases"].items(), ("padding", traffic["padding"]),
                              ("scalars", traffic["scalars"])]
            if sent["counted"] not in (None, sent["predicted"])] + [
        f"{run.chapter} {run.dtype}, {direction}: {copied['counted']} bytes over the bus, "
        f"formula {copied['predicted']}"
        for run in runs for direction, copied in run.bus.items()
        if copied["counted"] != copied["predicted"]]


def sent(run):
    """Elements by one rank in a step, of each phase; by formula where they were not counted."""
    return {phase: Fraction(row["predicted"] if row["counted"] is None else row["counted"],
                            len(run.steps))
            for phase, row in run.summary["traffic"]["phases"].items()}


def elements_sent(run):
    """What one rank sends a step and parameter: the exact number, and as multiple of (N-1)/N."""
    exact = sum(sent(run).values()) / run.info["padded_parameters"]
    n = run.info["ranks"]
    if exact == 0 or n == 1:
        return exact, str(exact)
    multiple = exact / Fraction(n - 1, n)  # not an integer where steps were skipped
    short = str(multiple) if multiple.denominator == 1 else f"{float(multiple):.2f}"
    return exact, f"{short} x {n - 1}/{n}"


def number(value, form):
    return "inf/nan" if value is None or math.isinf(value) else format(value, form)


def small(value):
    """A difference: 0 or its power of ten."""
    return "0" if value == 0 else number(value, ".1e")


def megabytes(count):
    """Decimal MB in at most four characters, while there are less than 10 000."""
    mb = count / 1e6
    if count == 0:
        return "0"
    return f"{mb:.2f}" if mb < 9.995 else f"{mb:.1f}" if mb < 99.95 else f"{mb:.0f}"
