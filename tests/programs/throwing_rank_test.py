#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A rank on a GPU that fails ends the whole job in time, with a sentence and an exit code."""
import argparse
import os
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from programs import OWN_HOST, SKIPPED  # noqa: E402

DATA, COMMUNICATION = 3, 4
SECONDS = 10


class Job:
    """One job in which rank 1 of 2 fails in the middle of the third step, and how it ended."""

    def __init__(self, arguments, program, how):
        self.how = how
        self.patience = arguments.timeout * (1 if len(os.sched_getaffinity(0)) > 1 else 2)
        # A simulated GPU stops with its process, perhaps in work of the step before. What a GPU
        # was given is known, not for whom it waits.
        # It tells the seconds that have really passed, on a busy machine a few more.
        waited = "|".join(map(str, range(self.patience, self.patience + SECONDS)))
        self.stands = re.compile(
            rf"rank 0/2: step ({'2|' if how == 'stopped' else ''}3), (forward|backward|update): "
            r"(reduce_scatter of layer \d+|all_gather of layer \d+|the ranks' sums.*) "
            rf"on stream (compute|communication) has waited ({waited}) s: "
            r"a rank is stuck or gone, or a step takes longer than --timeout allows")
        start = time.monotonic()
        done = subprocess.run([arguments.mpiexec, "-n", "2", OWN_HOST, program, how,
                               str(arguments.timeout)],
                              text=True, capture_output=True, timeout=200, check=False)
        self.seconds = time.monotonic() - start
        self.code = done.returncode
        self.lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]

    def good(self):
        """The rank that still moves says in which step it waits, for what, and how long."""
        if self.how == "throws":
            sentence = "rank 1/2: sample is unreadable"
            return self.code == DATA and self.lines == [sentence] and self.seconds < SECONDS
        if self.how == "killed":
            return self.code != 0 and self.seconds < self.patience + SECONDS
        return (self.code == COMMUNICATION and bool(self.lines)
                and self.patience < self.seconds < self.patience + SECONDS
                and all(map(self.stands.fullmatch, self.lines)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--timeout", type=int, required=True, help="the programs' own")
    parser.add_argument("programs", nargs="+", help="throwing_rank, built against the chapters")
    arguments = parser.parse_args()
    failed = 0
    for program in arguments.programs:
        for how in ("throws", "killed", "stuck", "stopped"):
            job = Job(arguments, program, how)
            if any("no GPU" in line or "without" in line for line in job.lines):
                print(job.lines[0])
                return SKIPPED
            failed += not job.good()
            print(f"{'ok  ' if job.good() else 'FAIL'} {program}: {how}: exit code {job.code}, "
                  f"{job.seconds:.2f} s", *([] if job.good() else job.lines), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
