#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tries every sabotage that the pages offer under "break it", as `./tutorial break` does one."""
import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from page_reader import ROOT

from runs import Failure
from sabotage import OPTIONS, PAGES, sabotages, trial, tried


def missed(build, chosen, work):
    """How many are, one after the other in one tree."""
    tree, count = trial(work, build), 0
    for page, diff in chosen:
        start = time.monotonic()
        try:
            _, why = tried(diff, tree)
        except Failure as error:
            why = str(error)
        count += bool(why)
        print(f"{'MISSED' if why else 'caught'}  {page}: {diff.old}: {diff.test} "
              f"({time.monotonic() - start:.0f} s) {why}", flush=True)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(",")[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build/sabotage",
                        help="folder for the copies")
    work = parser.parse_args().work.resolve()
    found = [(page.relative_to(ROOT), diff) for page in PAGES for diff in sabotages(page)]
    by_build = {build: [each for each in found if each[1].build == build] for build in OPTIONS}
    with ThreadPoolExecutor() as both:
        jobs = [both.submit(missed, build, of_build, work) for build, of_build in by_build.items()]
        count = sum(job.result() for job in jobs)
    print(f"{len(found) - count} of {len(found)} sabotages caught")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
