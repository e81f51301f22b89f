# SPDX-License-Identifier: MIT
"""Edits, builds and tests copies of the repository.
A Tree is such a copy with its build: `break`, `exercise`, `mistake` and `watch --renew` of
./tutorial use one, as do tests of pages. Functions below Tree judge or cut what was printed."""
import contextlib
import filecmp
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from runs import OURS, QUICK, ROOT, Failure, folded, output_of, ran

LINES = 24  # rows of a terminal
RACE = "WARNING: ThreadSanitizer: data race"
# In ThreadSanitizer's report: who writes or reads, and our functions among the top four of a stack.
CALL = re.compile(r"^ +(?:Write|Read|Previous).*:$|^ +#[0-3] zero::.*?(?= <null>| /)", re.MULTILINE)
# doctest's report, from the first case that fails to how many fail.
REPORT = re.compile(r"^TEST CASE: .*?^\[doctest\] test cases: .*?$", re.MULTILINE | re.DOTALL)
ENDED = re.compile(r"^rank \d+/\d+.*?: (.*)$", re.MULTILINE)  # as common/run/failure.hpp says it
COUNTED = re.compile(r"^ *\[?(\d+)/(\d+)[] ]")  # ninja's [3/30], Meson's 3/30 of its tests
NOT_COPIED = shutil.ignore_patterns("build", ".git", "__pycache__")


@contextlib.contextmanager
def progress(what, how_far=lambda: None, then="\n"):
    """Says what is going on while the block runs. On a terminal it renews a line each second, with
    the seconds so far and, if how_far() returns (done, of all), these and the time left. At the end
    it erases the line; if `then` is empty, `what` stays. Elsewhere it prints `what` and `then`."""
    over, begin = threading.Event(), time.monotonic()

    def tell(every=None, since=begin):
        while True:
            now, words = time.monotonic(), ""
            if far := how_far():
                if far[1] != every:  # another count begins: only it says how much time is left
                    every, since = far[1], now
                words = f", {far[0]} of {far[1]}"
                if far[0] and now > since:
                    words += f", about {(far[1] - far[0]) * (now - since) / far[0]:.0f} s left"
            text = f"{what.rstrip()}: {now - begin:.0f} s{words}"
            print(f"\r{text[:79]}\033[K", end="", flush=True)
            if over.wait(1):
                return

    if not sys.stdout.isatty():
        print(what, end=then, flush=True)
        yield
        return
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f"\r\033[K{what if not then else ''}", end="", flush=True)


def with_progress(what, run, command):
    """Returns run(command); `run` is runs.ran or runs.output_of. Meanwhile progress() tells how far
    ninja and Meson are, by the counts that they print."""
    far = []

    def hear(line):
        if found := COUNTED.match(line):
            far[:] = map(int, found.groups())

    with progress(what, lambda: far):
        return run(command, hear)


def copied(folder, texts=None):
    """Makes `folder` a copy of the repository, in which `texts`, {name: text}, replace files, and
    returns it. A file that is right already keeps its time: a build compiles only the others."""
    texts = {folder / name: text for name, text in (texts or {}).items()}

    def renew(source, copy):
        if Path(copy) in texts or Path(copy).exists() and filecmp.cmp(source, copy, shallow=False):
            return
        shutil.copyfile(source, copy)
        shutil.copymode(source, copy)

    for old in [*folder.rglob("*")]:
        if old.is_file() and old not in texts and not (ROOT / old.relative_to(folder)).exists():
            old.unlink()
    shutil.copytree(ROOT, folder, copy_function=renew, dirs_exist_ok=True, ignore=NOT_COPIED)
    for file, text in texts.items():
        write(file, text)
    return folder


def write(file, text):
    """Writes a text, unless the file has it already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text("utf-8") != text:
        file.write_text(text, "utf-8")


def follow(steps, folder):
    """Applies the Diffs, and runs the commands, that page_reader.changes() yields, in a copy."""
    for step in steps:
        if isinstance(step, str):
            subprocess.run(["sh", "-ec", step], cwd=folder, check=True)
            continue
        old, new = folder / step.old, folder / step.new
        text = (new if new.exists() else old).read_text("utf-8")
        new.write_text(step.apply(text), "utf-8")


class Tree:
    """A copy of the repository in `sources`, and in `build` Meson's build of it with `options`."""

    def __init__(self, sources, build, *options):
        self.sources, self.build, self.options = sources, build, options

    def put(self, texts=None):
        """Makes the copy equal to the repository, with these texts in place of its files."""
        copied(self.sources, texts)

    def set_up(self):
        if not (self.build / "build.ninja").exists():
            with_progress("configuring a copy", output_of, [
                "meson", "setup", str(self.build), str(self.sources), *QUICK, *self.options])

    def program(self, chapter):
        """Builds a chapter's program; returns its path."""
        self.set_up()
        with_progress(f"building {chapter} in a copy", output_of,
                      ["ninja", "-C", str(self.build), f"{chapter}/{chapter}"])
        return self.build / chapter / chapter

    def test(self, *choice, **variables):
        """Builds and runs the tests that `meson test` chooses by the words `choice`. Returns
        (results, what was printed). results: Meson's record of each test, sorted by name, with its
        output as `said`; empty if something does not compile. variables: of the environment."""
        self.set_up()
        log = self.build / "meson-logs/tried.json"
        log.unlink(missing_ok=True)  # never read the results of an earlier run
        command = ["env", "LC_ALL=C.UTF-8", *map("=".join, variables.items()), "meson", "test",
                   "-C", str(self.build), "--logbase", "tried", *choice]
        _, printed = with_progress("compiling and running the tests", ran, command)
        results = [*map(json.loads, log.read_bytes().splitlines())] if log.exists() else []
        beside = f"../{self.sources.name}/"  # files are named as in the repository
        for result in results:
            result["name"] = result["name"].rpartition(" / ")[2]  # before it are the suites
            said = result.get("stdout", "") + result.get("stderr", "")
            result["said"] = said.replace(beside, "")
        return sorted(results, key=lambda result: result["name"]), printed.replace(beside, "")


def expect_results(words, results, printed):
    """Raises a Failure unless Tree.test() returned these words, OK or FAIL, for the tests."""
    if [result["result"] for result in results] != words:
        names = ", ".join(result["name"] for result in results) or "nothing"
        raise Failure(f"expected was {', '.join(words)} of {names}: {printed[-3000:]}")


def expect_code(codes, command):
    """Runs a command, which must end with one of `codes`. Returns (its code, what it printed)."""
    code, printed = ran(command)
    if code not in codes:
        raise Failure(f"that was to end with code {' or '.join(map(str, codes))}, and ended with "
                      f"{code}: {printed[-3000:]}")
    return code, printed


def of_ours(printed):
    """Returns the lines by which our programs say why they end."""
    return [line for line in printed.splitlines() if OURS.match(line)]


def calls(said):
    """Returns the lines of a race's report that say who writes or reads, and from where."""
    return CALL.findall(said.partition(RACE)[2].partition("  Location is")[0])


def cut(told, room):
    """Returns at most `room` lines for the screen; a line that is too long becomes two."""
    return [part for line in told[:room] for part in folded(line, "  ", "  ", 2)][:room]


def screen(results, failed, room):
    """Returns at most `room` lines: which tests hold, and what the first failed one says."""
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
