# SPDX-License-Identifier: MIT
"""What the chapters' own formulas say, read from what --plan prints."""
import re
from fractions import Fraction
from pathlib import Path

from runs import KINDS, Failure, output_of

ROOT = Path(__file__).resolve().parents[2]
STATE = KINDS[:3]  # parameters, gradients, optimizer
HOST = "\non its host\n"  # what is below lies there


def planned(text, pattern):
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise Failure(f"there is no line like {pattern!r} in:\n{text}")
    return found[1]


def state_formula(programs, chapter, dtype):
    """Of each place a + b/N through the values at 1 and 2 ranks; a third must lie on it."""
    def values(ranks):
        text = programs.plan(chapter, ranks, *(["--dtype", dtype] if chapter >= "03" else []))
        return [Fraction(value) for value in planned(
            text, r"^bytes of state a parameter: (.*)$").replace(",", " ").split()
            if value[0].isdigit()]

    def formula(one, two, four):
        shared = 2 * (one - two)
        whole = one - shared
        if four != whole + shared / 4:
            raise Failure(f"{chapter}: bytes a parameter are not of the form a + b/N")
        return " + ".join([str(whole)] * (whole > 0) + [f"{shared}/N"] * (shared > 0))

    if chapter == "01_adam":
        return str(*values(1))
    device, *host = map(formula, *map(values, (1, 2, 4)))
    return device + "".join(f" and {there} on the host" for there in host)


def traffic_formula(programs, chapter):
    """Each phase's a + b A through the values at 1 and 2 micro-batches."""
    def factors(micro_batches):
        text = programs.plan(chapter, 2, "--accumulate", micro_batches)
        return [int(planned(text, rf"^  {phase} .* (\S+) x \d+/\d+$"))
                for phase in ("forward", "backward", "update")]

    def term(one, two):
        slope, rest = two - one, 2 * one - two
        terms = [str(rest)] * (rest > 0) + [f"{slope if slope > 1 else ''}A"] * (slope > 0)
        return " + ".join(terms) or "0"

    return ", ".join(map(term, factors(1), factors(2)))


def resident(text, kind):
    """Bytes of a kind that a plan says are held, in both places."""
    planned(text, rf"^  ({kind}) ")
    return sum(int(count.replace(" ", "")) for count in re.findall(
        rf"^  {kind} +(\d[\d ]*?)   ", text, re.MULTILINE))


def sharded(programs, chapter):
    """The kinds of which two ranks hold less each than one rank alone."""
    if chapter == "01_adam":
        return []
    one, two = programs.plan(chapter, 1), programs.plan(chapter, 2)
    return [kind for kind in STATE if resident(two, kind) < resident(one, kind)]


def offloaded(programs, chapter):
    """The kinds of the state that lie on the host."""
    _, _, there = programs.plan(chapter, 1).partition(HOST)
    return [kind for kind in STATE if re.search(rf"^  {kind} ", there, re.MULTILINE)]


def changed_lines(chapter):
    """As `./tutorial lesson` counts them: removed and added lines of the trainer, and new files."""
    lesson = output_of([str(ROOT / "tutorial"), "lesson", chapter])
    new = re.findall(r"^new file: .* (\d+) lines$", lesson, re.MULTILINE)
    return " + ".join([planned(lesson, r"^.*: (\d+) changed lines"), *(f"{n} new" for n in new)])
