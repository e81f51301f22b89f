#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Chapter by chapter by your own hand: the trainer before it, tried by the chapter's own tests.

`./tutorial exercise` calls this with the chapter before and the chapter. It copies the one's
trainer to build/exercise/NN, under the card of the other, and tells at every save what the
chapter's tests say of it. Exit code 0 means that everything holds, 1 not yet.
"""
import argparse
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

sys.dont_write_bytecode = True
import findings_of_tests as found  # noqa: E402
import trainers  # noqa: E402
from runs import ENVIRONMENT, Failure, output_of  # noqa: E402
from trainers import ROOT  # noqa: E402

RANKS = [1, 2, 3]
PATIENCE = 20  # seconds without progress; see tests/ranks/ranks_main.cpp
WIDTH, LINES = 80, 24
# Bits do not depend on it, and who waits gets them in half the time.
QUICK = ["-O0", "-g0", "-fmax-errors=1", "-fdiagnostics-color=never", "-w"]
HINT = re.compile(r"^\d+\. (.*(?:\n   .*)*)", re.MULTILINE)


class Exercise:
    def __init__(self, before, after, build, out):
        self.before, self.after, self.build = before, after, build
        self.folder = out / after[:2]
        self.trainer = self.folder / after / "trainer.hpp"
        self.shown = os.path.relpath(self.trainer)

    def begin(self):
        """The text to start from, unless there is one already."""
        if self.trainer.exists():
            return
        self.trainer.parent.mkdir(parents=True, exist_ok=True)
        self.trainer.write_text(trainers.starting_point(self.before, self.after))

    def saved(self):
        """When, as what; None while an editor puts a new file in the place of the old one."""
        try:
            file = self.trainer.stat()
            return file.st_mtime_ns, file.st_size, file.st_ino
        except FileNotFoundError:
            return None

    def card_changed(self):
        """The card is the task: tests hold a trainer to what its card claims."""
        mine, theirs = (trainers.card(text) for text in
                        (self.trainer.read_text(errors="replace"), trainers.source(self.after)))
        return mine.split() != theirs.split()


class Program:
    """A test program of the build, made as the build makes it, but of the exercise's trainer."""

    def __init__(self, exercise, name):
        self.exercise, self.name = exercise, name
        target = f"tests/ranks/{name}"
        self.path = exercise.folder / name
        own, mine = f"{target}.p/", os.path.relpath(exercise.folder, exercise.build) + f"/{name}."
        include = "-I" + os.path.relpath(exercise.trainer.parent, exercise.build)
        *steps, link = output_of(["ninja", "-C", str(exercise.build), "-t", "commands",
                                  target]).splitlines()
        self.compiles = []
        for step in steps:
            words = shlex.split(step)
            if any(word.startswith(own) and word.endswith(".o") for word in words):
                words = [word.replace(own, mine) for word in words]
                first = next(i for i, word in enumerate(words) if word.startswith("-I"))
                self.compiles.append([*words[:first], include, *words[first:], *QUICK])
        words = shlex.split(link)
        self.libraries = [word for word in words if word.endswith(".a") and word[0] != "/"]
        self.link = [word.replace(own, mine) for word in words]
        self.link[self.link.index(target)] = os.path.relpath(self.path, exercise.build)

    def build(self):
        """Empty where it went well, else the compiler's first error."""
        english = os.environ | {"LC_ALL": "C"}  # first_error reads it
        jobs = [subprocess.Popen(command, cwd=self.exercise.build, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 errors="replace", env=english)
                for command in self.compiles]
        said = [job.communicate()[1] for job in jobs]
        for job, errors in zip(jobs, said):
            if job.returncode != 0:
                return first_error(errors, self.exercise)
        done = subprocess.run(self.link, cwd=self.exercise.build, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", env=english)
        return first_error(done.stderr, self.exercise) if done.returncode != 0 else ""

    def run(self, mpiexec, results):
        late = PATIENCE * 6
        for ranks in RANKS:
            command = [mpiexec, "-n", str(ranks), str(self.path), str(ranks), "--reporters=xml"]
            more = {"PATIENCE": str(PATIENCE), "MPIEXEC_TIMEOUT": str(late),
                    "UCX_MEM_EVENTS": "n"}
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   env=os.environ | ENVIRONMENT | more)
            code = None
            try:
                printed, _ = job.communicate(timeout=late + 5)
                code = job.returncode
            except subprocess.TimeoutExpired:
                job.terminate()
                printed, _ = job.communicate()
            except BaseException:
                job.terminate()  # so that no rank outlives its launcher
                raise
            found.add_run(results, ranks, printed, code, late)


def first_error(errors, exercise):
    """file:line: message, and where in the trainer, if the error itself is elsewhere."""
    place = re.compile(r"^(?:In file included from )?(\S+?):(\d+)(?::\d+)?[:,]", re.MULTILINE)

    def named(path):
        path = (exercise.build / path).resolve()
        if path == exercise.trainer.resolve():
            return "trainer.hpp"
        return os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)

    error = re.search(r"^(\S+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", errors, re.MULTILINE)
    if not error:
        return (errors.strip().splitlines() or ["the compiler said nothing"])[-1]
    text = f"{named(error[1])}:{error[2]}: {error[3]}"
    via = [line for path, line in place.findall(errors) if named(path) == "trainer.hpp"]
    return text if text.startswith("trainer.hpp") or not via else f"{text} (trainer.hpp:{via[-1]})"


def judge(exercise, programs, mpiexec, room):
    """Whether everything holds, and lines that say what does not."""
    if exercise.card_changed():
        return False, found.folded(
            f"The card is not {exercise.after}'s any more, and it is the task: the tests hold the "
            "trainer to what it claims. As it was: ./tutorial exercise "
            f"{exercise.after[:2]} --hint, or take it from {exercise.after}/trainer.hpp.", "", 4)
    count = 0
    for program in programs:
        error = program.build()
        if error:
            return False, ["It does not compile. The first error:",
                           *found.folded(error, "  ", 6)]
        results = found.Results(RANKS)
        program.run(mpiexec, results)
        count += results.count
        if not results.hold:
            later = ["Later: streams that are late."] * (program is not programs[-1])
            return False, [*found.screen(results, room - len(later)), *later]
    return True, [f"All {count} test cases hold on {', '.join(map(str, RANKS))} ranks: "
                  f"this is {exercise.after}.",
                  "Beside the chapter's own:",
                  f"  diff -u {exercise.shown} \\",
                  f"    {exercise.after}/trainer.hpp"]


def head(exercise):
    new = [f"{exercise.after}/{file.name}" for file in sorted((ROOT / exercise.after).glob("*.hpp"))
           if file.name != "trainer.hpp"]
    text = (f"Edit {exercise.shown}: it is {exercise.before}'s under the comment, the includes and "
            f"the card of {exercise.after}. Make it keep what the card claims.")
    given = f" Given, and to be read first: {', '.join(new)}." if new else ""
    return textwrap.wrap(text + given, WIDTH, break_on_hyphens=False)


def watch(exercise, programs, mpiexec, once):
    lock = (exercise.folder / "lock").open("w")  # for as long as this runs
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"exercise: another one is trying {exercise.shown}: end it first", file=sys.stderr)
        return 6
    while True:
        saved = exercise.saved()
        start = time.monotonic()
        top = [*head(exercise), ""]
        if sys.stdout.isatty():
            print("\033[H\033[2J" if not once else "", end="")
            print("\n".join(top) + "\ncompiling and running ...", end="\r", flush=True)
        good, lines = judge(exercise, programs, mpiexec, LINES - len(top) - 3)
        if sys.stdout.isatty():
            print("\033[H\033[2J" if not once else f"\033[{len(top)}A\r\033[J", end="")
        print("\n".join([*top, *lines, ""]))
        said = [f"{time.monotonic() - start:.0f} s."]
        said += [f"Hint: ./tutorial exercise {exercise.after[:2]} --hint."] * (not good)
        said += ["Save to run again, Ctrl-C to end."] * (not good and not once)
        print(*said, flush=True)
        if good or once:
            return 0 if good else 1
        while exercise.saved() in (None, saved):
            time.sleep(0.2)


def hints_of(number):
    text = (ROOT / "notes/exercises.md").read_text()
    section = re.search(rf"^## {number} .*\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    return [" ".join(hint.split()) for hint in HINT.findall(section[1])] if section else []


def hint(exercise):
    """One more than the last time; after all of them, what still differs from the chapter's own."""
    hints, memory = hints_of(exercise.after[:2]), exercise.folder / "hints"
    given = int(memory.read_text()) if memory.exists() else 0
    memory.write_text(f"{min(given + 1, len(hints))}\n")
    if given < len(hints):
        more = "then comes the diff" if given + 1 == len(hints) else "ask again for the next"
        print(textwrap.fill(f"Hint {given + 1} of {len(hints)}: {hints[given]}", WIDTH,
                            break_long_words=False, break_on_hyphens=False))
        print(f"({more})")
        return 0
    left = trainers.changes(exercise.trainer.read_text(), trainers.source(exercise.after),
                            f"{exercise.after}/trainer.hpp")
    print(f"From your trainer to {exercise.after}'s: {left.count} lines")
    trainers.print_code(left.lines, shutil.get_terminal_size((WIDTH, LINES)).columns)
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", help="a chapter")
    parser.add_argument("after", help="the next one")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, help="where exercises lie (BUILD/exercise)")
    parser.add_argument("--mpiexec", default="mpiexec", help="the launcher of the built MPI")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--libraries", action="store_true", help="build what all exercises share")
    how.add_argument("--watch", action="store_true", help="run again at every save")
    how.add_argument("--once", action="store_true", help="run once")
    how.add_argument("--hint", action="store_true", help="print the next hint")
    return parser.parse_args()


def main():
    options = parse()
    exercise = Exercise(options.before, options.after, options.build,
                        options.out or options.build / "exercise")
    if not options.libraries:
        exercise.begin()
    if options.hint:
        return hint(exercise)
    late = [f"test_{options.after}_schedules"] if options.after >= "06" else []
    programs = [Program(exercise, name) for name in (f"test_{options.after}", *late)]
    if options.libraries:
        print(output_of(["ninja", "-C", str(options.build), *programs[0].libraries]))
        return 0
    return watch(exercise, programs, options.mpiexec, options.once)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"tutorial: exercise: {failure}", file=sys.stderr)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        sys.exit(130)
