# SPDX-License-Identifier: MIT
"""What is promised of runs on GPUs, true or simulated ones, beside the same bits."""
import os
import re
import time

import pytest
from programs import COMMUNICATION, DATA, OWN_HOST, SKIPPED, STANDS, Programs, options_on

# A GPU multiplies matrices in another order, and each step goes on from what the one before left,
# so differences grow: from 2^-24 by at most some 1000 in fp32, in 16 bit, where another order may
# round to the other neighbour, from 2^-8 (bf16) and 2^-11 (fp16) to a few roundings of bf16.
BOUNDS = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
# Ranks, task, dtype, how they talk and what that is compared with; None: a run on the CPU. NCCL's
# own sums on three ranks against those in rank order: in fp16 they overflow where ours do not, and
# a step more is skipped.
LOSSES = [*((1, task, dtype, "mpi", None) for task in ("text", "mlp") for dtype in BOUNDS),
          *((3, "mlp", dtype, "native", "nccl") for dtype in ("fp32", "bf16"))]


@pytest.mark.parametrize("ranks, task, dtype, way, other", LOSSES)
def test_losses(gpu, ranks, task, dtype, way, other):
    """The largest difference over 100 steps, relative to the loss."""
    def losses(way):
        programs, chapter = gpu if way else Programs(gpu.build, gpu.mpiexec), "03_mixed_precision"
        # A step that is skipped on one side only would say nothing: no scale that overflows.
        scale = ["--loss-scale", "128"] if dtype == "fp16" else []
        steps = programs.logged(ranks, chapter, "--steps", 100, "--task", task, "--width", 64,
                                "--layers", 4, "--dtype", dtype, *scale,
                                *options_on(way, chapter))[1]
        return [step["loss"] for step in steps]

    differences = [abs(a - b) / b for a, b in zip(losses(way), losses(other), strict=True)]
    assert max(differences) <= BOUNDS[dtype]


# How, and the items that a simulated GPU's queue holds: who adds one more waits.
@pytest.mark.parametrize("how, queue", [("throws", 1000), ("killed", 1000), ("stuck", 1000), *(
    ("stopped", queue) for queue in (1000, 300, 100, 30, 10, 3))])
def test_a_rank_fails(programs, request, how, queue):
    """Rank 1 of 2 fails in the middle of the third step: the whole job ends in time, with a
    sentence and an exit code. A rank that can says in which step nothing ended any more, what began
    last, and how long ago. Only a GPU would know for whom it waits."""
    if not programs.prefix and queue < 1000:
        pytest.skip("a GPU has its own queue")
    # A true one may take long to get ready; on busy cores a rank may be late by seconds.
    timeout, late = 5 if programs.prefix else 20, 20
    patience = timeout * (1 if len(os.sched_getaffinity(0)) > 1 else 2)
    waited = "|".join(map(str, range(patience, patience + late)))
    stands = "rank [01]/2: step [23], " + STANDS.format(f"({waited})")
    for program in request.config.getoption("--failing"):
        start = time.monotonic()
        done = programs.start([programs.mpiexec, "-n", "2", OWN_HOST, program, "2", "nccl",
                               "--no-skip", "--test-case=rank 1 fails*"], HOW=how,
                              PATIENCE=str(timeout), SIMULATED_QUEUE=str(queue))
        took = time.monotonic() - start
        if done.code == SKIPPED:
            pytest.skip(done.out.strip())
        said = [line for line in done.err.splitlines() if line.startswith("rank ")]
        assert took < (0 if how == "throws" else patience) + late, (program, done)
        if how == "throws":
            assert (done.code, said) == (DATA, ["rank 1/2: sample is unreadable"]), done
        elif how == "killed":
            assert done.code or programs.loses_codes, program
        else:
            assert done.code == COMMUNICATION and took > patience, (program, done)
            assert said and all(re.fullmatch(stands, line) for line in said), done


@pytest.mark.parametrize("chapter", ("02_distributed_adam", "06_zero3"))
def test_a_link_fails(programs, chapter):
    """NCCL's own words end the job, long before the watchdog's."""
    if not programs.prefix:
        pytest.skip("no link of a GPU can be broken from here")
    done = programs.run(2, chapter, "--task", "mlp", "--width", 64, "--comm", "nccl",
                        SIMULATED_NCCL_BREAKS="30")
    assert done.code == COMMUNICATION and "NCCL: remote process exited" in done.err, done
