# SPDX-License-Identifier: MIT
"""On GPUs, true or simulated, losses are near the CPU's, and failing ranks and links end a run."""
import os
import re
import time

import pytest
from programs import COMMUNICATION, DATA, OWN_HOST, SKIPPED, STANDS, Programs, options_on

# The largest relative differences of losses. A GPU adds in another order, and each step begins with
# the differences of the step before, so they grow: in fp32 from 2^-24 up to 1000 times, in 16 bit
# from one rounding (2^-8 of bf16, 2^-11 of fp16) to a few of bf16.
BOUNDS = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
# Ranks, task, dtype, way of communicating, and the way whose losses are compared; None is the CPU.
# NCCL's own sums on three ranks are compared with sums in rank order, but not in fp16, where NCCL's
# may overflow, and then skip another step.
LOSSES = [*((1, task, dtype, "mpi", None) for task in ("text", "mlp") for dtype in BOUNDS),
          *((3, "mlp", dtype, "native", "nccl") for dtype in ("fp32", "bf16"))]


@pytest.mark.parametrize("ranks, task, dtype, way, other", LOSSES)
def test_losses(gpu, ranks, task, dtype, way, other):
    """The largest difference over 100 steps, relative to the loss."""
    def losses(way):
        programs, chapter = gpu if way else Programs(gpu.build, gpu.mpiexec), "03_mixed_precision"
        # With this scale no step is skipped: a step that only one side skips would differ.
        scale = ["--loss-scale", "128"] if dtype == "fp16" else []
        steps = programs.logged(ranks, chapter, "--steps", 100, "--task", task, "--width", 64,
                                "--layers", 4, "--dtype", dtype, *scale,
                                *options_on(way, chapter))[1]
        return [step["loss"] for step in steps]

    differences = [abs(a - b) / b for a, b in zip(losses(way), losses(other), strict=True)]
    assert max(differences) <= BOUNDS[dtype]


# How a rank fails, and the length of a simulated GPU's queue. Who adds to a full queue waits.
@pytest.mark.parametrize("how, queue", [("throws", 1000), ("killed", 1000), ("stuck", 1000), *(
    ("stopped", queue) for queue in (1000, 300, 100, 30, 10, 3))])
def test_a_rank_fails(programs, request, how, queue):
    """Rank 1 of 2 fails in the middle of the third step. The job ends in time, with a sentence and
    an exit code. A rank that still runs says in which step it stands still, what began last, and
    how long ago. It names no other rank, because only the GPU knows for whom it waits."""
    if not programs.prefix and queue < 1000:
        pytest.skip("a GPU has its own queue")
    # A true GPU may need seconds to start. On busy cores a rank may be late by seconds.
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
    """NCCL's error ends the job, before the watchdog would."""
    if not programs.prefix:
        pytest.skip("no link of a GPU can be broken from here")
    done = programs.run(2, chapter, "--task", "mlp", "--width", 64, "--comm", "nccl",
                        SIMULATED_NCCL_BREAKS="30")
    assert done.code == COMMUNICATION and "NCCL: remote process exited" in done.err, done
