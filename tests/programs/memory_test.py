#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a whole program holds: sixteen equal layers against the resident formulas, and the process.

1. In bf16 on four ranks, the summed peaks of parameters, gradients, optimizer and communication on
   a device over the chapter's resident formula: what borrowing costs when a layer is a sixteenth of
   all. In 07 that is as much as in 06, of less.
2. The process's own peak, as the kernel counts it, over what the ledgers say was reserved, on the
   host too: within a tenth, where that is over 256 MB. Nothing large is held outside of the books.
"""
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from programs import Programs, options_of  # noqa: E402

MLP = ["--task", "mlp"]
STATE = ["parameters", "gradients", "optimizer"]
MOST_OVER_RESIDENT = {"03_mixed_precision": 1.02, "04_zero1": 1.03, "05_zero2": 1.06,
                      "06_zero3": 1.15, "07_offload": 1.60}
MOST_OVER_RESERVED = 1.10


def memory_of(programs, chapter, ranks, *args):
    """The ledgers' part of the summary of a short run: of the device, and of its host."""
    summary = programs.logged(ranks, chapter, "--steps", 3, "--device", "cpu", *args)[2]
    return summary["memory"], summary.get("host_memory", {})


def borrowing(programs, chapter, most):
    memory, _ = memory_of(programs, chapter, 4, *MLP, "--layers", 16, "--width", 512)
    peaks = sum(memory[kind]["peak"] for kind in [*STATE, "communication"])
    ratio = peaks / sum(memory[kind]["predicted_resident"] for kind in STATE)
    print(f"{chapter:<20} peaks over the resident formula   {ratio:.3f}   at most {most:.2f}")
    return ratio <= most


def process(programs, chapter, what, *args):
    memory, host = memory_of(programs, chapter, 2, *args)
    reserved = memory["total"]["reserved"] + sum(kind["reserved"] for kind in host.values())
    ratio = memory["total"]["process_peak"] / reserved
    print(f"{what:<20} the process over {reserved / 1e6:4.0f} MB reserved   {ratio:.3f}   "
          f"at most {MOST_OVER_RESERVED:.2f}")
    return reserved > 256e6 and 1 <= ratio <= MOST_OVER_RESERVED


def main():
    options = options_of(__doc__)
    programs = Programs(options.build, options.mpiexec, patience=110)
    good = [borrowing(programs, chapter, most) for chapter, most in MOST_OVER_RESIDENT.items()]
    for chapter in ["02_distributed_adam", *MOST_OVER_RESIDENT]:
        good.append(process(programs, chapter, chapter, *MLP, "--layers", 12, "--width", 2048))
    with tempfile.TemporaryDirectory() as folder:  # the same for what is held as data
        path = Path(folder) / "text"
        path.write_bytes(b"a large text. " * (300_000_000 // 14))
        good.append(process(programs, "02_distributed_adam", "a text of 300 MB",
                            "--task", "text", "--data", path, "--width", 64))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
