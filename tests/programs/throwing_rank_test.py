#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A rank that fails ends the whole job in time, with a sentence and a meaningful exit code."""
import argparse
import os
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from programs import OWN_HOST, SKIPPED  # noqa: E402

DATA, COMMUNICATION = 3, 4
STANDS = re.compile(r"rank (\d+)/\d+: step (\d+), (forward|backward|update): "
                    r"(reduce_scatter of layer \d+|all_gather of layer \d+|the ranks' sums.*) "
                    r"on stream (compute|communication) has waited (\d+) s(?: for ranks? (.*))?: "
                    r"a rank is stuck or gone, or a step takes longer than --timeout allows")


class Job:
    """One job in which one rank fails in the middle of a step, and how it ended."""

    def __init__(self, arguments, program, how, ranks, bad_rank, step):
        cores = len(os.sched_getaffinity(0))
        self.how, self.ranks, self.bad_rank, self.step = how, ranks, bad_rank, step
        self.limit = arguments.seconds
        self.patience = arguments.timeout * max(1, -(-ranks // cores))  # of ranks that share cores
        self.nccl = arguments.nccl
        command = [arguments.mpiexec, "-n", ranks, *([OWN_HOST] if self.nccl else []), program,
                   bad_rank, step, how, arguments.timeout, *(["nccl"] if self.nccl else [])]
        start = time.monotonic()
        done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=200,
                              check=False)
        self.seconds = time.monotonic() - start
        self.code = done.returncode
        self.lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]

    def good(self):
        if self.how == "throws":
            sentence = f"rank {self.bad_rank}/{self.ranks}: sample is unreadable"
            return self.code == DATA and self.lines == [sentence] and self.seconds < self.limit
        if self.how == "killed":
            return self.code != 0 and self.seconds < self.patience + self.limit
        in_time = self.patience < self.seconds < self.patience + self.limit
        return (self.code == COMMUNICATION and in_time and bool(self.lines)
                and all(map(self.names_it, self.lines)))

    def names_it(self, line):
        """Another rank says in which step it waits, for what, how long, and for whom."""
        found = STANDS.fullmatch(line)
        if not found:
            return False
        rank, step, _, _, _, seconds, missing = found.groups()
        # A simulated GPU stops with its process, perhaps in work of the step before.
        earlier = self.nccl and self.how == "stopped"
        # What a GPU was given is known, not for whom it waits.
        return (int(rank) != self.bad_rank and self.step + 1 - earlier <= int(step) <= self.step + 1
                and int(seconds) == self.patience
                and missing == (None if self.nccl else str(self.bad_rank)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="in which a job has to end")
    parser.add_argument("--timeout", type=int, default=3, help="the programs' own")
    parser.add_argument("--nccl", action="store_true", help="the ranks are GPUs")
    parser.add_argument("--still", action="store_true", help="ranks that stand still, no others")
    parser.add_argument("programs", nargs="+", help="throwing_rank, built against the chapters")
    arguments = parser.parse_args()
    plans = [("throws", 1, 0, 2), ("throws", 3, 1, 0), ("throws", 4, 3, 2), ("killed", 2, 1, 2)]
    if arguments.still:
        plans = [("stopped", 2, 1, 2), ("stuck", 2, 0, 1), ("stopped", 3, 1, 0)]
    if arguments.nccl:
        plans = [(how, 2, 1, 2) for how in ("throws", "killed", "stuck", "stopped")]
    failed = 0
    for program in arguments.programs:
        for plan in plans:
            job = Job(arguments, program, *plan)
            if arguments.nccl and any("no GPU" in line or "without" in line for line in job.lines):
                print(job.lines[0])
                return SKIPPED
            failed += not job.good()
            print(f"{'ok  ' if job.good() else 'FAIL'} {program}: rank {job.bad_rank} of "
                  f"{job.ranks} {job.how}: exit code {job.code}, {job.seconds:.2f} s",
                  *([] if job.good() else job.lines), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
