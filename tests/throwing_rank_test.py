#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A rank that throws ends the whole job within two seconds, naming itself, with its exit code."""
import argparse
import subprocess
import sys
import time

DATA_ERROR = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("programs", nargs="+", help="throwing_rank, built against the chapters")
    arguments = parser.parse_args()
    failed = 0
    for program in arguments.programs:
        for ranks, bad_rank, step in ((1, 0, 2), (3, 1, 0), (4, 3, 2)):
            command = [arguments.mpiexec, "-n", str(ranks), program, str(bad_rank), str(step)]
            start = time.monotonic()
            done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
            seconds = time.monotonic() - start
            ours = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
            good = (done.returncode == DATA_ERROR and seconds < arguments.seconds
                    and ours == [f"rank {bad_rank}/{ranks}: sample is unreadable"])
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {program} rank {bad_rank} of {ranks}: exit code "
                  f"{done.returncode}, {seconds:.2f} s")
            if not good:
                print(done.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
