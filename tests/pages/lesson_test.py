#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rules that keep the lesson in the chapters and the diffs quiet, checked on the sources."""
import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.parent.name for path in ROOT.glob("0*/trainer.hpp"))
# The rooms of common/: each includes only those before it.
ROOMS = ["memory", "compute", "train", "comm", "trace", "report", "run"]
CPP = (".h", ".hpp", ".cpp", ".cu", ".cuh")
METHODS = ["Trainer(const Options", "Verdict step(", "AdamSlice state(", "void forward(",
           "void backward(", "Verdict update("]
MEMBERS = ["Tensor params_;", "Tensor grads_;", "Tensor master_;", "Tensor momentum_, variance_;"]
# Lines of a trainer that change, removed and added, from one chapter to the next.
MOST_CHANGED = [20, 24, 34, 26, 42, 35]
# What stays readable in one go. The largest of the others: a table, a picture, prose.
MOST_LINES = {"meson.build": 120} | {f"{chapter}/{file}": most for chapter in CHAPTERS
                                     for file, most in (("trainer.hpp", 120), ("main.cpp", 15))}
LONGEST_FILE = 350
MAY_BE_LONGER = ("notes/corpus.txt", "notes/figures/")
LONGEST_LINE = 100
FOLDERS = [*CHAPTERS, "common", "tests", "notes", ".ci"]
TOP = [ROOT / name for name in ("README.md", "meson.build", "meson_options.txt", "tutorial")]
PATHS = TOP + [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
FILES = {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in PATHS
         if path.is_file() and path.parent.name != "__pycache__"}


def chapters():
    """main.cpp is one text from 02 on; trainers change by little and keep their order."""
    trainers = {name: FILES[f"{name}/trainer.hpp"] for name in CHAPTERS}
    if len({FILES[f"{name}/main.cpp"] for name in CHAPTERS[1:]}) != 1:
        yield "main.cpp differs after 02"
    for before, after, most in zip(CHAPTERS, CHAPTERS[1:], MOST_CHANGED, strict=False):
        texts = [trainers[name].splitlines() for name in (before, after)]
        _, _, *diff = difflib.unified_diff(*texts, n=0)  # the first two name the files
        changed = sum(line[0] in "+-" for line in diff)
        print(f"{before} -> {after}: {changed} lines changed")
        if changed > most:
            yield f"{changed} lines change from {before} to {after}, not {most}"
    for name, text in trainers.items():
        for words in (METHODS, MEMBERS):
            places = [text.find(word) for word in words if word in text]
            if places != sorted(places) or len(places) < 3:
                yield f"{name}/trainer.hpp: {words} are not in their order"
        # What it includes of an earlier chapter, as 06's window, it does not say again.
        own = re.sub(r"(?m)^#include .*$", "", text)
        others = [other for other in trainers if other != name and other in own]
        if others:
            yield f"{name}/trainer.hpp names {others}"


def common():
    """Nothing in common/ knows a stage, chooses by the preprocessor, ends the program, or includes
    what stands in a later room."""
    for name, text in FILES.items():
        if not name.startswith("common/") or not name.endswith(CPP):
            continue
        if name.endswith("/dtype.hpp"):  # the one condition: which compiler reads this
            text = text.replace("#ifdef __CUDACC__", "")
        for what, pattern in (("a stage", r"(?i)zero_?[123]\b|zero_stage|stage [123]"),
                              ("a chapter's folder", "|".join(CHAPTERS)),
                              ("a preprocessor condition", r"(?m)^\s*#\s*if"),
                              ("an exit", r"\bexit\(")):
            if re.search(pattern, text):
                yield f"{name}: {what}: {re.search(pattern, text)[0]}"
        room = name.split("/")[1]  # common.hpp lies in none and may include all
        later = ROOMS[ROOMS.index(room) + 1:] if room in ROOMS else []
        for path, other in re.findall(r'(?m)^#include "((\w+)/\S+)"', text):
            if other in later:
                yield f"{name}: includes {path}, of a later room"


def files():
    """Every source file names its licence and fits the page; every file is short."""
    for name, text in FILES.items():
        lines = text.splitlines()
        most = MOST_LINES.get(name, LONGEST_FILE)
        if len(lines) > most and not name.startswith(MAY_BE_LONGER):
            yield f"{name}: {len(lines)} lines, at most {most}"
        if not name.endswith((*CPP, ".py")):
            continue
        if not any("SPDX-License-Identifier: MIT" in line for line in lines[:2]):
            yield f"{name}: no SPDX-License-Identifier: MIT in its first two lines"
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST_LINE or line != line.rstrip():
                yield f"{name}:{number}: {len(line)} columns, or blanks at the end"
            if re.search(r"\b(TODO|FIXME|XXX)\b", line) and name != "tests/pages/lesson_test.py":
                yield f"{name}:{number}: unfinished: {line.strip()}"


def main():
    faults = [fault for rule in (chapters, common, files) for fault in rule()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
