# SPDX-License-Identifier: MIT
"""Where the bits of two runs part, and why: by the options and by what these do to bits."""
import filecmp
import math
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from runs import bits

# Options that make another run of it, each with what it changes.
ANOTHER_RUN = dict.fromkeys(("task", "width", "layers", "narrate"), "another model: another run")
ANOTHER_RUN |= {"data": "another text: another run", "seed": "other weights and data: another run"}
ANOTHER_RUN |= dict.fromkeys(("lr", "beta1", "beta2", "eps", "weight-decay", "clip"),
                             "Adam takes other steps: another run")
# What must not move a bit: it says when something is done, where it is kept, or what is told.
WITHOUT_EFFECT = ("comm", "prefetch", "check-every", "timeout", "link", "latency", "bus",
                  "pageable", "device-memory", "trace", "memory", "quiet", "log", "steps")
# Judged together or by what was chosen, below.
JUDGED = ("batch", "accumulate", "dtype", "loss-scale", "device", "reduce")
NOT_ASSOCIATIVE = ("the same samples are summed in another order, and addition is not associative: "
                   "the last bits differ, which later steps may enlarge (notes/floating_point.md)")


@dataclass
class Reason:
    """A thing in which two runs differ, with the reference's value and the run's own."""
    name: str
    values: tuple
    effect: str = ""  # on bits; empty: none

    def __str__(self):
        return f"{self.name} {self.values[0]} and {self.values[1]}"


@dataclass
class Comparison:
    """A run beside its reference, over the steps that both took."""
    run: object
    reference: object
    steps: list  # (step, the reference's loss, the run's), of common steps
    parted: list  # those of them whose bits differ
    layers: list | None  # those whose final parameters differ; None: they are of different steps
    reasons: list

    @property
    def same(self):
        return not self.parted and not self.layers

    @property
    def largest(self):
        """Difference of the losses; infinite where only one of them is finite."""
        return max([0.0] + [math.inf if None in (a, b) else abs(a - b)
                            for _, a, b in self.parted])

    @property
    def defect(self):
        return not self.same and not any(reason.effect for reason in self.reasons)


def compared(run, reference):
    theirs = {step["step"]: step["loss"] for step in reference.steps}
    steps = [(step["step"], theirs[step["step"]], step["loss"]) for step in run.steps
             if step["step"] in theirs]
    layers = None
    if len(steps) == len(run.steps) == len(reference.steps):
        ours, other = run.summary["layer_digests"], reference.summary["layer_digests"]
        layers = [layer for layer in range(max(len(ours), len(other)))
                  if ours[layer:layer + 1] != other[layer:layer + 1]]
    return Comparison(run, reference, steps, [row for row in steps if bits(row[1]) != bits(row[2])],
                      layers, reasons(run, reference))


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
    if None in (a, b) or (a < 0) != (b < 0):
        return 1
    first = max(Decimal(a).adjusted(), Decimal(b).adjusted())
    a, b = (f"{Decimal(abs(number)).scaleb(8 - first):.0f}".zfill(9) for number in (a, b))
    return next((place for place, pair in enumerate(zip(a, b), 1) if pair[0] != pair[1]), 1)


def exactly(number):
    """An fp32 number in the nine digits that name it, and its bits."""
    return "no number (null)" if number is None else f"{number:#.9g} (0x{bits(number)})"


# ---- Why -------------------------------------------------------------------------------------

def order(run):
    """Of a step's additions: runs that agree in it, and in a step's samples, add alike."""
    ranks, micro_batches = run.info["ranks"], run.info["options"]["accumulate"]
    if 1 not in (ranks, micro_batches):
        return run.info["family"], ranks, micro_batches
    # One after the other; in 16 bits a rank's own sum is rounded after each, the ranks' once.
    return ranks * micro_batches, run.dtype != "fp32" and micro_batches > 1


def samples(run):
    """Of all ranks in a step."""
    return run.info["ranks"] * run.info["options"]["accumulate"] * run.info["options"]["batch"]


def of_sums(run, reference):
    """Ranks, micro-batches, samples of each and family make sense together only."""
    same_samples = samples(run) == samples(reference)
    alike = (order(run), run.info["options"]["batch"]) == \
        (order(reference), reference.info["options"]["batch"])
    effect = "" if same_samples and alike else NOT_ASSOCIATIVE if same_samples else \
        f"{samples(reference)} and {samples(run)} samples a step: another run"
    families = any(1 not in (r.info["ranks"], r.info["options"]["accumulate"])
                   for r in (run, reference))  # else there is only one
    pairs = [("ranks", reference.info["ranks"], run.info["ranks"]),
             ("batch", reference.info["options"]["batch"], run.info["options"]["batch"]),
             ("accumulate", reference.info["options"]["accumulate"],
              run.info["options"]["accumulate"])]
    if families:
        pairs.append(("family", reference.info["family"], run.info["family"]))
    return [Reason(name, (a, b), effect) for name, a, b in pairs if a != b]


def of_machine(run, reference):
    """What was chosen where the options leave it open."""
    native = [r.info["options"].get("reduce") == "native" for r in (run, reference)]
    exact = run.info["ranks"] <= 2 and run.dtype != "fp16"
    own = "" if exact else ("NCCL adds in an order of its own, from three ranks on perhaps in "
                            "another one each time (notes/gpu.md)")
    words = ("ordered", "native")
    effects = [
        ("dtype", reference.dtype, run.dtype, "what is stored is rounded to it, so two dtypes "
         "agree in their first digits only (notes/floating_point.md)"),
        ("device", reference.info["device"], run.info["device"],
         "a GPU sums products in an order of its own (notes/gpu.md)"),
        ("GPU", reference.info["gpu"], run.info["gpu"],
         "another GPU may sum products in another order (notes/gpu.md)"),
        ("reduce", words[native[1]], words[native[0]], own),
        ("comm", reference.info["comm"], run.info["comm"], ""),
    ]
    found = [Reason(name, (a, b), effect) for name, a, b, effect in effects
             if a != b and None not in (a, b)]  # 01 has no comm, a CPU is no GPU
    if all(native) and own:
        found.append(Reason("reduce", ("native", "native"), own))
    return found


def same_text(a, b):
    """Two paths with the same bytes."""
    return all(Path(path).is_file() for path in (a, b)) and filecmp.cmp(a, b, shallow=False)


def reasons(run, reference):
    """All in which they differ, what changes bits first. What one of them cannot be asked for,
    as 01 has no prefetch, is no difference."""
    found = of_sums(run, reference) + of_machine(run, reference)
    theirs = reference.info["options"]
    for name, value in run.info["options"].items():
        if name not in theirs or theirs[name] == value or name in ("comm", "device") or \
                name == "data" and (run.info["options"].get("task") != "text"
                                    or same_text(theirs[name], value)):
            continue
        effect = "not known to this script, and it may change bits"
        if name in ANOTHER_RUN or name in WITHOUT_EFFECT:
            effect = ANOTHER_RUN.get(name, "")
        elif name == "loss-scale":
            effect = "" if run.dtype != "fp16" else \
                "other steps are skipped, other small numbers vanish: another run"
        elif name in JUDGED:
            continue
        found.append(Reason(name, (theirs[name], value), effect))
    clipped = run.info["options"]["clip"] > 0 and (run.info["comm"] is None) != \
        (reference.info["comm"] is None)
    if clipped:
        found.append(Reason("chapter", (reference.chapter, run.chapter), "one process adds the "
                            "norm in another order: with --clip a bit may differ, rarely "
                            "(notes/floating_point.md)"))
    return sorted(found, key=lambda reason: not reason.effect)
