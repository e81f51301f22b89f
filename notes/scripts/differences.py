# SPDX-License-Identifier: MIT
"""Where the bits of two runs part, and why: by the options and by what these do to bits."""
import filecmp
import itertools
import math
import os
from dataclasses import dataclass

from runs import bits

# What it does to bits that two runs differ in an option, or in what was chosen where that leaves
# it open. Options that are not named here may do anything.
EFFECTS = {"data": "another text: another run", "seed": "other weights and data: another run",
           "dtype": "what is stored is rounded to it, so two dtypes agree in their first digits "
                    "only (notes/floating_point.md)",
           "device": "a GPU sums products in an order of its own (notes/gpu.md)",
           "GPU": "another GPU may sum products in another order (notes/gpu.md)"}
EFFECTS |= dict.fromkeys(("task", "width", "layers", "narrate"), "another model: another run")
EFFECTS |= dict.fromkeys(("lr", "beta1", "beta2", "eps", "weight-decay", "clip"),
                         "Adam takes other steps: another run")
# What must not move a bit: it says when something is done, where it is kept, or what is told.
EFFECTS |= dict.fromkeys(("comm", "prefetch", "check-every", "timeout", "link", "latency", "bus",
                          "pageable", "device-memory", "trace", "memory", "quiet", "log", "steps"),
                         "")
SUMMED = ("ranks", "batch", "accumulate", "family")  # make sense together only
NOT_ASSOCIATIVE = ("the same samples are summed in another order, and addition is not associative: "
                   "the last bits differ, which later steps may enlarge (notes/floating_point.md)")
NATIVE = ("NCCL adds in an order of its own, from three ranks on perhaps in another one each time "
          "(notes/gpu.md)")


@dataclass
class Reason:
    """A thing in which two runs differ, with the reference's value and the run's own."""
    name: str
    values: tuple
    effect: str = ""  # on bits; empty: none

    def __str__(self):
        return f"{self.name} {self.values[0]} and {self.values[1]}"


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
        if len(self.steps) == len(run.steps) == len(reference.steps):
            pairs = itertools.zip_longest(*(r.summary["layer_digests"] for r in (run, reference)))
            self.layers = [layer for layer, (ours, other) in enumerate(pairs) if ours != other]
            same = run.summary["digest"] == reference.summary["digest"]
            self.same_parameters = same and not self.layers

    @property
    def same(self):
        return not self.parted and self.same_parameters is not False

    @property
    def largest(self):
        """Difference of the losses; infinite where only one of them is finite."""
        return max([0.0] + [math.inf if None in (a, b) else abs(a - b)
                            for _, a, b in self.parted])

    @property
    def defect(self):
        return not self.same and not any(reason.effect for reason in self.reasons)


# ---- Numbers ---------------------------------------------------------------------------------

def ulps(a, b):
    """How many fp32 numbers b lies above a; not finite where one of them is no number."""
    def place(number):
        pattern = int(bits(number), 16)
        return pattern if pattern < 1 << 31 else (1 << 31) - pattern

    if None in (a, b):
        return 0 if a is b else math.inf
    return place(b) - place(a)


def digit(a, b):
    """The first significant digit, counted from 1, in which two different numbers of fp32 differ:
    nine tell any two of them apart."""
    if None in (a, b):
        return 1
    (a, power), (b, other_power) = (f"{number:.8e}".split("e") for number in (a, b))
    same = os.path.commonprefix([a, b]) if power == other_power else ""
    return max(1, len(same.lstrip("-")))  # a point stands after the first digit


def exactly(number):
    """An fp32 number in the nine digits that name it, and its bits."""
    return "no number (null)" if number is None else f"{number:#.9g} (0x{bits(number)})"


# ---- Why -------------------------------------------------------------------------------------

def facts(run):
    """What may tell a run from another: its options, and what was chosen where these leave it
    open. None stands for what cannot be asked of it, as 01 has no comm, and a CPU is no GPU."""
    info, options = run.info, run.info["options"]
    chosen = {"ranks": info["ranks"], "batch": options["batch"],
              "accumulate": options["accumulate"],
              "family": info["family"], "dtype": run.dtype,
              "device": info["device"], "GPU": info["gpu"],
              "reduce": "native" if options.get("reduce") == "native" else "ordered",
              "comm": info["comm"]}
    return chosen | options | chosen


def several_sums(run):
    """Over ranks and over micro-batches: without them there is but one family."""
    return 1 not in (run.info["ranks"], run.info["options"]["accumulate"])


def order(run):
    """Of a step's additions: runs that agree in it, and in a step's samples, add alike."""
    ranks, micro_batches = run.info["ranks"], run.info["options"]["accumulate"]
    if several_sums(run):
        return run.info["family"], ranks, micro_batches
    # One after the other; in 16 bits a rank's own sum is rounded after each, the ranks' once.
    return ranks * micro_batches, run.dtype != "fp32" and micro_batches > 1


def effect_of_sums(run, reference):
    """What ranks, micro-batches, samples of each and family do together."""
    batches = [r.info["options"]["batch"] for r in (reference, run)]
    samples = [batch * r.info["ranks"] * r.info["options"]["accumulate"]
               for batch, r in zip(batches, (reference, run))]
    if samples[0] != samples[1]:
        return f"{samples[0]} and {samples[1]} samples a step: another run"
    return "" if order(run) == order(reference) and batches[0] == batches[1] else NOT_ASSOCIATIVE


def reasons(run, reference):
    """All in which they differ, what changes bits first. What one of them cannot be asked for,
    as 01 has no prefetch, is no difference."""
    ours, theirs = facts(run), facts(reference)
    exact = ours["ranks"] <= 2 and run.dtype != "fp16"  # NCCL's own sums
    effects = EFFECTS | dict.fromkeys(SUMMED, effect_of_sums(run, reference))
    effects |= {"reduce": "" if exact else NATIVE,
                "loss-scale": "other steps are skipped, other small numbers vanish: another run"
                if run.dtype == "fp16" else ""}
    if not several_sums(run) and not several_sums(reference):
        del ours["family"]
    texts = [its.get("data", "") for its in (ours, theirs)]
    if ours.get("task") != "text" or \
            all(map(os.path.isfile, texts)) and filecmp.cmp(*texts, shallow=False):
        ours.pop("data", None)
    found = [Reason(name, (theirs[name], value),
                    effects.get(name, "not known to this script, and it may change bits"))
             for name, value in ours.items()
             if None not in (value, theirs.get(name)) and value != theirs[name]]
    if ours["reduce"] == theirs["reduce"] == "native" and not exact:
        found.append(Reason("reduce", ("native", "native"), NATIVE))
    if ours["clip"] > 0 and (ours["comm"] is None) != (theirs["comm"] is None):
        found.append(Reason("chapter", (reference.chapter, run.chapter), "one process adds the "
                            "norm in another order: with --clip a bit may differ, rarely "
                            "(notes/floating_point.md)"))
    return sorted(found, key=lambda reason: not reason.effect)
