#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A rank that fails ends the whole job in time, with a sentence and a meaningful exit code."""
import argparse
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from programs import OWN_HOST, SKIPPED  # noqa: E402

DATA, COMMUNICATION = 3, 4
PATIENCE = 3  # seconds for which the programs wait for a stuck rank


def ends(mpiexec, program, ranks, bad_rank, step, *how):
    """Starts a job in which one rank fails; returns its exit code, its own lines and the time."""
    command = [mpiexec, "-n", str(ranks), *how[:1], program, str(bad_rank), str(step), *how[1:]]
    command = [word for word in command if word]
    start = time.monotonic()
    done = subprocess.run(command, text=True, capture_output=True, timeout=200, check=False)
    ours = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    return done.returncode, ours, time.monotonic() - start


def throws(code, lines, seconds, bad_rank, ranks, limit):
    return (code == DATA and seconds < limit
            and lines == [f"rank {bad_rank}/{ranks}: sample is unreadable"])


def is_given_up(code, lines, seconds, bad_rank, ranks, limit):
    """The others name how long they waited, and do not wait for ever."""
    return (code == COMMUNICATION and PATIENCE < seconds < PATIENCE + limit and bool(lines)
            and all("s for its GPU" in line for line in lines)
            and not any(line.startswith(f"rank {bad_rank}/{ranks}") for line in lines))


def is_killed(code, _lines, seconds, _bad_rank, _ranks, limit):
    return code != 0 and seconds < PATIENCE + limit


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--nccl", action="store_true", help="the ranks are GPUs")
    parser.add_argument("programs", nargs="+", help="throwing_rank, built against the chapters")
    arguments = parser.parse_args()
    plans = [((), throws, plan) for plan in ((1, 0, 2), (3, 1, 0), (4, 3, 2))]
    if arguments.nccl:
        plans = [((OWN_HOST, "nccl", how), check, (2, 1, 2)) for how, check in
                 (("throws", throws), ("stuck", is_given_up), ("killed", is_killed))]
    failed = 0
    for program in arguments.programs:
        for how, check, (ranks, bad_rank, step) in plans:
            code, lines, seconds = ends(arguments.mpiexec, program, ranks, bad_rank, step,
                                        *(how or ("",)))
            if arguments.nccl and any("no GPU" in line or "without" in line for line in lines):
                print(lines[0])
                return SKIPPED
            good = check(code, lines, seconds, bad_rank, ranks, arguments.seconds)
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {program} rank {bad_rank} of {ranks} "
                  f"{' '.join(how[1:])}: exit code {code}, {seconds:.2f} s")
            if not good:
                print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
