# SPDX-License-Identifier: MIT
"""What a comparison is made of; its first finding: in which step and layer bits of runs part."""
import itertools
import math
import re
from dataclasses import dataclass
from functools import partial

import figures
from runs import CHAPTERS, bits, number, small

REASONS = "What may move a bit, and what must not: notes/floating_point.md, Where two runs part."


@dataclass
class Table:
    """Words and numbers. A head may have several lines."""
    head: list
    rows: list
    caption: str = ""
    note: str = ""

    def __post_init__(self):
        self.rows = [[str(cell) for cell in row] for row in self.rows]

    def words(self):
        """The columns that stand left: the first, and each that has what is no number."""
        return [i for i, column in enumerate(zip(*self.rows)) if i == 0 or
                any(re.search("[A-Za-df-wyz_]", cell) for cell in column if cell != "inf/nan")]


@dataclass
class Section:
    """A finding, what shows it, and its numbers."""
    title: str
    words: str
    figures: list  # what draws each
    tables: list
    points: list  # lists of sentences


class Comparison:
    """A run beside its reference, over the steps that both took."""

    def __init__(self, run, reference):
        self.run, self.reference = run, reference
        theirs = {step["step"]: step["loss"] for step in reference.steps}
        # (step, the reference's loss, the run's), and those of them whose bits differ
        self.steps = [(step["step"], theirs[step["step"]], step["loss"]) for step in run.steps
                      if step["step"] in theirs]
        self.parted = [row for row in self.steps if bits(row[1]) != bits(row[2])]
        self.layers = None  # whose parameters differ at the end; None: these are of other steps
        if run.steps[-1]["step"] == reference.steps[-1]["step"]:
            pairs = itertools.zip_longest(*(r.summary["layer_digests"] for r in (run, reference)))
            self.layers = [layer for layer, (ours, other) in enumerate(pairs) if ours != other]
        self.same = not self.parted and not self.layers
        self.whole = run.whole and run.told == reference.told
        self.alike = self.same and self.layers == [] and self.whole  # nothing more to say
        # Difference of the losses; infinite where only one of them is finite.
        self.largest = max([0.0] + [math.inf if None in (a, b) else abs(a - b)
                                    for _, a, b in self.parted])


@dataclass
class Study:
    """Runs that lie beside each other, and short ones of which a few pictures take a point."""
    runs: list
    more: list
    story: list = ()  # of a device that is too small: lists of sentences
    exact: bool = False  # bytes, not kB or MB

    def __post_init__(self):
        for run, label in zip(self.runs, labels(self.runs)):
            run.label = label
        first, *others = self.runs
        # Each with the first run of its dtype, or else with the first of all.
        of_dtype = {run.dtype: run for run in reversed(self.runs)}
        pairs = ((run, of_dtype[run.dtype]) for run in others)
        self.compared = [Comparison(run, first if run is other else other) for run, other in pairs]


def labels(runs, widest=24):
    """For each run the shortest name that tells it from the others."""
    stems = [f"{run.number} {run.log.stem}" for run in runs]
    for found in ([f"{run.number} {run.dtype}" for run in runs], stems):
        if len(set(found)) == len(runs) and max(map(len, found)) <= widest:
            return found
    return [f"{place}: {stem}"[:widest] for place, stem in enumerate(stems, 1)]


def short(run, runs):
    """Its chapter's number, where that tells it from the others."""
    return run.number if [r.number for r in runs].count(run.number) == 1 else run.label


def runs_table(study):
    rows = [[run.label, run.log.stem, run.dtype, run.ranks, run.options["accumulate"],
             run.info["device"], len(run.steps) if run.whole else run.told,
             number(run.losses[-1], ".4f"), small(c.largest) if c else ""]
            for run, c in zip(study.runs, [None, *study.compared])]
    head = ["run", "log", "dtype", "ranks", "A", "device", "steps", "final\nloss",
            "largest\ndifference"]
    return Table(head, rows, note="A: micro-batches a step. Largest difference: of the loss in any "
                 "step, to the first run of its dtype, or else to the first of all.")


def bits_table(study):
    rows = []
    for c in study.compared:
        first = f"step {c.parted[0][0]}" if c.parted else "none" if c.steps else "no common step"
        layer = "of other steps" if c.layers is None else \
            f"differ, layer {c.layers[0]} first" if c.layers else "the same bits"
        rows.append([c.run.label, c.reference.label, len(c.steps), first, layer])
    return Table(["run", "against", "steps", "first difference", "parameters"], rows)


def what(c):
    """Sentences about where a run leaves its reference, exactly."""
    run, other = c.run.label, c.reference.label
    lines = [f"{run} has the bits of {other} in {'all ' * c.whole}{len(c.steps)} losses."]
    if c.parted:
        step, *both = c.parted[0]
        there, here = ("no number (null)" if loss is None else f"{loss:#.9g} (0x{bits(loss)})"
                       for loss in both)
        lines = [f"{run} leaves {other} in step {step}: the loss is {there} there, {here} here. "
                 f"{len(c.parted)} of {len(c.steps)} steps differ."]
    if not c.whole:
        lines.append(f"Their logs have the steps {c.run.told} and {c.reference.told}: those of "
                     "both are compared.")
    if c.layers:
        count = max(len(r.summary["layer_digests"]) for r in (c.run, c.reference))
        lines.append(f"The parameters at the end differ in {len(c.layers)} of {count} layers, "
                     f"layer {c.layers[0]} is the first.")
    elif c.layers == []:
        lines.append("The parameters at the end are the same to the last bit.")
    return lines + [REASONS] * (not c.same)


def loss_figure(dtype, runs):
    alone = len({run.chapter for run in runs}) == len(runs)
    fig, axes = figures.figure(720, 280)
    fig.set_label(f"Losses in {dtype} over the steps")
    for i, run in enumerate(runs):
        place = CHAPTERS.index(run.chapter) if alone and run.chapter in CHAPTERS else i
        axes.plot([step["step"] for step in run.steps],
                  [math.nan if loss is None else loss for loss in run.losses],
                  label=short(run, runs), linewidth=1.5 + 2 * min(len(runs) - 1 - i, 5),
                  color=figures.CHAPTER_COLOURS[place % len(CHAPTERS)])
    unit = " (nats a byte)" if runs[0].options.get("task") == "text" else ""
    axes.set(title=f"losses in {dtype}", xlabel="step", ylabel=f"loss{unit}")
    axes.legend(title="chapter" if alone else None)
    return fig


def title(study, dtype, runs):
    pairs = [c for c in study.compared if c.run.dtype == c.reference.dtype == dtype]
    if not pairs:
        return f"{dtype}: one run"
    if parted := [c for c in pairs if c.parted]:
        first = min(parted, key=lambda c: c.parted[0][0])
        names = (short(run, runs) for run in (first.run, first.reference))
        return f"{dtype}: {' leaves '.join(names)} in step {first.parted[0][0]}"
    every = "all " * all(c.alike for c in pairs) + str(min(len(c.steps) for c in pairs))
    return f"{dtype}: {len(runs)} runs, the same bits in {every} losses"


def losses(study):
    by_dtype = {run.dtype: [r for r in study.runs if r.dtype == run.dtype] for run in study.runs}
    return Section(
        "; ".join(title(study, *pair) for pair in by_dtype.items()),
        "Thick curves lie below thin ones, so a run that left the others would show.",
        [partial(loss_figure, *pair) for pair in by_dtype.items()],
        [runs_table(study)] + ([bits_table(study)] if study.compared else []),
        [what(c) for c in study.compared if not c.alike])
