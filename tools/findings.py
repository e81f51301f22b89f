# SPDX-License-Identifier: MIT
"""Compares runs, and makes the finding on equality: in which step and layer bits part."""
import itertools
import math
import re
from dataclasses import dataclass

import pictures
from runs import bits, number, small

REASONS = "What may move a bit, and what must not: notes/floating_point.md, Where two runs part."


@dataclass
class Table:
    """Words and numbers. A head's cell may have several lines. weak: indices of grey columns."""
    head: list
    rows: list
    caption: str = ""
    note: str = ""
    weak: tuple = ()

    def __post_init__(self):
        self.rows = [[str(cell) for cell in row] for row in self.rows]

    def words(self):
        """Returns the columns aligned left: the first, and any with a letter but numbers' e, x."""
        return [i for i, column in enumerate(zip(*self.rows)) if i == 0 or
                any(re.search("[A-Za-df-wyz_]", cell) for cell in column if cell != "inf/nan")]


@dataclass
class Section:
    """A finding: its title, words, pictures, tables, and lists of sentences."""
    title: str
    words: str
    figures: list  # HTML
    tables: list
    points: list  # lists of sentences


class Comparison:
    """A run beside the run that is its reference, over the steps that both took."""

    def __init__(self, run, reference):
        self.run, self.reference = run, reference
        theirs = {step["step"]: step for step in reference.steps}
        norms = {step["step"]: step["grad_norm"] for step in run.steps}
        # Rows (step, the reference's loss, the run's loss). parted: rows whose losses' bits differ.
        self.steps = [(step["step"], theirs[step["step"]]["loss"], step["loss"])
                      for step in run.steps if step["step"] in theirs]
        self.parted = [row for row in self.steps if bits(row[1]) != bits(row[2])]
        self.norms = [number for number, step in theirs.items()  # the steps whose norms differ
                      if step["grad_norm"] != norms.get(number, step["grad_norm"])]
        self.layers = None  # layers that differ at the end; None: the runs' last steps differ
        if run.steps[-1]["step"] == reference.steps[-1]["step"]:
            pairs = itertools.zip_longest(*(r.summary["layer_digests"] for r in (run, reference)))
            self.layers = [layer for layer, (ours, other) in enumerate(pairs) if ours != other]
        self.same = not self.parted and not self.layers
        self.whole = run.whole and run.told == reference.told  # both have steps 1 to n
        self.alike = self.same and self.layers == [] and self.whole  # norms may differ
        # The largest difference of two losses; infinite if only one of the two is finite.
        self.largest = max([0.0] + [math.inf if None in (a, b) else abs(a - b)
                                    for _, a, b in self.parted])


@dataclass
class Study:
    """The runs that are compared, and `more`, short runs for the timeline."""
    runs: list
    more: list
    exact: bool = False  # whether sizes are shown in bytes, not in kB or MB

    def __post_init__(self):
        for run, label in zip(self.runs, labels(self.runs)):
            run.label = label
        first, *others = self.runs
        # Each run is compared with its dtype's first run, and a dtype's first run with runs[0].
        of_dtype = {run.dtype: run for run in reversed(self.runs)}
        pairs = ((run, of_dtype[run.dtype]) for run in others)
        self.compared = [Comparison(run, first if run is other else other) for run, other in pairs]
        self.by_dtype = {run.dtype: [other for other in self.runs if other.dtype == run.dtype]
                         for run in self.runs}

    def panels(self, caption, legend, draw):
        """Returns a figure of draw(dtype, runs) for each dtype, side by side if there is room."""
        return pictures.figure(caption, legend, [
            (dtype, draw(dtype, runs)) for dtype, runs in self.by_dtype.items()], "panels")


def labels(runs, widest=24):
    """Returns runs' names: chapter and dtype or chapter and log, if all differ; else numbered."""
    stems = [f"{run.number} {run.log.stem}" for run in runs]
    for found in ([f"{run.number} {run.dtype}" for run in runs], stems):
        if len(set(found)) == len(runs) and max(map(len, found)) <= widest:
            return found
    return [f"{place}: {stem}"[:widest] for place, stem in enumerate(stems, 1)]


def short(run, runs):
    """Returns the run's chapter, if that tells it from the others; else its label."""
    chapters = [other.chapter for other in runs]
    return run.chapter if chapters.count(run.chapter) == 1 else run.label


def what(c):
    """Returns sentences that say where the run of the Comparison c leaves its reference."""
    run, other = c.run.label, c.reference.label
    count = f"all {len(c.steps)}" if c.whole else len(c.steps)
    lines = [f"{run} has the bits of {other} in {count} losses."]
    if c.parted:
        step, *both = c.parted[0]
        there, here = ("no number (null)" if loss is None else f"{loss:#.9g} (0x{bits(loss)})"
                       for loss in both)
        most = f", by at most {small(c.largest)}" if c.largest < math.inf else ""
        lines = [f"{run} leaves {other} in step {step}: the loss is {there} there, {here} here. "
                 f"{len(c.parted)} of {len(c.steps)} steps differ{most}."]
    if c.norms and (not c.parted or c.norms[0] < c.parted[0][0]):
        lines.append(f"Their gradients' norms differ from step {c.norms[0]} on.")
    if not c.whole:
        lines.append(f"Their logs have the steps {c.run.told} and {c.reference.told}: those of "
                     "both are compared.")
    if c.layers:
        count = max(len(r.summary["layer_digests"]) for r in (c.run, c.reference))
        lines.append(f"The parameters at the end differ in {len(c.layers)} of {count} layers, "
                     f"layer {c.layers[0]} is the first.")
    elif c.layers == []:
        lines.append("The parameters at the end are the same to the last bit.")
    return lines


def loss_picture(dtype, runs):
    """Draws the losses of a dtype's runs: one curve for all runs with the same losses."""
    by_curve = {}
    for run in runs:
        curve = tuple((step["step"], bits(step["loss"])) for step in run.steps)
        by_curve.setdefault(curve, []).append(run)
    names, said, lines = [], [], []
    for alike in by_curve.values():
        each = ", ".join(short(run, runs) for run in alike)
        name = f"all {len(runs)} runs" if len(alike) == len(runs) > 1 else each
        first, last = (number(alike[0].losses[at], ".4f") for at in (0, -1))
        names.append(name)
        said.append(f"{name}: from {first} to {last}")
        lines.append([(step["step"], step["loss"]) for step in alike[0].steps])
    legend = pictures.legend(dict(zip(names, itertools.cycle(pictures.CHAPTER_COLOURS))))
    return legend + pictures.curves(f"losses in {dtype}: {'; '.join(said)}", lines)


def verdict(study, dtype, runs):
    """Returns (a sentence on the runs of one dtype, whether they are all alike)."""
    pairs = [c for c in study.compared if c.run.dtype == c.reference.dtype == dtype]
    if not pairs:
        return f"there is one run in {dtype}", False
    if wrong := [c for c in pairs if not c.same]:
        first = min(wrong, key=lambda c: c.parted[0][0] if c.parted else math.inf)
        names = (short(run, runs) for run in (first.run, first.reference))
        where = f"in step {first.parted[0][0]}" if first.parted else "in its parameters alone"
        return f"{' leaves '.join(names)} {where}, in {dtype}", False
    every = f"{'both' if len(runs) == 2 else f'all {len(runs)}'} runs in {dtype}"
    if all(c.alike for c in pairs):
        return every, True
    return f"{every} have the same bits in {min(len(c.steps) for c in pairs)} common losses", False


def equality(study):
    """Makes the finding on losses and parameters: which runs have the same bits."""
    said = [verdict(study, *pair) for pair in study.by_dtype.items()]
    alike = [words for words, all_alike in said if all_alike]
    parts = [words for words, all_alike in said if not all_alike]
    if alike:
        parts.insert(0, " and ".join(alike) + " have the same losses and the same parameters, to "
                     "the bit")
    title, tasks = "; ".join(parts), {run.options.get("task") for run in study.runs}
    unit = ", in nats per byte" if tasks == {"text"} else ""
    points = [what(c) for c in study.compared if c.norms or not c.alike]
    if any(c.norms or not c.same for c in study.compared):
        points.append([REASONS])
    rows = [[run.label, run.log.stem, run.dtype, run.ranks, run.options["accumulate"],
             run.info["device"], len(run.steps) if run.whole else run.told,
             number(run.losses[-1], ".4f")] for run in study.runs]
    head = ["run", "log", "dtype", "ranks", "micro-\nbatches", "device", "steps", "final\nloss"]
    return Section(
        title[0].upper() + title[1:],
        "Runs whose losses have the same bits share one curve. A run that leaves the others has a "
        "curve of its own.",
        [study.panels(f"The loss{unit}, over the steps", {}, loss_picture)],
        [Table(head, rows, "The runs")], points)
