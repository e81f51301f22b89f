# SPDX-License-Identifier: MIT
"""Tries sabotages, the edits that pages offer to break a chapter, in a copy of the repository. The
test that the page names must fail there, in the case that the page names.

`./tutorial break` calls this with a chapter, to list its sabotages; with a number too, to check
that this number exists; and with an MPI too, to try the sabotage. Exit code 0: the sabotage is
caught, 1: it is not."""
import shlex
import sys

import page_reader
from runs import ROOT, Failure, finish, folded
from trainers import changes, print_code
from trial import LINES, RACE, Tree, calls, cut, expect_results, screen

# Meson's options, by kind of build.
OPTIONS = {"plain": [], "tsan": ["-Db_sanitize=thread", "-Db_lundef=false"]}
WAITS = ROOT / "notes/waits.txt"
PAGES = [*sorted(ROOT.glob("0*/README.md")), WAITS, ROOT / "notes/llama.md"]


def sabotages(page):
    """Returns the sabotages of a page, as Diffs in their order."""
    found = list(page_reader.changes(page.read_text("utf-8"), page.relative_to(ROOT)))
    if not found or not all(diff.test for diff in found):
        raise Failure(f"{page}: a diff without its \"Caught by\", or no sabotage", 3)
    return found


def of_chapter(chapter):
    """Returns the sabotages of a chapter's page, and those of waits.txt that its tests catch."""
    return sabotages(ROOT / chapter / "README.md") + [
        diff for diff in sabotages(WAITS) if diff.test.startswith(chapter)]


def tree_for(work, build, *options):
    """Returns the copy of the repository, in the folder `work`, for a kind of build of OPTIONS."""
    return Tree(work / build, work / f"{build}.build", *OPTIONS[build], *options)


def tried(diffs, tree):
    """Applies the diffs in turn, and runs the test that must catch the last one. Returns Meson's
    record of that test; raises a Failure unless it fails in the case that the diff names."""
    *_, diff = diffs
    choice, expected = [diff.test], diff.case
    if diff.build == "tsan":  # doctest separates filters by commas; ? stands for any character
        case = shlex.quote(f"--test-case={diff.case.replace(',', '?')}")
        choice += [f"--test-args={case}", "--timeout-multiplier=3"]
        expected = RACE  # here a race must be reported, not a case
    tree.put(page_reader.edited(diffs))
    results, printed = tree.test(*choice)
    expect_results(["FAIL"], results, printed)
    said = " ".join(results[0]["said"].split())
    if expected not in said:
        raise Failure(f"\"{expected}\" is not in: {said[-2000:]}")
    return results[0]


def print_diff(diff):
    """Prints a diff as hunks, each with its first line number."""
    text = (ROOT / diff.old).read_text("utf-8")
    print_code(changes(text, diff.apply(text), diff.old))


def show(diff, mpi):
    """Prints what a sabotage changes, and what the test that catches it says."""
    print(diff.title)
    print_diff(diff)
    print(*folded(f"Compiled and run in a copy, build/break/{diff.build}: {diff.test}"),
          sep="\n", flush=True)
    try:
        result = tried([diff], tree_for(ROOT / "build/break", diff.build, f"-Dmpi={mpi}"))
    except Failure as failure:
        raise Failure(f"this is not caught as its page says: {failure}") from None
    said = result["said"]
    lines = screen([result], [result], LINES - 4)[1:]
    if RACE in said:
        lines = [RACE, *cut(calls(said), LINES // 2)]
    print(*lines, sep="\n")
    print(*folded(f"Caught, as its page says, in the case \"{diff.case}\"."), sep="\n")


def main():
    chapter, number, mpi, *_ = *sys.argv[1:], "", ""
    found = of_chapter(chapter)
    if not number:
        print(f"Which test finds it? ./tutorial break {chapter[:2]} NUMBER tries one, in a copy.\n")
        for at, diff in enumerate(found, 1):
            print(f"{at:3}  {diff.title:57.57} {diff.old.rpartition('/')[2]:.18}")
    elif number not in map(str, range(1, len(found) + 1)):
        raise Failure(f"{chapter} has the sabotages 1 to {len(found)}, and no '{number}'", 2)
    elif mpi:
        show(found[int(number) - 1], mpi)


if __name__ == "__main__":
    finish(main, "tutorial: break: ")
