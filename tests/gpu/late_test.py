#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""07 on simulated GPUs of which one stream is always late: the run must be 06's, whose optimizer
state lies on the GPU, to the last bit. Without the wait for gradients to be reduced, or that for
the host's Adam, it differs when `compute` is late; without the one for gradients to be down, or
that of gathers for parameters to be up, when `copies` is."""
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))
from programs import Programs, gpu_options, options_of  # noqa: E402

PREFIX = "simulated_gpu_"
STREAMS = ["compute", "copies", "communication"]  # of the GPU, in the order of their construction
LATE_US = 2000
RUN = ("--task mlp --width 64 --layers 4 --batch 4 --steps 3 --accumulate 2 --clip 0.5 "
       "--dtype bf16")


def facts(programs, chapter, prefetch=1, late=None):
    """What a run computed; late: one of STREAMS."""
    delays = ",".join(str(LATE_US * (stream == late)) for stream in STREAMS)
    os.environ["SIMULATED_CUDA_DELAY_US"] = delays
    _, steps, summary = programs.logged(2, chapter, *RUN.split(), "--prefetch", prefetch,
                                        *gpu_options(chapter, "mpi"))
    return [(step["loss"], step["grad_norm"]) for step in steps], summary["layer_digests"]


def main():
    options = options_of(__doc__)
    programs = Programs(options.build, options.mpiexec, prefix=PREFIX)
    expected = facts(programs, "06_zero3")
    failed = 0
    for late in STREAMS:
        for prefetch in (0, 1, 2):
            equal = facts(programs, "07_offload", prefetch, late) == expected
            failed += not equal
            print(f"{late} is late, prefetch {prefetch}: {'equal' if equal else 'DIFFERENT'}",
                  flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
