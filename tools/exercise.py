# SPDX-License-Identifier: MIT
"""Write the chapters yourself: the trainer of the chapter before, tried by the chapter's own tests.
`./tutorial exercise` calls this with the chapter before and the chapter. The reader edits a file
below build/exercise. At every save a copy of the checkout takes that file in place of its own, and
Meson builds and runs the exercise's tests there. The reader writes, by exercise:

* 01: Adam's update of one element, from an empty function.
* 02 to 05 and 07: the trainer, from that of the chapter before under the card of the chapter. 06:
  the same, but with one slot, as by the first diff of 06's page, and under a card that says so.
* 02b and 05b: messages beside computation, from the chapter's trainer (notes/changing/overlap.md).
* 06b and 08: the waits, from the chapter's window without them, built with ThreadSanitizer.
* 06c: a window that keeps the last layer, from 06's, under formulas that notes/fsdp2.diff makes.

Exit code 0: everything holds, 1: not yet."""
import argparse
import contextlib
import fcntl
import os
import re
import sys
import time
from pathlib import Path

import page_reader
import trainers
from runs import ROOT, finish, folded
from sabotage import tree_for
from trial import LINES, cut, screen, write

PATIENCE = "20"  # seconds without progress that end a test; see tests/ranks/ranks_main.cpp
LEFT_OUT = ["--no-suite=long", "--no-suite=simulated", "--no-suite=gpu"]
ADAM = Path("common/compute/adam_element.hpp")
HINT = re.compile(r"^\d+\. (.*(?:\n   .*)*)", re.MULTILINE)
WINDOW, STATE_WINDOW = Path("06_zero3/layer_window.hpp"), Path("08_infinity/state_window.hpp")
KEPT = ROOT / "notes/fsdp2.diff"  # diffs for page_reader.py; each begins with "---"
ONE_OF_EACH = ".borrowed = {.parameters = 1, .gradients = 1},"  # in 06's card: room for one layer
ON_RANKS = [f"{WINDOW.parts[0]} on {ranks} ranks" for ranks in (1, 2, 3, 4)]
LATE = f"{WINDOW.parts[0]} schedules on 2 ranks"  # a test that delays each stream in turn
OVERLAP = ROOT / "notes/changing/overlap.md"


class Exercise:
    """`trainer` is the file that the reader edits, written if it is missing; `own` a text that
    solves it; `texts` {name: text} of other files in the copy; `tests` words for `meson test`."""

    def __init__(self, before, after, out, mpi, part=""):
        self.number, self.after = after[:2] + part, after  # the number for ./tutorial
        of_window = None
        if after == STATE_WINDOW.parts[0]:
            of_window = STATE_WINDOW
        elif part and after == WINDOW.parts[0]:
            of_window = WINDOW
        self.window = of_window if part != "c" else None
        overlaps = part == "b" and not of_window
        self.name = of_window or (Path(after, "trainer.hpp") if before else ADAM)
        folder = "" if before else "adam"
        if part == "c":
            folder = "kept"
        elif of_window or overlaps:
            folder = (of_window or OVERLAP).stem
        self.folder = out / folder
        self.trainer, self.own = self.folder / self.name, (ROOT / self.name).read_text("utf-8")
        self.tests, self.texts, build = [f"--suite={after}"], {}, "plain"
        self.what, self.beside = after, ("Beside the chapter's own:\n  diff -u "
                                         f"{os.path.relpath(self.trainer)} \\\n    {self.name}")
        if part == "c":
            blocks = re.split("^(?=--- )", KEPT.read_text("utf-8"), flags=re.MULTILINE)
            page = "\n".join(f"```diff\n{block}```" for block in blocks)
            start, self.texts = self.own, page_reader.edited(page_reader.changes(page))
            self.own, self.tests = self.texts.pop(str(self.name)), [*ON_RANKS, LATE]
            self.task = ("it is the chapter's window. Let it keep the last layer from forward "
                         "until backward, which need not gather it. The formulas know of it: "
                         + ", ".join(map(os.path.relpath, self.given)))
            self.what += " that keeps its last layer"
        elif of_window:
            start, build = trainers.without_waits(self.own), "tsan"
            self.tests = [f"{after} schedules on {ranks} ranks" for ranks in (2, 3)]
            self.task = ("it is the window without its waits of one stream for another. Write "
                         "them. The trainer is the chapter's")
        elif overlaps:
            start, build, self.texts = self.own, "tsan", two_streams(self.name)
            self.own = self.texts.pop(str(self.name))
            self.tests = [f"{after}{kind} on {ranks} ranks" for kind in ("", " schedules")
                          for ranks in (2, 3)]
            self.task = (f"it is {after}'s. Let its messages pass beside computation, on a second "
                         "stream, `communication_`")
            self.what += " on two streams"
            self.beside = f"As on {OVERLAP.relative_to(ROOT)}."
        elif not before:
            start, self.tests = trainers.emptied(self.own), ["--suite=adam", *self.tests]
            self.task = ("adam_element is empty. Write Adam's update of one parameter, of which "
                         "the comments tell")
        else:
            start = trainers.starting_point(before, after)
            if Path(after) == WINDOW.parent:
                start, self.own, self.texts[f"{after}/card.hpp"] = one_slot(before, after)
                self.tests = ON_RANKS
                self.what += " with one slot"
                self.beside = "Next, its window: ./tutorial exercise 06b"
            new = self.given or sorted({*(ROOT / after).glob("*.hpp")} - {ROOT / self.name})
            self.task = (f"it is {before}'s under the comment, the includes and the card of "
                         f"{after}. Make it keep what the card claims. Given, and to be read "
                         "first: " + ", ".join(map(os.path.relpath, new)))
        if build == "tsan":
            self.tests.append("--timeout-multiplier=3")
        self.tree, self.lock = tree_for(out, build, f"-Dmpi={mpi}"), out / "lock"
        for place in (self.trainer, *self.given):
            for link in (place, *place.parents):  # an earlier version linked the checkout's files
                if out in link.parents and link.is_symlink():
                    link.unlink()
        for place, text in zip(self.given, self.texts.values()):
            write(place, text)
        if not self.trainer.exists():
            write(self.trainer, start)

    @property
    def given(self):
        """The files beside the trainer that the reader only reads."""
        return [self.folder / name for name in self.texts]

    def saved(self):
        """Returns when the file was saved; None while an editor replaces it by a new file."""
        with contextlib.suppress(FileNotFoundError):
            return self.trainer.stat().st_mtime_ns

    def judge(self, room):
        """Returns (whether everything holds, at most `room` lines that say what does not)."""
        mine = self.trainer.read_text("utf-8", "replace")
        if trainers.card(mine).split() != trainers.card(self.own).split():
            return False, folded(
                f"The card is not {self.after}'s any more, and it is the task: the tests hold the "
                f"trainer to what it claims. As it was: ./tutorial exercise {self.number} "
                f"--hint, or take it from {self.after}/trainer.hpp.", hanging="  ")
        with self.lock.open("w") as lock:  # one build at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.tree.put(self.texts | {str(self.name): mine})
            results, printed = self.tree.test(*self.tests, *LEFT_OUT, PATIENCE=PATIENCE)
        if not results:
            error = re.search(r"^.*error: ", printed, re.MULTILINE)
            told, _, _ = printed[error.start() if error else -400:].partition("\n[")
            return False, ["It does not compile:", *cut(told.splitlines(), room - 1)]
        if failed := [result for result in results if result["result"] != "OK"]:
            return False, screen(results, failed, room)
        return True, [
            f"All {len(results)} tests hold, on each number of ranks: this is {self.what}.",
            *self.beside.splitlines()]


def one_slot(before, after):
    """Returns, of 06 with one slot, (the text to begin with, the page's solution, its card)."""
    start = trainers.starting_point(before, after).replace(f'#include "{WINDOW}"\n', "")
    page, card = ((ROOT / after / name).read_text("utf-8") for name in ("README.md", "card.hpp"))
    diff = re.search(r"^```diff\n(.*?^)```$", page, re.MULTILINE | re.DOTALL)[1]
    end, diff = start, diff.replace("\n...\n", "\n@@\n")
    for change in page_reader.changes(f"```diff\n--- {after}\n{diff}```\n"):
        end = change.apply(end)
    return start, end, re.sub(r"\.borrowed = .*", ONE_OF_EACH, card)


def two_streams(trainer):
    """Returns {name: text} of what overlap.md's diffs make of `trainer` and of shared files."""
    page = page_reader.changes(OVERLAP.read_text("utf-8"), OVERLAP.relative_to(ROOT))
    return page_reader.edited(diff for diff in page if diff.old == str(trainer) or
                              not diff.old.endswith("/trainer.hpp"))


def watch(exercise, once):
    """Judges the file at every save, until everything holds; or once. Returns the exit code."""
    terminal = sys.stdout.isatty()
    while True:
        saved, start = exercise.saved(), time.monotonic()
        top = [*folded(f"Edit {os.path.relpath(exercise.trainer)}: {exercise.task}."), ""]
        if terminal and not once:
            print("\033[H\033[2J", end="")
        print(*top, sep="\n")
        good, lines = exercise.judge(LINES - len(top) - 3)
        print(*lines, "", sep="\n")
        then = f"{time.monotonic() - start:.0f} s."
        if not good:
            then += f" Hint: ./tutorial exercise {exercise.number} --hint."
            then += "" if once else " Save to run again, Ctrl-C to end."
        print(then, flush=True)
        if good or once:
            return 0 if good else 1
        while exercise.saved() in (None, saved):
            time.sleep(0.2)


def hint(exercise):
    """Prints the next hint; after all hints, how the file differs from the solution."""
    sections = (ROOT / "notes/exercises.md").read_text("utf-8").split("\n## ")
    own = next(section for section in sections if section.startswith(f"{exercise.number} "))
    hints, memory = HINT.findall(own), exercise.trainer.with_name("hints")
    given = int(memory.read_text("utf-8")) if memory.exists() else 0
    memory.write_text(f"{min(given + 1, len(hints))}\n")
    if given < len(hints):
        hint = " ".join(hints[given].split())
        more = "then comes the diff" if given + 1 == len(hints) else "ask again for the next"
        print(*folded(f"Hint {given + 1} of {len(hints)}: {hint}"), f"({more})", sep="\n")
    else:
        mine = exercise.trainer.read_text("utf-8", "replace")
        left = trainers.changes(mine, exercise.own, str(exercise.name))
        print(f"From your {exercise.name.name} to {exercise.after}'s: {trainers.count(left)} lines")
        trainers.print_code(left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", help="a chapter")
    parser.add_argument("after", help="the next one")
    parser.add_argument("--part", default="", choices="bc", help="b of 02 and 05: on two streams; "
                        "of 06: b its waits, c its turn")
    parser.add_argument("--out", type=Path, default=ROOT / "build/exercise", help="their folder")
    parser.add_argument("--mpi", default="auto", help="auto, mpich or openmpi")
    parser.add_argument("--once", action="store_true", help="run once, and not at every save")
    parser.add_argument("--hint", action="store_true", help="print the next hint, and run nothing")
    options = parser.parse_args()
    exercise = Exercise(options.before, options.after, options.out, options.mpi, options.part)
    return hint(exercise) if options.hint else watch(exercise, options.once)


if __name__ == "__main__":
    finish(main, "tutorial: exercise: ")
