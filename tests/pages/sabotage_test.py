#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tries every sabotage that the pages offer under "break it", and sees the named test fail: in a
copy of the tree it must fail, and name the test case (page_reader.py)."""
import argparse
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from page_reader import ROOT, changes, copied

from trial import Trial

RACE = "WARNING: ThreadSanitizer: data race"
OPTIONS = {"plain": [], "tsan": ["-Db_sanitize=thread", "-Db_lundef=false"]}


def read_pages():
    for page in sorted([*ROOT.glob("0*/README.md"), ROOT / "notes/streams.md"]):
        found = list(changes(page.read_text()))
        if len(found) < 3 or not all(diff.test for diff in found):
            sys.exit(f"{page}: a diff without its \"Caught by\", or fewer than 3 sabotages")
        yield from ((page.relative_to(ROOT), diff) for diff in found)


def caught(diff, trial):
    """Empty when the sabotage was found out as its page says; else what happened instead."""
    file, choice = trial.sources / diff.old, [diff.test]
    if diff.build == "tsan":  # doctest separates filters by commas; ? stands for any character
        case = shlex.quote(f"--test-case={diff.case.replace(',', '?')}")
        choice += [f"--test-args={case}", "--timeout-multiplier=3"]
    original = file.read_text()  # that its lines are there pages_test.py sees
    try:
        file.write_text(diff.apply(original))
        results, printed = trial.test(*choice)
    except ValueError as error:
        return str(error)
    finally:
        file.write_text(original)
    if [result["result"] for result in results] != ["FAIL"]:
        return f"\"{diff.test}\" did not fail: {printed[-3000:]}"
    said = " ".join(results[0]["said"].split())
    expected = RACE if diff.build == "tsan" else diff.case
    return "" if expected in said else f"\"{expected}\" is not in: {said[-2000:]}"


def missed(build, sabotages, work):
    """How many are, one after the other in one tree."""
    trial, count = Trial(copied(work / build), work / build / "build", *OPTIONS[build]), 0
    for page, diff in sabotages:
        start = time.monotonic()
        why = caught(diff, trial)
        count += bool(why)
        print(f"{'MISSED' if why else 'caught'}  {page}: {diff.old}: {diff.test} "
              f"({time.monotonic() - start:.0f} s) {why}", flush=True)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build/sabotage",
                        help="folder for the copies; is deleted")
    parser.add_argument("--only", default="", help="pages and files whose name contains this")
    arguments = parser.parse_args()
    chosen = [each for each in read_pages() if arguments.only in f"{each[0]} {each[1].old}"]
    by_build = {build: [each for each in chosen if each[1].build == build] for build in OPTIONS}
    if not chosen:
        sys.exit("no sabotage is named so")
    with ThreadPoolExecutor() as both:
        jobs = [both.submit(missed, build, sabotages, arguments.work.resolve())
                for build, sabotages in by_build.items() if sabotages]
        count = sum(job.result() for job in jobs)
    print(f"{len(chosen) - count} of {len(chosen)} sabotages caught")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
