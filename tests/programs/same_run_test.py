# SPDX-License-Identifier: MIT
"""Every chapter computes the same training run, to the last bit: seen from outside, by the logs.

Compared are the bits of each step's loss and gradient norm, which steps are skipped, and the
digest of each layer's final master weights. Every size, option and prefetch is compared within the
chapters' own tests on ranks; here stand those that go through whole programs differently.
"""
import re
from dataclasses import dataclass

import pytest
from programs import ALONE, MIXED, WAYS, WINDOW, bits, options_on

TEXT = "--width 16 --layers 3 --batch 4"
MLP = "--task mlp --width 7 --layers 3"  # 56 elements a layer: padded from 2 ranks on
LLAMA = "--task llama --width 12 --layers 2 --heads 2 --hidden 20 --sequence 5 --batch 2 --steps 3"
HARD = "--clip 0.5 --weight-decay 0.1"
# Which steps may be skipped (x), or nothing was shown.
NONE, BETWEEN = r"\.+", r"(?=.*\.x)(?=.*x\.).+"


def mixed(dtype, prefetch):
    return [f"{chapter} --dtype {dtype}" + (f" --prefetch {prefetch}" if chapter in WINDOW else "")
            for chapter in MIXED]


@dataclass
class Group:
    name: str
    args: str
    programs: list  # each with its own options
    skips: str = NONE
    with_01: bool = False  # 01 with a micro-batch for each rank computes it too


GROUPS = [
    Group("fp32 text, clip, decay", f"{TEXT} {HARD} --steps 6",
          ["02_distributed_adam", "03_mixed_precision --dtype fp32",
           "04_zero1 --dtype fp32 --link 1", "05_zero2 --dtype fp32",
           "06_zero3 --dtype fp32 --prefetch 0",
           "06_zero3 --dtype fp32 --prefetch 2 --link 1 --latency 50",
           "07_offload --dtype fp32 --bus 0.1 --link 1 --latency 50"],
          with_01=True),
    Group("bf16 mlp of width 7, 3 micro-batches", f"{MLP} --batch 3 --accumulate 3 --steps 6",
          mixed("bf16", 1)),
    Group("fp16 text, clip, decay, skips", f"{TEXT} {HARD} --lr 0.05 --steps 10",
          mixed("fp16", 2), BETWEEN),
    Group("fp32 llama, clip, decay", f"{LLAMA} {HARD}",
          ["02_distributed_adam --recompute", *mixed("fp32", 0)], with_01=True),
    Group("fp32 llama, 2 micro-batches", f"{LLAMA} --accumulate 2",
          ["02_distributed_adam", *(f"{program} --recompute" for program in mixed("fp32", 2))])]
# At which cuBLAS takes the kernels of large products; layers of width 1000 begin at addresses of
# another alignment in one chapter than in the next.
WIDE = [Group(f"{dtype} mlp of width {width}", f"--task mlp --width {width} --layers 3 --batch 512 "
              "--steps 3", programs, with_01=dtype == "fp32")
        for width in (1000, 2048) for dtype, programs in (
            ("bf16", mixed("bf16", 1)), ("fp32", ["02_distributed_adam", *mixed("fp32", 1)]))]


def compute(programs, ranks, program, args, way):
    """The steps as logged, and the digests of the layers."""
    chapter, *own = program.split()
    _, steps, summary = programs.logged(ranks, chapter, *args.split(), *own,
                                        *options_on(way, chapter))
    return steps, summary["layer_digests"]


def facts(run, *figures):
    steps, layers = run
    return layers, [(step["skipped"], *(bits(step[name]) for name in figures)) for step in steps]


def check_shown(steps, group):
    pattern = "".join("x" if step["skipped"] else "." for step in steps)
    assert re.fullmatch(group.skips, pattern)
    assert group.skips != NONE or len({step["loss"] for step in steps}) == len(steps)
    if clip := re.search(r"--clip (\S+)", group.args):
        assert any(step["grad_norm"] and step["grad_norm"] > float(clip[1]) for step in steps)


def check(programs, ranks, group, ways):
    """One family agrees on any number of ranks, all on one rank: 05 to 07 add the ranks' gradients
    every micro-batch, the others once a step."""
    first = {}
    for program in group.programs:
        apart = "--accumulate" in group.args and ranks > 1 and program >= "05"
        for way in ways:
            run = compute(programs, ranks, program, group.args, way)
            of_family = first.setdefault(apart, run)
            assert facts(run, "loss", "grad_norm") == facts(of_family, "loss", "grad_norm"), \
                f"{program} {way}"
    for steps, _ in first.values():
        check_shown(steps, group)
    if group.with_01:
        alone = compute(programs, 0, f"{ALONE} --accumulate {ranks}", group.args, ways[0])
        assert facts(alone, "loss") == facts(run, "loss")
        # Its squares are added up in another order, in double: the float norm may round apart.
        for ours, its in zip(steps, alone[0]):
            assert its["grad_norm"] == pytest.approx(ours["grad_norm"], rel=2 ** -22)


@pytest.fixture
def ranks(request):
    return request.config.getoption("--ranks")


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_cpu(programs, ranks, group):
    check(programs, ranks, group, [None])


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_gpus(gpu, ranks, group):
    """All ways of talking. NCCL's own sums have another order from three ranks on, and fp16's
    overflow before they are halved."""
    native = ranks < 3 and "fp16" not in group.name
    check(gpu, ranks, group, [way for way in WAYS if native or way != "native"])


@pytest.mark.parametrize("group", WIDE, ids=lambda group: group.name)
def test_large_products(gpu, group):
    check(gpu, 2, group, ["mpi", "nccl"] if group.with_01 else ["mpi"])
