#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tries every sabotage that the pages offer under "break it", and sees the named test fail.

A sabotage stands in a page as

    ```diff
    --- common/compute/cpu/reduction.cpp
    -      each(count, Divide{static_cast<float>(sources.size())}, InOut<float>{sum});
    +      each(count, Divide{1}, InOut<float>{sum});
    ```

    Caught by `communicator on 2 ranks`: "the test case".

The lines with a minus (and those with neither sign) must stand in the file exactly once, one after
the other; in a copy of the tree they are replaced by the lines with a plus. Then the named Meson
test must fail and name the test case. `Caught by ThreadSanitizer in` before the test means that the
case alone, built with it, reports a race.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"```diff\n--- (?P<file>\S+)\n(?P<lines>(?:[-+ ].*\n)+)```\n\s*"
    r"Caught by (?P<tsan>ThreadSanitizer in\s+)?`(?P<test>[^`]+)`:\s+\"(?P<case>[^\"]+)\"")
ANY_DIFF = re.compile(r"```diff\n--- ")
RACE = "WARNING: ThreadSanitizer: data race"
QUICK = ["-Dcuda=disabled", "-Doptimization=g", "-Ddebug=false"]  # to build, that is
SETUP = {"plain": QUICK, "tsan": [*QUICK, "-Db_sanitize=thread", "-Db_lundef=false"]}


@dataclass
class Sabotage:
    page: Path
    file: str
    before: str
    after: str
    test: str
    case: str
    build: str  # a key of SETUP; tsan: the case is run alone, and must report a race


def read_pages():
    found = []
    for page in sorted([*ROOT.glob("0*/README.md"), ROOT / "notes" / "streams.md"]):
        text = page.read_text()
        blocks = list(BLOCK.finditer(text))
        if len(blocks) != len(ANY_DIFF.findall(text)):
            sys.exit(f"{page}: a diff without its file or without its \"Caught by\"")
        if page.parent.name != "notes" and len(blocks) < 3:
            sys.exit(f"{page}: {len(blocks)} sabotages, at least 3 are expected")
        for block in blocks:
            lines = block["lines"].splitlines(keepends=True)
            before, after = ("".join(line[1:] for line in lines if line[0] in signs)
                             for signs in ("- ", "+ "))
            found.append(Sabotage(page.relative_to(ROOT), block["file"], before, after,
                                  block["test"], " ".join(block["case"].split()),
                                  "tsan" if block["tsan"] else "plain"))
    return found


class Tree:
    """A copy of the sources, with a build folder for each kind of build."""

    def __init__(self, work, names):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(ROOT, work, ignore=shutil.ignore_patterns("build", ".git", "__pycache__"))
        self.folder, self.tests, self.programs = work, {}, {}
        for name in names:
            self.set_up(name)

    def set_up(self, name):
        self.check(["meson", "setup", f"build-{name}", *SETUP[name]])
        tests, targets = (json.loads(self.check(["meson", "introspect", f"build-{name}", what]))
                          for what in ("--tests", "--targets"))
        self.tests[name] = {test["name"]: test for test in tests}
        self.programs[name] = {os.path.relpath(file, self.folder / f"build-{name}")
                               for target in targets for file in target["filename"]}

    def check(self, command):
        done = subprocess.run(command, cwd=self.folder, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} failed\n{done.stdout[-3000:]}{done.stderr}")
        return done.stdout

    def run(self, sabotage):
        """Builds what the test needs, runs it, returns its exit code and output."""
        build = f"build-{sabotage.build}"
        if sabotage.test not in self.tests[sabotage.build]:
            sys.exit(f"{sabotage.page}: there is no test \"{sabotage.test}\"")
        test = self.tests[sabotage.build][sabotage.test]
        # Meson names programs by their place, or from the build folder on; none: build all
        places = [os.path.relpath(self.folder / build / word, self.folder / build)
                  for word in test["cmd"]]
        programs = [place for place in places if place in self.programs[sabotage.build]]
        self.check(["ninja", "-C", build, *programs])
        # doctest separates filters by commas; a question mark stands for any character
        only = [f"--test-case={sabotage.case.replace(',', '?')}"] if build == "build-tsan" else []
        try:
            done = subprocess.run([*test["cmd"], *only], cwd=self.folder / build, timeout=120,
                                  env=os.environ | test["env"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", check=False)
        except subprocess.TimeoutExpired:
            return 0, "the test hung"
        return done.returncode, " ".join(done.stdout.split())

    def caught(self, sabotage):
        """Empty when the sabotage was found out as its page says; else what happened instead."""
        file = self.folder / sabotage.file
        if not file.is_file():
            return "there is no such file"
        original = file.read_text()
        if original.count(sabotage.before) != 1:
            return f"its lines stand {original.count(sabotage.before)} times in {sabotage.file}"
        file.write_text(original.replace(sabotage.before, sabotage.after))
        try:
            code, output = self.run(sabotage)
        finally:
            file.write_text(original)
        if code == 0:
            return f"\"{sabotage.test}\" did not fail: {output[-300:]}"
        expected = RACE if sabotage.build == "tsan" else sabotage.case
        return "" if expected in output else f"\"{expected}\" is not in: {output[-2000:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "sabotage",
                        help="folder for the copy; is deleted")
    parser.add_argument("--only", default="", help="pages and files whose name contains this")
    arguments = parser.parse_args()
    chosen = [s for s in read_pages() if arguments.only in f"{s.page} {s.file}"]
    if not chosen:
        sys.exit("no sabotage is named so")
    tree = Tree(arguments.work.resolve(), {s.build for s in chosen})
    missed = 0
    for sabotage in chosen:
        start = time.monotonic()
        why = tree.caught(sabotage)
        missed += bool(why)
        print(f"{'MISSED' if why else 'caught'}  {sabotage.page}: {sabotage.file}: "
              f"{sabotage.test} ({time.monotonic() - start:.0f} s) {why}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} sabotages caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
