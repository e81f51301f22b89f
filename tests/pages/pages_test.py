#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every file, folder and program that a page names is there.

Looked at are links, paths below the repository's folders, names of source files, and paths below
build/, which must be a program of the build or a folder that the scripts make.
"""
import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["common", "tests", "notes", *(path.name for path in ROOT.glob("0?_*"))]
PAGES = sorted([ROOT / "README.md", ROOT / "tutorial", *ROOT.glob("0?_*/*.md"),
                *ROOT.glob("notes/*.md"), *ROOT.glob("common/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)")
START = r"(?<![\w./$*-])"  # a name does not begin in the middle of a longer one
PATH = re.compile(START + r"(?:common|tests|notes|0\d_\w+)/[\w./*-]*")
FILE = re.compile(START + r"\w+\.(?:[ch]pp|cuh?|py|sh|md)\b")
BUILT = re.compile(START + r"build/[\w./-]*")
MADE = {f"build/{name}" for name in (
    "", "asan", "build.ninja", "cpu", "demo", "exercise", "log", "measure", "sabotage", "tsan")}


def programs_of(build):
    """As a page names them, whatever the build folder is called."""
    targets = json.loads((build / "meson-info" / "intro-targets.json").read_text())
    return {"build/" + str(Path(file).relative_to(build))
            for target in targets if target["type"] == "executable" for file in target["filename"]}


def faults(page, sources, built):
    """(line number, what it names) for all that is not there."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        # a path is without the full stop of its sentence
        paths, in_build = ([path.rstrip(".") for path in kind.findall(line)]
                           for kind in (PATH, BUILT))
        missing = [link for link in LINK.findall(line)
                   if "://" not in link and not (page.parent / link).exists()]
        missing += [path for path in paths if not any(ROOT.glob(path))]
        missing += [name for name in FILE.findall(line) if name not in sources]
        missing += [path for path in in_build if path not in built]
        yield from ((number, name) for name in missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    built = programs_of(parser.parse_args().build.resolve()) | MADE
    sources = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    sources.add("README.md")
    found = [f"{page.relative_to(ROOT)}:{number}: there is no {name}"
             for page in PAGES for number, name in faults(page, sources, built)]
    print("\n".join(found) or f"{len(PAGES)} pages name what is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
