# SPDX-License-Identifier: MIT
"""Chapter by chapter by your own hand: the trainer before it, tried by the chapter's own tests.

`./tutorial exercise` calls this with the chapter before and the chapter. build/exercise is the
checkout once more, by links, with the trainers that are written there in place of the chapters'
own. Each begins as the one's trainer under the card of the other; at every save Meson builds and
runs the chapter's suite of it. Before 01 there is none, so what is written there is Adam's update,
in a tree of its own: in the others Adam stays right. 06 has three parts: a trainer with one slot
under a card of its own, which the page's first diff makes; then, in a tree of its own, built with
ThreadSanitizer, the waits of the window (b); then, in another, what keeps its last layer (c), under
formulas that notes/fsdp2.diff makes. 08 has only such waits. Part b of 02 and of 05 is what a page
makes of the trainer: messages beside computation. Exit code 0: everything holds, 1: not
yet."""
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
from runs import Trial, finish, folded
from trainers import ROOT

PATIENCE = "20"  # seconds without progress; see tests/ranks/ranks_main.cpp
LEFT_OUT = ["--no-suite=long", "--no-suite=simulated", "--no-suite=gpu"]
LINES = 24  # of a terminal
ADAM = Path("common/compute/adam_element.hpp")
HINT = re.compile(r"^\d+\. (.*(?:\n   .*)*)", re.MULTILINE)
# Of doctest, from the first case that fails to how many do.
REPORT = re.compile(r"^TEST CASE: .*?^\[doctest\] test cases: .*?$", re.MULTILINE | re.DOTALL)
WINDOW, STATE_WINDOW = Path("06_zero3/layer_window.hpp"), Path("08_infinity/state_window.hpp")
KEPT = ROOT / "notes/fsdp2.diff"  # of page_reader, a block from each "---" on
ONE_OF_EACH = ".borrowed = {.parameters = 1, .gradients = 1},"  # whole layers
ON_RANKS = [f"{WINDOW.parts[0]} on {ranks} ranks" for ranks in (1, 2, 3, 4)]
LATE = f"{WINDOW.parts[0]} schedules on 2 ranks"  # each stream by turns
OVERLAP = ROOT / "notes/changing/overlap.md"
TSAN = ["-Db_sanitize=thread", "-Db_lundef=false"]  # Meson's options
RACE = "WARNING: ThreadSanitizer: data race"
CALL = re.compile(r"^ +(?:Write|Read|Previous).*:$|^ +#[0-3] zero::.*?(?= <null>| /)", re.MULTILINE)
ENDED = re.compile(r"^rank \d+/\d+.*?: (.*)$", re.MULTILINE)  # as common/run/failure.hpp says it


class Exercise:
    """The tree, and in it the text to start from, unless there is one already."""

    def __init__(self, before, after, out, mpi, part=""):
        self.number, self.part = after[:2] + part, part  # as ./tutorial takes it
        of_window = (STATE_WINDOW if after == STATE_WINDOW.parts[0] else
                     WINDOW if part and after == WINDOW.parts[0] else None)
        self.before, self.after, self.window = before, after, of_window if part != "c" else None
        self.overlaps = part == "b" and not of_window
        self.name = of_window or (Path(after, "trainer.hpp") if before else ADAM)
        self.out = out / ("kept" if part == "c" else of_window.stem if of_window else
                          OVERLAP.stem if self.overlaps else "" if before else "adam")
        self.trainer, self.own = self.out / self.name, (ROOT / self.name).read_text("utf-8")
        self.tests, given, options = [f"--suite={after}"], {}, [f"-Dmpi={mpi}"]
        if part == "c":
            start, given = self.own, kept()
            self.own, self.tests = given.pop(self.name), [*ON_RANKS, LATE]
        elif of_window:
            start, options = trainers.without_waits(self.own), options + TSAN
            self.tests = [f"{after} schedules on {ranks} ranks" for ranks in (2, 3)]
            self.tests += ["--timeout-multiplier=3"]
        elif self.overlaps:
            start, options = self.own, options + TSAN
            self.own, given = two_streams(self.name)
            self.tests = [f"{after}{kind} on {ranks} ranks" for kind in ("", " schedules")
                          for ranks in (2, 3)] + ["--timeout-multiplier=3"]
        elif not before:
            start, self.tests = trainers.emptied(self.own), ["--suite=adam", *self.tests]
        elif Path(after) == WINDOW.parent:
            start, self.own, given[Path(after, "card.hpp")] = one_slot(before, after)
            self.tests = ON_RANKS
        else:
            start = trainers.starting_point(before, after)
        self.given = [self.out / name for name in given]
        self.trial = Trial(self.out, self.out / "build", *options)
        folders = sorted({folder for name in (self.name, *given) for folder in name.parents})
        for folder in folders:
            (self.out / folder).mkdir(parents=True, exist_ok=True)
            for file in (ROOT / folder).iterdir():  # all that is there, but for the tree's own
                name = folder / file.name
                place = self.out / name
                if place.is_symlink():
                    place.unlink()
                if (file.name not in ("build", ".git") and not place.exists()
                        and name not in (self.name, *given, *folders)):
                    place.symlink_to(file)
        for name, text in given.items():
            place = self.out / name
            if not place.exists() or place.read_text("utf-8") != text:
                place.write_text(text, "utf-8")
        if not self.trainer.exists():
            self.trainer.write_text(start, "utf-8")

    def saved(self):
        """When; None while an editor puts a new file in the place of the old one."""
        with contextlib.suppress(FileNotFoundError):
            return self.trainer.stat().st_mtime_ns

    def judge(self, room):
        """Whether everything holds, and in so many lines what does not."""
        mine = self.trainer.read_text("utf-8", "replace")
        if trainers.card(mine).split() != trainers.card(self.own).split():
            return False, folded(
                f"The card is not {self.after}'s any more, and it is the task: the tests hold the "
                f"trainer to what it claims. As it was: ./tutorial exercise {self.number} "
                f"--hint, or take it from {self.after}/trainer.hpp.", hanging="  ")
        with (self.out / "lock").open("w") as lock:  # one build at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            results, printed = self.trial.test(*self.tests, *LEFT_OUT, PATIENCE=PATIENCE)
        if not results:
            error = re.search(r"^.*error: ", printed, re.MULTILINE)
            told, _, _ = printed[error.start() if error else -400:].partition("\n[")
            return False, ["It does not compile:", *cut(told.splitlines(), room - 1)]
        if failed := [result for result in results if result["result"] != "OK"]:
            return False, screen(results, failed, room)
        what, beside = self.after, (f"Beside the chapter's own:\n  diff -u "
                                    f"{os.path.relpath(self.trainer)} \\\n    {self.name}")
        if self.overlaps:
            what, beside = what + " on two streams", f"As on {OVERLAP.relative_to(ROOT)}."
        elif self.part == "c":
            what += " that keeps its last layer"
        elif self.given:
            what, beside = what + " with one slot", "Next, its window: ./tutorial exercise 06b"
        return True, [
            f"All {len(results)} tests hold, on each number of ranks: this is {what}.",
            *beside.splitlines()]


def one_slot(before, after):
    """The start of 06's first half; its end, by the first diff of the page; and its card."""
    start = trainers.starting_point(before, after).replace(f'#include "{WINDOW}"\n', "")
    page, card = ((ROOT / after / name).read_text("utf-8") for name in ("README.md", "card.hpp"))
    diff = re.search(r"^```diff\n(.*?^)```$", page, re.MULTILINE | re.DOTALL)[1]
    end, diff = start, diff.replace("\n...\n", "\n@@\n")
    for change in page_reader.changes(f"```diff\n--- {after}\n{diff}```\n"):
        end = change.apply(end)
    return start, end, re.sub(r"\.borrowed = .*", ONE_OF_EACH, card)


def kept():
    """06's window that keeps the last layer, and the files with its formulas."""
    texts, blocks = {}, re.split("^(?=--- )", KEPT.read_text("utf-8"), flags=re.MULTILINE)
    for change in page_reader.changes("\n".join(f"```diff\n{block}```" for block in blocks)):
        name = Path(change.new)
        texts[name] = change.apply(texts.get(name) or (ROOT / name).read_text("utf-8"))
    return texts


def two_streams(trainer):
    """What a page makes of this trainer; its card, and the tests that make one stream late."""
    texts = {}
    for diff in page_reader.changes(OVERLAP.read_text("utf-8")):
        old = Path(diff.old)
        if old.name != "trainer.hpp" or old == trainer:
            texts[old] = diff.apply(texts.get(old) or (ROOT / old).read_text("utf-8"))
    return texts.pop(trainer), texts


def calls(said):
    """Of a report on a race: who writes or reads, and our functions on top of the stack."""
    return CALL.findall(said.partition(RACE)[2].partition("  Location is")[0])


def cut(told, room):
    """The first of these lines, each in at most two of the screen."""
    return [part for line in told[:room] for part in folded(line, "  ", "  ", 2)][:room]


def screen(results, failed, room):
    """Which tests hold, and what the first that fails says, at most `room` lines."""
    lines, first = [], failed[0]
    for word, names in (("holds", [result["name"] for result in results if result not in failed]),
                        ("fails", [result["name"] for result in failed])):
        lines += folded(f"{word}: {', '.join(names) or 'none'}", hanging="  ", most=2)
    if report := REPORT.search(first["said"]):
        *told, last = (line for line in report[0].splitlines() if line.strip("="))
        lines.append(f"{first['name']}:")
        return [*lines, *cut(told, room - len(lines) - 1), last]
    if RACE in first["said"]:
        told = ["A data race: no order between these two.", *calls(first["said"])]
        return [*lines, f"{first['name']}:", *cut(told, room - len(lines) - 1)]
    said = ENDED.search(first["said"])
    words = said[1] if said else " ".join([first["result"] + ":", *first["said"].splitlines()[-1:]])
    if "SIG" in words:
        words += ": memory is written where nothing lies; are sizes and dtypes right?"
    return lines + folded(f"{first['name']} is broken off: {words}", hanging="  ", most=5)


def head(exercise):
    before, after, given = exercise.before, exercise.after, exercise.given
    task = "adam_element is empty. Write Adam's update of one parameter, of which the comments tell"
    if exercise.part == "c":
        task = ("it is the chapter's window. Let it keep the last layer from forward until "
                "backward, which need not gather it. The formulas know of it: "
                + ", ".join(map(os.path.relpath, given)))
    elif exercise.window:
        task = ("it is the window without its waits of one stream for another. Write "
                "them. The trainer is the chapter's")
    elif exercise.overlaps:
        task = (f"it is {after}'s. Let its messages pass beside computation, on a second stream, "
                "`communication_`")
    elif before:
        task = (f"it is {before}'s under the comment, the includes and the card of {after}. Make "
                "it keep what the card claims")
        new = given or sorted({*(ROOT / after).glob("*.hpp")} - {ROOT / after / "trainer.hpp"})
        task += f". Given, and to be read first: {', '.join(map(os.path.relpath, new))}"
    return [*folded(f"Edit {os.path.relpath(exercise.trainer)}: {task}."), ""]


def watch(exercise, once):
    terminal = sys.stdout.isatty()
    while True:
        saved, start = exercise.saved(), time.monotonic()
        top = head(exercise)
        print("\033[H\033[2J" * (terminal and not once) + "\n".join(top))
        if terminal:
            print("compiling and running ...", end="\r", flush=True)
        good, lines = exercise.judge(LINES - len(top) - 3)
        print("\033[K" * terminal + "\n".join([*lines, ""]))
        hint = f" Hint: ./tutorial exercise {exercise.number} --hint." * (not good)
        again = " Save to run again, Ctrl-C to end." * (not good and not once)
        print(f"{time.monotonic() - start:.0f} s.{hint}{again}", flush=True)
        if good or once:
            return 0 if good else 1
        while exercise.saved() in (None, saved):
            time.sleep(0.2)


def hint(exercise):
    """One more than the last time; after all of them, what still differs from the chapter's own."""
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
