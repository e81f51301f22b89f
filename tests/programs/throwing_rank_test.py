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


class Job:
    """One job in which one rank fails in the middle of a step, and how it ended."""

    def __init__(self, arguments, program, how, ranks, bad_rank, step):
        cores = len(os.sched_getaffinity(0))
        self.how, self.ranks, self.bad_rank = how, ranks, bad_rank
        self.limit = arguments.seconds
        self.patience = arguments.timeout * max(1, -(-ranks // cores))  # of ranks that share cores
        nccl = arguments.nccl
        # A simulated GPU stops with its process, perhaps in work of the step before.
        steps = f"{step}|{step + 1}" if nccl and how == "stopped" else step + 1
        # What a GPU was given is known, not for whom it waits.
        missing = "" if nccl else f" for ranks? {bad_rank}"
        self.stands = re.compile(
            rf"rank (?!{bad_rank}/)\d+/\d+: step ({steps}), (forward|backward|update): "
            r"(reduce_scatter of layer \d+|all_gather of layer \d+|the ranks' sums.*) "
            rf"on stream (compute|communication) has waited {self.patience} s{missing}: "
            r"a rank is stuck or gone, or a step takes longer than --timeout allows")
        command = [arguments.mpiexec, "-n", ranks, *([OWN_HOST] if nccl else []), program,
                   bad_rank, step, how, arguments.timeout, *(["nccl"] if nccl else [])]
        start = time.monotonic()
        done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=200,
                              check=False)
        self.seconds = time.monotonic() - start
        self.code = done.returncode
        self.lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]

    def good(self):
        """Of ranks that stand still each other one says in which step it waits, for what, how long,
        and for whom."""
        if self.how == "throws":
            sentence = f"rank {self.bad_rank}/{self.ranks}: sample is unreadable"
            return self.code == DATA and self.lines == [sentence] and self.seconds < self.limit
        if self.how == "killed":
            return self.code != 0 and self.seconds < self.patience + self.limit
        return (self.code == COMMUNICATION and bool(self.lines)
                and self.patience < self.seconds < self.patience + self.limit
                and all(map(self.stands.fullmatch, self.lines)))


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
