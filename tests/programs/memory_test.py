#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a whole program holds: sixteen equal layers against the resident formulas, and the process.

1. In bf16 on four ranks, the summed peaks of parameters, gradients, optimizer and communication
   over the chapter's resident formula: what borrowing costs when a layer is a sixteenth of all.
2. The process's own peak, as the kernel counts it, over what the ledger says was reserved: within a
   tenth, where that is over 256 MB. Nothing large is held outside of the ledger's books.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MLP = ["--task", "mlp"]
STATE = ["parameters", "gradients", "optimizer"]
MOST_OVER_RESIDENT = {"03_mixed_precision": 1.02, "04_zero1": 1.03, "05_zero2": 1.06,
                      "06_zero3": 1.15}
MOST_OVER_RESERVED = 1.10


def run(arguments, chapter, ranks, options):
    """The summary of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        subprocess.run([arguments.mpiexec, "-n", str(ranks), arguments.build / chapter / chapter,
                        "--steps", "3", "--device", "cpu", "--quiet", "--log", log, *options],
                       check=True)
        return json.loads(log.read_text().splitlines()[-1])["summary"]


def borrowing(arguments, chapter, most):
    memory = run(arguments, chapter, 4, [*MLP, "--layers", "16", "--width", "512"])["memory"]
    peaks = sum(memory[kind]["peak"] for kind in [*STATE, "communication"])
    resident = sum(memory[kind]["predicted_resident"] for kind in STATE)
    ratio = peaks / resident
    print(f"{chapter:<20} peaks over the resident formula   {ratio:.3f}   at most {most:.2f}")
    return ratio <= most


def process(arguments, chapter):
    options = [*MLP, "--layers", "12", "--width", "2048"]
    memory = run(arguments, chapter, 2, options)["memory"]["total"]
    ratio = memory["process_peak"] / memory["reserved"]
    megabytes = memory["reserved"] / 1e6
    print(f"{chapter:<20} the process over {megabytes:4.0f} MB reserved   {ratio:.3f}   "
          f"at most {MOST_OVER_RESERVED:.2f}")
    return memory["reserved"] > 256e6 and 1 <= ratio <= MOST_OVER_RESERVED


def text(arguments):
    """The same for what is held as data: a text of 300 MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text"
        path.write_bytes(b"a large text. " * (300_000_000 // 14))
        memory = run(arguments, "02_distributed_adam", 2,
                     ["--task", "text", "--data", path, "--width", "64"])["memory"]["total"]
    ratio = memory["process_peak"] / memory["reserved"]
    print(f"a text of 300 MB     the process over {memory['reserved'] / 1e6:4.0f} MB reserved   "
          f"{ratio:.3f}   at most {MOST_OVER_RESERVED:.2f}")
    return 1 <= ratio <= MOST_OVER_RESERVED


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--mpiexec", required=True)
    arguments = parser.parse_args()
    good = [borrowing(arguments, chapter, most) for chapter, most in MOST_OVER_RESIDENT.items()]
    for chapter in ["02_distributed_adam", *MOST_OVER_RESIDENT]:
        good.append(process(arguments, chapter))
    good.append(text(arguments))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
