#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every chapter computes the same training run, to the last bit: seen from outside, by the logs.

With --gpu the runs lie on GPUs, and all ways of talking are compared with each other too; with
--wide they are those of WIDE, through the host's memory alone.

Compared are the bits of each step's loss and gradient norm, which steps are skipped, and the
digest of each layer's final master weights. What can be compared is in GROUPS.
"""
import re
import sys
from dataclasses import dataclass

sys.dont_write_bytecode = True
from expected import WINDOW  # noqa: E402
from programs import (ALONE, SKIPPED, WAYS, Failure, Programs, bits, gpu_options,  # noqa: E402
                      options_of)

TEXT = "--width 16 --layers 3 --batch 4"
TOY = "--task toy --batch 4"
MLP_7 = "--task mlp --width 7 --layers 3"  # 56 elements a layer: padded from 2 ranks on
MLP_1 = "--task mlp --width 1 --layers 2"  # 2 elements a layer: all but the first rank have none


@dataclass
class Run:
    """What one program computed: its steps as logged, and the digests of its layers."""
    who: str
    steps: list
    layers: list

    def pattern(self):
        return "".join("x" if step["skipped"] else "." for step in self.steps)

    def facts(self):
        """What is compared, by step, then by layer: what it is, and its value."""
        yield "number of steps", len(self.steps)
        for i, step in enumerate(self.steps, 1):
            yield f"loss of step {i}", bits(step["loss"])
            yield f"norm of step {i}", bits(step["grad_norm"])
            yield f"step {i} skipped", step["skipped"]
        yield from ((f"digest of layer {layer}", digest)
                    for layer, digest in enumerate(self.layers))


@dataclass
class Group:
    """Runs with the same options. One family agrees on any number of ranks, all on one rank."""
    name: str
    args: str
    families: list  # of programs, each with its own options
    needs: list  # what must have happened, or nothing was shown
    with_01: bool = False  # 01 with a micro-batch for each rank computes it too
    on_gpu: bool = False  # with --gpu too, where starting a program takes seconds


# ---- What must have happened -------------------------------------------------------------------

def clipped(run, group):
    clip = float(re.search(r"--clip (\S+)", group.args)[1])
    norms = [step["grad_norm"] for step in run.steps]
    active = [norm for norm in norms if norm is not None and norm > clip]
    return None if active else f"clipping at {clip} was never active: {norms}"


def learns(run, _group):
    losses = {step["loss"] for step in run.steps}
    return None if len(losses) == len(run.steps) else "the losses are to differ"


def skips(words, *patterns):
    """A need: each of the patterns is found in the skipped (x) and the good steps (.)."""
    return lambda run, _group: None if all(re.search(pattern, run.pattern())
                                           for pattern in patterns) else words


skips_between = skips("no skip between good steps", r"\.x", r"x\.")
skips_some = skips("some steps are to be skipped, not all", "x", r"\.")
skips_all = skips("all steps are to be skipped", r"^x+$")
skips_none = skips("no step is to be skipped", r"^\.+$")


# ---- The groups --------------------------------------------------------------------------------

def mixed(dtype, *prefetch):
    """03 to 07, those with a window with each prefetch."""
    return [f"{program} --dtype {dtype}" for program in
            ["03_mixed_precision", "04_zero1", "05_zero2",
             *(f"{program} --prefetch {p}" for program in WINDOW for p in prefetch)]]


def fp32(*prefetch):
    return ["02_distributed_adam", *mixed("fp32", *prefetch)]


def two_families(programs):
    """05 to 07 add the ranks' gradients every micro-batch, the others once a step."""
    often = [program for program in programs if program[:2] in ("05", "06", "07")]
    return [[program for program in programs if program not in often], often]


HARD = "--clip 0.5 --weight-decay 0.1"
GROUPS = [
    Group("fp32 text, clip, decay", f"{TEXT} {HARD} --steps 6",
          [[*fp32(0, 1, 2), "04_zero1 --dtype fp32 --link 1",
            "06_zero3 --dtype fp32 --link 1 --latency 50",
            "07_offload --dtype fp32 --bus 0.01",
            "07_offload --dtype fp32 --bus 0.1 --link 1 --latency 50 --prefetch 2"]],
          [clipped, skips_none, learns], with_01=True, on_gpu=True),
    Group("fp32 toy", f"{TOY} --steps 4",
          [fp32(1)], [skips_none, learns], with_01=True),
    Group("fp32 mlp of width 7", f"{MLP_7} --batch 3 --steps 6",
          [fp32(0, 1, 2)], [skips_none, learns], with_01=True, on_gpu=True),
    Group("fp32 mlp of width 1", f"{MLP_1} --batch 2 --steps 6",
          [fp32(2)], [skips_none, learns], with_01=True),
    Group("fp32 not finite", f"{MLP_7} --batch 3 --lr 1e30 --steps 3",
          [fp32(1)], [skips_some], with_01=True),
    Group("bf16 text, clip, decay", f"{TEXT} {HARD} --steps 6",
          [mixed("bf16", 1)], [clipped, skips_none, learns], on_gpu=True),
    Group("bf16 toy", f"{TOY} --steps 4",
          [mixed("bf16", 2)], [skips_none, learns]),
    Group("bf16 mlp of width 7", f"{MLP_7} --batch 3 --steps 6",
          [mixed("bf16", 0)], [skips_none, learns], on_gpu=True),
    Group("bf16 mlp of width 1", f"{MLP_1} --batch 2 --steps 6",
          [mixed("bf16", 1)], [skips_none]),
    Group("fp16 text, clip, decay, skips", f"{TEXT} {HARD} --lr 0.05 --steps 10",
          [[*mixed("fp16", 1), "07_offload --dtype fp16 --bus 0.01"]], [clipped, skips_between],
          on_gpu=True),
    Group("fp16 toy, skips", f"{TOY} --lr 0.02 --steps 6",
          [mixed("fp16", 2)], [skips_between]),
    Group("fp16 mlp of width 7, skips", f"{MLP_7} --batch 1 --lr 0.05 --steps 6",
          [mixed("fp16", 0)], [skips_some], on_gpu=True),
    Group("fp16 mlp of width 1, fixed scale", f"{MLP_1} --batch 2 --loss-scale 256 --steps 4",
          [mixed("fp16", 1)], [skips_none]),
    Group("fp16 all skipped", f"{MLP_7} --batch 3 --loss-scale 1e30 --steps 2",
          [mixed("fp16", 1)], [skips_all]),
    Group("fp32 text, 3 micro-batches", f"{TEXT} {HARD} --accumulate 3 --steps 4",
          two_families(fp32(0, 2)), [clipped, skips_none, learns]),
    Group("bf16 mlp, 3 micro-batches", f"{MLP_7} --batch 3 --accumulate 3 --steps 4",
          two_families(mixed("bf16", 1)), [skips_none, learns], on_gpu=True),
    Group("fp16 text, 3 micro-batches, skips", f"{TEXT} --lr 0.05 --accumulate 3 --steps 8",
          two_families(mixed("fp16", 1)), [skips_some]),
]
# At which cuBLAS takes the kernels of large products; layers of width 1000 begin at addresses of
# another alignment in one chapter than in the next.
WIDE = [Group(f"{dtype} mlp of width {width}", f"--task mlp --width {width} --layers 3 --batch 512 "
              "--steps 3", [programs], [skips_none, learns])
        for width in (1000, 2048)
        for dtype, programs in (("bf16", mixed("bf16", 1)), ("fp32", fp32(1)))]


# ---- Comparing ---------------------------------------------------------------------------------

def compute(programs, ranks, program, args, way=None):
    """way: of WAYS, on GPUs; None on the CPU."""
    chapter, *own = program.split()
    own += gpu_options(chapter, way) if way else ["--device", "cpu"]
    _, steps, summary = programs.logged(ranks, chapter, *args.split(), *own)
    return Run(f"{program} {way or ''}".strip(), steps, summary["layer_digests"])


def compare(reference, other, norm_ulps=0):
    """Throws Failure at the first difference. Norms, which are positive, may be so many
    representable fp32 numbers apart."""
    for (where, a), (_, b) in zip(reference.facts(), other.facts(), strict=True):
        near = (where.startswith("norm") and "null" not in (a, b)
                and abs(int(a, 16) - int(b, 16)) <= norm_ulps)
        if a != b and not near:
            raise Failure(f"{where}: {reference.who} {a}, {other.who} {b}")


def ways_of(group, ranks):
    """The ways whose bits are the same on GPUs. NCCL's own sums have another order from three ranks
    on, and fp16's overflow before they are halved."""
    fp16 = any("fp16" in program for family in group.families for program in family)
    return [way for way in WAYS if way != "native" or (ranks < 3 and not fp16)]


def check(programs, ranks, group, ways):
    """Throws Failure; returns how many runs were compared."""
    compared, first = 0, None
    for family in group.families:
        runs = [compute(programs, ranks, program, group.args, way)
                for way in ways for program in family]
        for run in runs[1:]:
            compare(runs[0], run)
        for need in group.needs:
            if why := need(runs[0], group):
                raise Failure(f"{why}: {runs[0].who} {runs[0].pattern()}")
        first = first or runs[0]
        if ranks == 1:
            compare(first, runs[0])
        compared += len(runs)
    if group.with_01 and ways == [None]:
        # Its squares are added up in another order, in double: the float norm may round apart.
        compare(first, compute(programs, 0, f"{ALONE} --accumulate {ranks}", group.args), 2)
        compared += 1
    return compared


def main():
    options = options_of(
        __doc__, ranks={"required": True, "help": "numbers of ranks: 1,2,3"},
        gpu={"action": "store_true", "help": "on GPUs, each way of talking"},
        wide={"action": "store_true", "help": "the groups of WIDE"},
        prefix={"default": "", "help": "of the programs' names"})
    programs = Programs(options.build, options.mpiexec, prefix=options.prefix)
    if options.gpu and (why := programs.why_no_gpu()):
        print(why)
        return SKIPPED
    failed = 0
    print(f"{'ranks':>5}  {'runs':>4}  compared to the last bit")
    chosen = WIDE if options.wide else [g for g in GROUPS if g.on_gpu or not options.gpu]
    host = ["mpi"] if options.wide else None
    for ranks in map(int, options.ranks.split(",")):
        for group in chosen:
            try:
                ways = host or ways_of(group, ranks) if options.gpu else [None]
                runs = check(programs, ranks, group, ways)
                print(f"{ranks:>5}  {runs:>4}  {group.name}: equal", flush=True)
            except Failure as failure:
                failed += 1
                print(f"{ranks:>5}     -  {group.name}: DIFFERENT\n  {failure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
