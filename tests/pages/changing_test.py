#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tries the changes of notes/changing: in a copy of the tree, in which a page has been followed
up to its `Now hold:`, every test holds that it names there."""
import argparse
import re
import sys
from pathlib import Path

from diffs import Diff, changes
from sabotage_test import ROOT, Sabotage, Tree

NAMED = re.compile(r"Now hold:((?:\s+`[^`]+`,?)+)")


def follow(text, tree):
    for change in changes(text):
        if isinstance(change, Diff):
            old, new = tree.folder / change.old, tree.folder / change.new
            new.write_text(change.apply((new if new.exists() else old).read_text()))
        else:
            tree.check(["sh", "-ec", change])


def faults(page, named, work):
    tree = Tree(work, [])
    follow(named.string[:named.start()], tree)
    tree.set_up("plain")
    for test in re.findall("`([^`]+)`", named[1]):
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
    for page in sorted((ROOT / "notes/changing").glob("*.md")):
        named = NAMED.search(page.read_text())
        if named and arguments.only in page.name:
            tried += 1
            found += faults(page, named, arguments.work.resolve())
    print("\n".join(found) or f"{tried} changes tried")
    return 1 if found or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
