# SPDX-License-Identifier: MIT
"""What is promised of runs on GPUs, true or simulated ones, beside the same bits."""
import os
import re
import time

import pytest
from programs import COMMUNICATION, DATA, OWN_HOST, SKIPPED, Programs, options_on

# ---- Losses where bits are not promised --------------------------------------------------------

# A GPU multiplies matrices in another order, and each step goes on from what the one before left,
# so differences grow: from 2^-24 by at most some 1000 in fp32, in 16 bit, where another order may
# round to the other neighbour, from 2^-8 (bf16) and 2^-11 (fp16) to a few roundings of bf16.
BOUNDS = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
# In fp16 a step that is skipped on one side only would say nothing: no scale that overflows.
DTYPES = {dtype: ["--dtype", dtype, *(["--loss-scale", "128"] if dtype == "fp16" else [])]
          for dtype in BOUNDS}


def check_losses(dtype, ours, reference):
    """The largest difference over 100 steps, relative to the loss."""
    losses = [[step["loss"] for step in steps] for _, steps, _ in (ours, reference)]
    assert max(abs(a - b) / b for a, b in zip(*losses, strict=True)) <= BOUNDS[dtype]


def train(programs, ranks, task, dtype, way):
    chapter = "03_mixed_precision"
    return programs.logged(ranks, chapter, "--steps", 100, "--task", task, "--width", 64,
                           "--layers", 4, *DTYPES[dtype], *options_on(way, chapter))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("task", ("text", "mlp"))
def test_losses_of_the_cpu(gpu, task, dtype):
    on_cpu = Programs(gpu.build, gpu.mpiexec)
    check_losses(dtype, train(gpu, 1, task, dtype, "mpi"), train(on_cpu, 1, task, dtype, None))


@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
def test_losses_of_native_sums(gpu, dtype):
    """NCCL's own on three ranks against those in rank order. In fp16 they overflow where ours do
    not, and a step more is skipped."""
    check_losses(dtype, train(gpu, 3, "mlp", dtype, "native"), train(gpu, 3, "mlp", dtype, "nccl"))


# ---- Streams that are late ---------------------------------------------------------------------

STREAMS = ["compute", "copies", "communication"]  # of the GPU, in the order of their construction
LATE_US = 2000
RUN = ("--task mlp --width 64 --layers 4 --batch 4 --steps 3 --accumulate 2 --clip 0.5 "
       "--dtype bf16").split()


def facts(programs, chapter, prefetch, late):
    """What a run computed; late: one of STREAMS."""
    delays = ",".join(str(LATE_US * (stream == late)) for stream in STREAMS)
    _, steps, summary = programs.logged(2, chapter, *RUN, "--prefetch", prefetch,
                                        *options_on("mpi", chapter),
                                        SIMULATED_CUDA_DELAY_US=delays)
    return [(step["loss"], step["grad_norm"]) for step in steps], summary["layer_digests"]


@pytest.mark.parametrize("late", STREAMS)
def test_late_streams(gpu, late):
    """07 must be 06's, whose optimizer state lies on the GPU, to the last bit. Without the wait for
    gradients to be reduced, or that for the host's Adam, it differs when `compute` is late; without
    the one for gradients to be down, or that of gathers for parameters to be up, when `copies` is.
    """
    expected = facts(gpu, "06_zero3", 1, None)
    for prefetch in (0, 1, 2):
        assert facts(gpu, "07_offload", prefetch, late) == expected, f"prefetch {prefetch}"


# ---- A rank that fails -------------------------------------------------------------------------

@pytest.mark.parametrize("how", ("throws", "killed", "stuck", "stopped"))
def test_a_rank_fails(programs, request, how):
    """Rank 1 of 2 fails in the middle of the third step: the whole job ends in time, with a
    sentence and an exit code. The rank that still moves says in which step it waits, for what, and
    how long. A simulated GPU stops with its process, perhaps in work of the step before. What a
    GPU was given is known, not for whom it waits."""
    timeout = 3 if programs.prefix else 20  # a true one may take long to get ready
    patience = timeout * (1 if len(os.sched_getaffinity(0)) > 1 else 2)
    # It tells the seconds that have really passed, on a busy machine a few more.
    waited = "|".join(map(str, range(patience, patience + 10)))
    stands = (rf"rank 0/2: step ({'2|' if how == 'stopped' else ''}3), (forward|backward|update): "
              r"(reduce_scatter of layer \d+|all_gather of layer \d+|the ranks' sums.*) "
              rf"on stream (compute|communication) has waited ({waited}) s: "
              r"a rank is stuck or gone, or a step takes longer than --timeout allows")
    for program in request.config.getoption("--failing"):
        start = time.monotonic()
        done = programs.start([programs.mpiexec, "-n", "2", OWN_HOST, program, "2", "nccl",
                               "--no-skip", "--test-case=rank 1 fails*"], HOW=how,
                              PATIENCE=str(timeout))
        took = time.monotonic() - start
        if done.code == SKIPPED:
            pytest.skip(done.out.strip())
        said = [line for line in done.err.splitlines() if line.startswith("rank ")]
        assert took < (0 if how == "throws" else patience) + 10, program
        if how == "throws":
            assert (done.code, said) == (DATA, ["rank 1/2: sample is unreadable"]), program
        elif how == "killed":
            assert done.code, program
        else:
            assert done.code == COMMUNICATION and took > patience, program
            assert said and all(re.fullmatch(stands, line) for line in said), said
