# SPDX-License-Identifier: MIT
"""What a comparison is made of; its first finding: where the bits of runs part, and why."""
import filecmp
import itertools
import math
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import figures
from runs import CHAPTERS, bits, number, small

# What it does to bits that two runs differ in an option, or in what was chosen where that leaves
# it open. Options that are not named here may do anything.
EFFECTS = {name: effect for names, effect in (
    ("data", "another text: another run"), ("seed", "other weights and data: another run"),
    ("dtype", "what is stored is rounded to it, so two dtypes agree in their first digits only "
     "(notes/floating_point.md)"),
    ("device", "a GPU sums products in an order of its own (notes/gpu.md)"),
    ("init", "other weights to begin with: another run"),
    ("resume", "it goes on with what another run, or this one at another N, has made"),
    ("GPU", "another GPU may sum products in another order (notes/gpu.md)"),
    ("task width layers narrate", "another model: another run"),
    ("lr beta1 beta2 eps weight-decay clip", "Adam takes other steps: another run"),
    # What must not move a bit: it says when something is done, where it is kept, or what is told.
    ("comm prefetch check-every timeout link latency bus pageable host-threads device-memory "
     "memory", "")) for name in names.split()}
UNTOLD = ("log", "trace", "quiet", "steps", "save", "save-every", "keep")  # not worth a word
SUMMED = ("ranks", "batch", "accumulate", "family")  # make sense together only
NOT_ASSOCIATIVE = ("the same samples are summed in another order, and addition is not associative: "
                   "the last bits differ, which later steps may enlarge (notes/floating_point.md)")
NATIVE = ("NCCL adds in an order of its own, from three ranks on perhaps in another one each time "
          "(notes/gpu.md)")
DEFECT = """Nothing in which the runs differ may change bits, and yet bits differ: if one build made
both, and from the same text, this is a defect. Run both again: if the bits of one change, a race or
a broken machine is to blame. If they stay, look at the first step and layer above, and run
./tutorial test, whose tests of "the same run" must find it."""


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
        self.run, self.reference, self.reasons = run, reference, reasons(run, reference)
        theirs = {step["step"]: step["loss"] for step in reference.steps}
        # (step, the reference's loss, the run's), and those of them whose bits differ
        self.steps = [(step["step"], theirs[step["step"]], step["loss"]) for step in run.steps
                      if step["step"] in theirs]
        self.parted = [row for row in self.steps if bits(row[1]) != bits(row[2])]
        self.same_parameters = None  # at the end; None: they are of different steps
        self.layers = []  # those whose final parameters differ
        if run.steps[-1]["step"] == reference.steps[-1]["step"]:
            pairs = itertools.zip_longest(*(r.summary["layer_digests"] for r in (run, reference)))
            self.layers = [layer for layer, (ours, other) in enumerate(pairs) if ours != other]
            same = run.summary["digest"] == reference.summary["digest"]
            self.same_parameters = same and not self.layers
        self.same = not self.parted and self.same_parameters is not False
        self.whole = run.whole and run.told == reference.told
        self.alike = self.same and self.same_parameters and self.whole  # nothing more to say
        self.defect = not self.same and not any(self.reasons)
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


def listed(words):
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


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


def ulps(a, b):
    """How many fp32 numbers b lies above a; not finite where one of them is no number."""
    if None in (a, b):
        return 0 if a is b else math.inf
    low, high = ((1 if own > 0 else -1) * int(bits(abs(own)), 16) for own in (a, b))
    return high - low


def digit(a, b):
    """The first of nine significant digits, from 1, in which two different fp32 numbers differ."""
    if None in (a, b):
        return 1
    (a, power), (b, other_power) = (f"{number:.8e}".split("e") for number in (a, b))
    same = os.path.commonprefix([a, b]) if power == other_power else ""  # noqa: RUF071
    return max(1, len(same.lstrip("-")))  # a point stands after the first digit


def facts(run):
    """What may tell a run from another: its options, and what was chosen where these leave it
    open. None stands for what cannot be asked of it, as 01 has no comm, and a CPU is no GPU."""
    info, options = run.info, run.options
    several_sums = 1 not in (run.ranks, options["accumulate"])  # else there is but one family
    chosen = {"ranks": run.ranks, "batch": options["batch"], "accumulate": options["accumulate"],
              "family": info["family"] if several_sums else None, "dtype": run.dtype,
              "device": info["device"], "GPU": info["gpu"], "comm": info["comm"],
              "reduce": "native" if options.get("reduce") == "native" else "ordered"}
    return chosen | options | chosen


def effect_of_sums(ours, theirs):
    """What ranks, micro-batches, samples of each and family do together."""
    before, here = (its["batch"] * its["ranks"] * its["accumulate"] for its in (theirs, ours))
    if before != here:
        return f"{before} and {here} samples a step: another run"
    # The order of additions. Of one family, one after the other; in 16 bits a rank's own sum is
    # rounded after each, the ranks' once.
    order, other = (
        (its["batch"], its["family"], its["ranks"], its["accumulate"]) if its["family"] else
        (its["batch"], its["dtype"] != "fp32" and its["accumulate"] > 1) for its in (ours, theirs))
    return "" if order == other else NOT_ASSOCIATIVE


def reasons(run, reference):
    """All in which they differ, the reference's value and the run's own, by what it does to bits;
    "": nothing. What one of them cannot be asked for, as 01 has no prefetch, is no difference."""
    ours, theirs = facts(run), facts(reference)
    exact = ours["ranks"] <= 2 and run.dtype != "fp16"  # NCCL's own sums
    effects = EFFECTS | dict.fromkeys(SUMMED, effect_of_sums(ours, theirs))
    effects |= {"reduce": "" if exact else NATIVE,
                "loss-scale": "other steps are skipped, other small numbers vanish: another run"
                if run.dtype == "fp16" else ""}
    texts = ours.get("data", ""), theirs.get("data", "")
    if ours.get("task") != "text" or \
            all(map(os.path.isfile, texts)) and filecmp.cmp(*texts, shallow=False):
        ours.pop("data", None)
    found = defaultdict(list)
    for name, value in ours.items():
        other = theirs.get(name)
        if None not in (value, other) and value != other and name not in UNTOLD:
            effect = effects.get(name, "not known to this script, and it may change bits")
            when = " (when the ranks are added)" * (name == "family")
            found[effect].append(f"{name}{when} {other} and {value}")
    if ours["reduce"] == theirs["reduce"] == "native" and not exact:
        found[NATIVE].append("reduce native and native")
    if ours["clip"] > 0 and (ours["comm"] is None) != (theirs["comm"] is None):
        found["one process adds the norm in another order: with --clip a bit may differ, rarely "
              "(notes/floating_point.md)"].append(f"chapter {reference.chapter} and {run.chapter}")
    return found | {"": found.pop("", [])}  # at the end


def runs_table(study):
    stems = len({run.log.stem for run in study.runs}) == len(study.runs)
    rows = [[run.label, run.log.stem if stems else run.log, run.dtype, run.ranks,
             run.options["accumulate"], run.info["device"],
             len(run.steps) if run.whole else run.told, number(run.losses[-1], ".4f"),
             small(c.largest) if c else ""]
            for run, c in zip(study.runs, [None, *study.compared])]
    head = ["run", "log", "dtype", "ranks", "A", "device", "steps", "final\nloss",
            "largest\ndifference"]
    return Table(head, rows, note="A: micro-batches a step. Largest difference: of the loss in any "
                 "step, to the first run of its dtype, or else to the first of all.")


def bits_table(study):
    rows = []
    for c in study.compared:
        first = f"step {c.parted[0][0]}, digit {digit(*c.parted[0][1:])}" \
            if c.parted else "none" if c.steps else "no common step"
        layer = "of other steps" if c.same_parameters is None else \
            "the same bits" if c.same_parameters else \
            f"differ, layer {c.layers[0]} first" if c.layers else "differ"
        rows.append([c.run.label, c.reference.label, len(c.steps), first, layer])
    return Table(["run", "against", "steps", "first difference", "parameters"], rows)


def what(c):
    """Sentences about what parts a run from its reference, exactly."""
    run, other = c.run.label, c.reference.label
    lines = [f"{run} has the bits of {other} in {'all ' * c.whole}{len(c.steps)} losses."]
    if c.parted:
        step, *both = c.parted[0]
        apart = abs(ulps(*both))
        by = f", {apart} fp32 number{'s' * (apart != 1)} apart" if math.isfinite(apart) else ""
        there, here = ("no number (null)" if loss is None else f"{loss:#.9g} (0x{bits(loss)})"
                       for loss in both)
        lines = [f"{run} leaves {other} in step {step}, in digit {digit(*both)} of the loss: "
                 f"{there} there, {here} here{by}. {len(c.parted)} of {len(c.steps)} steps differ."]
    if not c.whole:
        lines.append(f"Their logs have the steps {c.run.told} and {c.reference.told}: those of "
                     "both are compared.")
    if c.layers:
        count = max(len(r.summary["layer_digests"]) for r in (c.run, c.reference))
        lines.append(f"The parameters at the end differ in {len(c.layers)} of {count} layers, "
                     f"layer {c.layers[0]} is the first.")
    elif c.same_parameters is not None and not c.alike:
        differ = "are the same to the last bit" if c.same_parameters else "differ"
        lines.append(f"The parameters at the end {differ}.")
    return lines


def why(c):
    lines = []
    if c.defect:
        lines.append(" ".join(DEFECT.split()))
    elif not c.same:
        lines += [f"Why: {'; '.join(differing)}: {effect}."
                  for effect, differing in c.reasons.items() if effect]
    if c.reasons[""]:
        lines.append(f"Without effect on bits: {'; '.join(c.reasons[''])}.")
    return lines


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
        step, *both = first.parted[0]
        names = (short(run, runs) for run in (first.run, first.reference))
        return f"{dtype}: {' leaves '.join(names)} in step {step}, in digit {digit(*both)}"
    every = "all " * all(c.alike for c in pairs) + str(min(len(c.steps) for c in pairs))
    return f"{dtype}: {len(runs)} runs, the same bits in {every} losses"


def losses(study):
    by_dtype = {run.dtype: [r for r in study.runs if r.dtype == run.dtype] for run in study.runs}
    the_same = defaultdict(list)  # runs with their references' bits, by what they differ in
    for c in study.compared:
        differ = "; ".join(itertools.chain(*c.reasons.values()))
        if differ and c.alike:
            the_same[differ].append(c.run.label)
    return Section(
        "; ".join(title(study, *pair) for pair in by_dtype.items()),
        "Thick curves lie below thin ones, so a run that left the others would show.",
        [partial(loss_figure, *pair) for pair in by_dtype.items()],
        [runs_table(study)] + ([bits_table(study)] if study.compared else []),
        [[f"The same bits although {differ}: {listed(who)}."] for differ, who in the_same.items()] +
        [what(c) + why(c) for c in study.compared if not c.alike])
