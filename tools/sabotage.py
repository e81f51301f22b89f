# SPDX-License-Identifier: MIT
"""Sabotages: the edits that pages offer to break a chapter, each tried in a copy of the tree, where
the test that its page names must fail, and name the test case.

`./tutorial break` calls this with a chapter, to list them; with a number, to know whether there is
that one; and with an MPI, to try it. Exit code 0 means that it is caught, 1 not."""
import shlex
import sys

import page_reader
from exercise import LINES, RACE, TSAN, calls, cut, screen
from runs import ROOT, Failure, Trial, finish, folded
from trainers import changes, print_code

OPTIONS = {"plain": [], "tsan": TSAN}
STREAMS = ROOT / "notes/streams.md"
PAGES = [*sorted(ROOT.glob("0*/README.md")), STREAMS, ROOT / "notes/llama.md"]


def sabotages(page):
    """A page's, as Diffs in their order."""
    found = list(page_reader.changes(page.read_text("utf-8"), page.relative_to(ROOT)))
    if len(found) < 2 or not all(diff.test for diff in found):
        raise Failure(f"{page}: a diff without its \"Caught by\", or fewer than 2 sabotages", 3)
    return found


def of_chapter(chapter):
    """Its page's, and those of streams.md that its tests catch."""
    return sabotages(ROOT / chapter / "README.md") + [
        diff for diff in sabotages(STREAMS) if diff.test.startswith(chapter)]


def trial(work, build, *options):
    return Trial(page_reader.copied(work / build), work / f"{build}.build", *OPTIONS[build],
                 *options)


def tried(diff, trial):
    """Meson's notes of the test that its page names, and why it is not caught; empty if it is."""
    file, choice = trial.sources / diff.old, [diff.test]
    if diff.build == "tsan":  # doctest separates filters by commas; ? stands for any character
        case = shlex.quote(f"--test-case={diff.case.replace(',', '?')}")
        choice += [f"--test-args={case}", "--timeout-multiplier=3"]
    original = file.read_text("utf-8")
    try:
        file.write_text(diff.apply(original), "utf-8")
        results, printed = trial.test(*choice)
    finally:
        file.write_text(original, "utf-8")
    if [result["result"] for result in results] != ["FAIL"]:
        return results, f"\"{diff.test}\" did not fail: {printed[-3000:]}"
    said = " ".join(results[0]["said"].split())
    expected = RACE if diff.build == "tsan" else diff.case
    return results, "" if expected in said else f"\"{expected}\" is not in: {said[-2000:]}"


def show(diff, mpi):
    """Prints what is changed, and what catches it says."""
    text = (ROOT / diff.old).read_text("utf-8")
    print(diff.title)
    print_code(changes(text, diff.apply(text), diff.old))
    print(*folded(f"Compiled and run in a copy, build/break/{diff.build}: {diff.test}"),
          sep="\n", flush=True)
    results, why = tried(diff, trial(ROOT / "build/break", diff.build, f"-Dmpi={mpi}"))
    if why:
        raise Failure(f"this is not caught as its page says: {why}")
    said = results[0]["said"]
    print(*[RACE, *cut(calls(said), LINES // 2)] if RACE in said else
          screen(results, results, LINES - 4)[1:], sep="\n")
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
