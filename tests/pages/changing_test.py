#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tries the changes of notes/changing: in a copy of the tree, in which a page's diffs and commands
have been followed, every test holds that the page names after `Now hold:`."""
import argparse
import re
import sys
from pathlib import Path

from diffs import Diff, changes
from sabotage_test import ROOT, Sabotage, Tree

NAMED = re.compile(r"Now hold:((?:\s+`[^`]+`,?)+)")


def follow(page, tree):
    for change in changes(page):
        if isinstance(change, Diff):
            old, new = tree.folder / change.old, tree.folder / change.new
            new.write_text(change.apply((new if new.exists() else old).read_text()))
        else:
            tree.check(["sh", "-ec", change])


def faults(page, tests, work):
    tree = Tree(work, [])
    follow(page, tree)
    tree.set_up("plain")
    for test in tests:
        code, output = tree.run(Sabotage(page, "", "", "", test, "", "plain"))
        print(f"{page.name}: {test}: {output[-60:]}", flush=True)
        if code != 0 or "hung" in output:
            yield f"{page.name}: \"{test}\" does not hold: {output[-1000:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the copy; is deleted")
    parser.add_argument("--only", default="", help="pages whose name contains this")
    arguments = parser.parse_args()
    found, tried = [], 0
    for page in sorted((ROOT / "notes/changing").glob(f"*{arguments.only}*.md")):
        named = NAMED.search(page.read_text())
        tests = re.findall("`([^`]+)`", named[1]) if named else []
        if not tests:
            continue
        tried += 1
        found += faults(page, tests, arguments.work.resolve())
    print("\n".join(found) or f"{tried} changes tried")
    return 1 if found or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
