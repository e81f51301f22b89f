#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How fast 1 GB of state is saved and loaded, over dd, which writes as much, to the disk, and reads
it. What memory has of a file is dropped before it is read. A ratio is a median over rounds."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
from programs import Programs

WORK = "--task mlp --width 2048 --layers 20 --batch 1 --dtype fp32 --device cpu --quiet".split()
RANKS, ROUNDS, BAR = (1, 2, 4), 5, 0.8


def dd_ms(*words):
    os.sync()
    start = time.monotonic()
    subprocess.run(["dd", "bs=1M", "status=none", *words], check=True)
    return 1e3 * (time.monotonic() - start)


def measure(programs, ranks, folder):
    """MB/s of ours and of dd, by what is done."""
    def told_ms(what, *words):
        os.sync()  # what was there before, or was removed, is not waited for here
        outcome = programs.run(ranks, "06_zero3", *WORK, *words, "--log", folder / "log")
        assert outcome.code == 0, outcome
        lines = map(json.loads, (folder / "log").read_text().splitlines())
        return next(line[what]["ms"] for line in lines if what in line)

    save = told_ms("save", "--steps", 1, "--save", folder)
    files, copy = [*folder.glob("step_1/*")], folder / "copy"
    size = sum(file.stat().st_size for file in files)
    write = dd_ms("if=/dev/zero", f"of={copy}", "conv=fsync", f"count={size}", "iflag=count_bytes")
    for file in [*files, copy]:
        with file.open() as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    load = told_ms("resume", "--steps", 2, "--resume", folder)
    read = dd_ms(f"if={copy}", "of=/dev/null")
    return [(what, size / ours / 1e3, size / theirs / 1e3)
            for what, ours, theirs in (("save", save, write), ("load", load, read))]


parser = argparse.ArgumentParser()
parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True)
parser.add_argument("--mpiexec", required=True)
arguments, rates = parser.parse_args(), {}
for ranks in RANKS * ROUNDS:
    with tempfile.TemporaryDirectory(dir=arguments.build) as folder:  # on a disk
        for what, ours, dd in measure(Programs(**vars(arguments)), ranks, Path(folder)):
            rates.setdefault((what, ranks), []).append((ours, dd, ours / dd))
medians = {key: [*map(statistics.median, zip(*rounds))] for key, rounds in rates.items()}
for (what, ranks), (ours, dd, ratio) in medians.items():
    print(f"{what}, ranks: {ranks}, MB/s: {ours:.0f}, dd: {dd:.0f}, ratio {ratio:.2f}, bar {BAR}")
sys.exit(any(ratio < BAR for *_, ratio in medians.values()))
