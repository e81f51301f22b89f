#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Runs steps on slow modelled links, plays them again from their traces, and compares the times.

It prints rank 0's medians in ms. In a played step computation takes its measured time; messages,
copies and the disk take the model's. In a second row each message takes longer by the run's mean
delay, because threads that share cores answer late. In that row, on a quiet machine, a step must
be within 5 % of the measured one, exposed messages within 15 %; else the exit code is 1."""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from recording import Trace
from replay import Replay, measured, usual
from runs import ROOT, Failure, Programs, finish
from simulate import Machine

MODEL = "--task mlp --layers 6 --width 512 --batch 4096 --steps 8"
SETTINGS = (  # chapter, ranks, options of the programs
    ("02", 2, "--link 0.1"),
    ("04", 2, "--link 0.05"),
    ("05", 2, "--link 0.05 --accumulate 3"),
    ("06", 2, "--link 0.05 --prefetch 0"),
    ("06", 2, "--link 0.05 --prefetch 1"),
    ("06", 2, "--link 0.05 --prefetch 2 --accumulate 2"),
    ("06", 3, "--link 0.1 --latency 20000"),
    ("07", 2, "--link 0.05 --bus 0.01 --prefetch 0"),
    ("07", 2, "--link 0.1 --bus 0.002 --accumulate 2"),
    ("08", 2, "--link 0.1 --bus 0.01 --disk 0.02"),
    ("08", 2, "--link 0.1 --bus 0.01 --state host --accumulate 2"))
BARS = {"step": 0.05, "messages exposed": 0.15}  # the largest relative errors


def compared(trace, words):
    """Returns ([medians that were measured, played, played with late messages] of a traced run
    with the options `words`, by how many ms a message was late)."""
    given = dict(zip(words[::2], words[1::2]))
    machine = Machine(**{name: float(given[f"--{name}"]) for name in
                         ("link", "latency", "bus", "disk") if f"--{name}" in given})
    plain = Replay(trace, machine)
    found, late = [usual(measured(trace)), usual(plain.steps())], statistics.mean(plain.handshakes)
    return [*found, usual(Replay(trace, machine, late=late).steps())], late


def rows(programs, settings, out):
    """Prints two rows per setting, and yields the relative errors of the second."""
    heads = f"{'ran':>9}{'played':>8}{'error':>9}"
    print(f"ms of{'':<23}{'a step':>23}{'messages exposed':>27}\n{'':<26}{heads}{heads}")
    for chapter, ranks, words in settings:
        name = next(path.name for path in ROOT.glob(f"{chapter}_*"))
        trace = out / "trace.json"
        options = [*MODEL.split(), *words.split(), "--trace", str(trace)]
        programs.prepare("log", name, ranks, *options, dtype="bf16").execute()
        (ran, *played), late = compared(Trace(trace), words.split())
        print(f"{chapter} on {ranks} ranks, {words}")
        for which, of in zip(("as modelled", f"handshakes of {late:.1f} ms"), played):
            errors = {what: of[what] / ran[what] - 1 for what in BARS}
            print(f"  {which:<24}" + "".join(
                f"{ran[what]:>9.0f}{of[what]:>8.0f}{errors[what]:>9.1%}" for what in BARS),
                flush=True)
        yield errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="that of the programs")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    parser.add_argument("--only", default="", metavar="NN", help="this chapter's settings alone")
    options = parser.parse_args()
    settings = [of for of in SETTINGS if of[0].startswith(options.only)]
    if not settings:
        raise Failure(f"--only {options.only}: settings are of 02 and 04 to 08", 2)
    with tempfile.TemporaryDirectory(prefix="validate_") as out:
        programs = Programs(options.build, options.mpiexec, Path(out))
        errors = [*rows(programs, settings, Path(out))]
    return any(abs(error[what]) > bar for error in errors for what, bar in BARS.items())


if __name__ == "__main__":
    finish(main, "validate: ")
