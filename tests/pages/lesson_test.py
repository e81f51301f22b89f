#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rules that keep the lesson in the chapters and the diffs quiet, checked on the sources."""
import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.parent for path in ROOT.glob("0*/trainer.hpp"))
MOST_CHANGED = 47     # lines of trainer.hpp, removed and added, from one chapter to the next
LONGEST_TRAINER = 130
LONGEST_LINE = 100
SOURCES = [path for folder in [*CHAPTERS, ROOT / "common", ROOT / "tests", ROOT / "notes"]
           for path in sorted(folder.rglob("*"))
           if path.suffix in (".h", ".hpp", ".cpp", ".cu", ".cuh", ".py")]
METHODS = ["Trainer(const Options", "StepReport step(", "AdamSlice state(", "void forward(",
           "void backward(", "StepReport update("]
MEMBERS = ["params_", "grads_", "master_", "momentum_", "variance_"]


def changed_lines(before, after):
    diff = difflib.unified_diff(before.read_text().splitlines(), after.read_text().splitlines(),
                                n=0, lineterm="")
    return sum(line[0] in "+-" and line[:3] not in ("+++", "---") for line in diff)


def chapters():
    """main.cpp is one text from 02 on; trainers change by little and keep their order."""
    mains = {(chapter / "main.cpp").read_text() for chapter in CHAPTERS[1:]}
    if len(mains) != 1:
        yield "main.cpp differs between 02 and 06"
    for before, after in zip(CHAPTERS, CHAPTERS[1:]):
        changed = changed_lines(before / "trainer.hpp", after / "trainer.hpp")
        print(f"{before.name} -> {after.name}: {changed} lines changed")
        if changed > MOST_CHANGED:
            yield f"{changed} lines change from {before.name} to {after.name}, not {MOST_CHANGED}"
    for chapter in CHAPTERS:
        text = (chapter / "trainer.hpp").read_text()
        if len(text.splitlines()) > LONGEST_TRAINER:
            yield f"{chapter.name}/trainer.hpp has more than {LONGEST_TRAINER} lines"
        for names in (METHODS, [f"Tensor {member};" for member in MEMBERS]):
            places = [text.find(name) for name in names if name in text]
            if places != sorted(places) or len(places) < 4:
                yield f"{chapter.name}/trainer.hpp: {names} are not in their order"
        others = [other.name for other in CHAPTERS if other != chapter and other.name in text]
        if others:
            yield f"{chapter.name}/trainer.hpp names {others}"


def common():
    """Nothing in common/ knows a stage, chooses by the preprocessor, or ends the program."""
    for path in (path for path in SOURCES if ROOT / "common" in path.parents):
        text = path.read_text()
        if path.name == "host_device.hpp":  # the one condition: which compiler reads this
            text = text.replace("#ifdef __CUDACC__", "")
        for what, pattern in (("a stage", r"(?i)zero_?[123]\b|zero_stage|stage [123]"),
                              ("a chapter's folder", "|".join(c.name for c in CHAPTERS)),
                              ("a preprocessor condition", r"(?m)^\s*#\s*if"),
                              ("an exit", r"\bexit\(")):
            if re.search(pattern, text):
                yield f"{path.relative_to(ROOT)}: {what}: {re.search(pattern, text)[0]}"


def files():
    """Every source file names its licence and fits the page."""
    for path in SOURCES:
        lines = path.read_text().splitlines()
        name = path.relative_to(ROOT)
        if not any("SPDX-License-Identifier: MIT" in line for line in lines[:2]):
            yield f"{name}: no SPDX-License-Identifier: MIT in its first two lines"
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST_LINE or line != line.rstrip():
                yield f"{name}:{number}: {len(line)} columns, or blanks at the end"
            if re.search(r"\b(TODO|FIXME|XXX)\b", line) and path != Path(__file__).resolve():
                yield f"{name}:{number}: unfinished: {line.strip()}"


def main():
    faults = [fault for rule in (chapters, common, files) for fault in rule()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
