# SPDX-License-Identifier: MIT
"""Recomputes each claim of the tutorial from the logs of runs."""
import json
import math
from fractions import Fraction
from pathlib import Path

from runs import KINDS, bits


def largest_difference(run, reference):
    """Over all steps; infinite where only one of the two losses is finite."""
    return max(0.0 if bits(a) == bits(b) else math.inf if None in (a, b) else abs(a - b)
               for a, b in zip(run.losses, reference.losses))


def differing(runs, reference):
    """A sentence for each run that does not repeat the reference to the last bit."""
    problems = []
    for run in runs:
        steps = [s for s, (a, b) in enumerate(zip(run.losses, reference.losses), start=1)
                 if bits(a) != bits(b)]
        if len(run.steps) != len(reference.steps):
            problems.append(f"{run.chapter} took {len(run.steps)} steps, "
                            f"{reference.chapter} {len(reference.steps)}")
        elif steps:
            problems.append(f"{run.chapter}: loss differs in {len(steps)} steps, first in step "
                            f"{steps[0]}, by {largest_difference(run, reference):.1e} at most")
        elif run.summary["digest"] != reference.summary["digest"]:
            problems.append(f"{run.chapter}: the same losses, but other parameters at the end")
    return problems


def wrong_bytes(runs):
    """A sentence for each kind of memory that does not equal its formula."""
    return [f"{run.chapter} {run.dtype}, {kind}{place}: {what} {held[kind][what]} bytes, "
            f"formula {held[kind][formula]}"
            for run in runs for place, held in (("", run.memory), (" on the host", run.on_host))
            for kind in KINDS if kind in held
            for what, formula in (("resident", "predicted_resident"), ("peak", "predicted"))
            if held[kind][what] != held[kind][formula]]


def moved(run, runs):
    """The run without offload, of the same options else, whose bytes a run holds in two places;
    and the bytes by which a device and its host hold more: of staging, and of master weights,
    which in fp32 the parameters were. None where there is none."""
    def model(r):
        return r.dtype, *(r.info[name] for name in ("ranks", "padded_parameters", "layers")), \
            r.info["options"]["batch"]

    other = next((r for r in runs if r.number == "06" and model(r) == model(run)), None)
    if not run.on_host or not other:
        return None
    master = 4 * run.info["padded_parameters"] // run.info["ranks"] * (run.dtype == "fp32")
    return other, run.on_host["communication"]["resident"], master


def resident(run):
    """Bytes on a device and on its host."""
    return run.memory["total"]["resident"] + sum(kind["resident"] for kind in run.on_host.values())


def lost(runs):
    """A sentence for each run whose device and host do not hold what the device alone held."""
    return [f"{run.chapter} {run.dtype}: {resident(run)} bytes in both places, {other.chapter} "
            f"{resident(other)}, {staging} of staging, {master} of master weights"
            for run in runs for other, staging, master in filter(None, [moved(run, runs)])
            if resident(run) != resident(other) + staging + master]


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


def unlike_recorded(runs):
    """A sentence for each run whose bits are not those of notes/digests.json; None where the file
    has other runs, or these were on GPUs, whose products have bits of their own."""
    rows = json.loads((Path(__file__).resolve().parents[1] / "digests.json").read_text())
    recorded = {(row["program"], row["ranks"], row["options"]): row for row in rows}
    problems = []
    for run in runs:
        words = " ".join(word for word in run.words if word != "--quiet")
        row = recorded.get((run.chapter, run.ranks, words))
        if not row or run.info["device"] != "cpu":
            return None
        if run.summary["digest"] != row["digest"]:
            problems.append(f"{run.chapter} {run.dtype}: {run.summary['digest']}, "
                            f"the README's {row['digest']}")
    return problems


def claims(runs, ranks):
    """Each claim of the tutorial with what contradicts it: an empty list where it holds."""
    fp32 = [run for run in runs if run.dtype == "fp32"]
    bf16 = [run for run in runs if run.dtype == "bf16"]
    return [
        ("fp32: 02 to 07 are identical to the last bit", differing(fp32[2:], fp32[1])),
        (f"fp32: 01 with --accumulate {ranks} has the bits of 02 on {ranks} ranks",
         differing(fp32[:1], fp32[1])),
        ("bf16: 03 to 07 are identical to the last bit", differing(bf16[1:], bf16[0])),
        ("bytes, resident and peak, equal their formulas in every run", wrong_bytes(runs)),
        ("07 holds what 06 does, in two places, and its staging", lost(runs)),
        ("elements sent and bytes copied equal their formulas", wrong_traffic(runs)),
    ]


def reference_of(run, runs):
    """Differences are taken to 02 in fp32 and to 03 in bf16."""
    first = "02" if run.dtype == "fp32" else "03"
    return next(r for r in runs if r.dtype == run.dtype and r.number == first)


def difference(run, runs):
    return largest_difference(run, reference_of(run, runs))


def sent(run, what="counted"):
    """Elements by one rank in a step, of each phase; by formula where they were not counted."""
    return {phase: Fraction(row["predicted" if row[what] is None else what], len(run.steps))
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
