# SPDX-License-Identifier: MIT
"""What a comparison is made of, and its first finding: where losses and parameters part."""
import math
import re
from dataclasses import dataclass, field

import differences
import figures
from differences import exactly, ulps
from runs import CHAPTERS, number, small

COUNT = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


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
    words: str = ""
    figures: list = field(default_factory=list)
    tables: list = field(default_factory=list)
    points: list = field(default_factory=list)  # lists of sentences


@dataclass
class Study:
    """Runs that lie beside each other, and short ones of which a few pictures take a point."""
    runs: list
    more: list
    story: list = field(default_factory=list)  # of a device that is too small: lists of sentences

    def __post_init__(self):
        for run, label in zip(self.runs, labels(self.runs)):
            run.label = label
        first, *others = self.runs
        of_dtype = {run.dtype: run for run in reversed(self.runs)}
        # Each with the first run of its dtype, or else with the first of all.
        self.compared = [differences.Comparison(
            run, of_dtype[run.dtype] if of_dtype[run.dtype] is not run else first)
            for run in others]


def several(count, what):
    return f"{COUNT[count] if count < len(COUNT) else count} {what}{'s' * (count != 1)}"


def listed(words):
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# ---- Names -----------------------------------------------------------------------------------

def labels(runs, widest=24):
    """For each run the shortest name that tells it from the others."""
    for found in ([f"{run.number} {run.dtype}" for run in runs],
                  [f"{run.number} {run.log.stem}" for run in runs]):
        if len(set(found)) == len(runs) and max(map(len, found)) <= widest:
            return found
    return [f"{place}: {run.number} {run.log.stem}"[:widest] for place, run in enumerate(runs, 1)]


def short(run, runs):
    """Its chapter's number, where that tells it from the others."""
    return run.number if [r.number for r in runs].count(run.number) == 1 else run.label


# ---- Losses ----------------------------------------------------------------------------------

def runs_table(study):
    stems = len({run.log.stem for run in study.runs}) == len(study.runs)
    rows = [[run.label, run.log.stem if stems else run.log, run.dtype, run.info["ranks"],
             run.info["options"]["accumulate"], run.info["device"], len(run.steps),
             number(run.losses[-1], ".4f"), small(c.largest) if c else ""]
            for run, c in zip(study.runs, [None, *study.compared])]
    return Table(["run", "log", "dtype", "ranks", "A", "device", "steps", "final\nloss",
                  "largest\ndifference"], rows,
                 note="A: micro-batches a step. Largest difference: of the loss in any step, to "
                 "the first run of its dtype, or else to the first of all.")


def bits_table(study):
    rows = []
    for c in study.compared:
        first = f"step {c.parted[0][0]}, digit {differences.digit(*c.parted[0][1:])}" \
            if c.parted else "none" if c.steps else "no common step"
        layer = "of other steps" if c.same_parameters is None else \
            "the same bits" if c.same_parameters else \
            f"differ, layer {c.layers[0]} first" if c.layers else "differ"
        rows.append([c.run.label, c.reference.label, len(c.steps), first, layer])
    return Table(["run", "against", "steps", "first difference", "parameters"], rows)


def what(c):
    """Sentences about what parts a run from its reference, exactly."""
    run, other = c.run.label, c.reference.label
    lines = []
    if c.parted:
        step, theirs, own = c.parted[0]
        apart = abs(ulps(theirs, own))
        by = f", {apart} fp32 number{'s' * (apart != 1)} apart" if math.isfinite(apart) else ""
        lines.append(f"{run} leaves {other} in step {step}, in digit "
                     f"{differences.digit(theirs, own)} of the loss: {exactly(theirs)} there, "
                     f"{exactly(own)} here{by}. {len(c.parted)} of {len(c.steps)} steps differ.")
    else:
        lines.append(f"{run} has the bits of {other} in "
                     f"{'' if c.same_parameters is None else 'all '}{len(c.steps)} losses.")
    if c.same_parameters is None:
        lines.append(f"They took {len(c.run.steps)} and {len(c.reference.steps)} steps: of these "
                     "the common ones are compared, and not the parameters at the end.")
    elif c.layers:
        count = max(len(r.summary["layer_digests"]) for r in (c.run, c.reference))
        lines.append(f"The parameters at the end differ in {len(c.layers)} of {count} layers, "
                     f"layer {c.layers[0]} is the first.")
    elif c.parted or not c.same_parameters:
        lines.append("The parameters at the end "
                     f"{'are the same to the last bit' if c.same_parameters else 'differ'}.")
    return lines


def why(c):
    lines = []
    if c.defect:
        lines.append("Nothing in which the runs differ may change bits, and yet bits differ: if "
                     "one build made both, and from the same text, this is a defect. Run both "
                     "again: if the bits of one change, a race or a broken machine is to blame. "
                     "If they stay, look at the first step and layer above, and run ./tutorial "
                     "test, whose tests of \"the same run\" must find it.")
    elif not c.same:
        effects = dict.fromkeys(reason.effect for reason in c.reasons if reason.effect)
        lines += [f"Why: {said(r for r in c.reasons if r.effect == effect)}: {effect}."
                  for effect in effects]
    if idle := said(reason for reason in told(c) if not reason.effect):
        lines.append(f"Without effect on bits: {idle}.")
    return lines


def told(c):
    """The differences of two runs that are worth a word."""
    return [r for r in c.reasons if r.effect or r.name not in ("log", "trace", "quiet", "steps")]


def said(reasons):
    return "; ".join(map(str, reasons))


def the_same(study):
    """One sentence for all runs with their references' bits that differ in the same from them."""
    labels = {}
    for c in study.compared:
        if c.same and told(c) and c.same_parameters:
            labels.setdefault(said(told(c)), []).append(c.run.label)
    return [[f"The same bits although {differ}: {listed(who)}."] for differ, who in labels.items()]


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
    axes.set_title(f"losses in {dtype}")
    axes.set_ylabel("loss (nats a byte)" if runs[0].info["options"].get("task") == "text"
                    else "loss")
    axes.legend(title="chapter" if alone else None)
    axes.set_xlabel("step")
    return fig


def title(study, dtype, runs):
    pairs = [c for c in study.compared if c.run.dtype == c.reference.dtype == dtype]
    if not pairs:
        return f"{dtype}: one run"
    if parted := [c for c in pairs if c.parted]:
        first = min(parted, key=lambda c: c.parted[0][0])
        step, *both = first.parted[0]
        return (f"{dtype}: {short(first.run, runs)} leaves "
                f"{short(first.reference, runs)} in step {step}, in digit "
                f"{differences.digit(*both)}")
    return (f"{dtype}: {several(len(runs), 'run')}, the same bits in "
            f"{'all ' if all(c.same_parameters for c in pairs) else ''}"
            f"{min(len(c.steps) for c in pairs)} losses")


def losses(study):
    by_dtype = {run.dtype: [r for r in study.runs if r.dtype == run.dtype] for run in study.runs}
    return Section(
        "; ".join(title(study, *pair) for pair in by_dtype.items()),
        "Thick curves lie below thin ones, so a run that left the others would show.",
        [lambda dtype=dtype, runs=runs: loss_figure(dtype, runs)
         for dtype, runs in by_dtype.items()],
        [runs_table(study), bits_table(study)] if study.compared else [runs_table(study)],
        the_same(study)
        + [what(c) + why(c) for c in study.compared if not c.same or not c.same_parameters])
