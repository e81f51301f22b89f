#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every file, folder and program that a page names is there.

Looked at are links, paths below the repository's folders, names of source files, and paths below
build/, which must be a program of the build or a folder that the scripts make. What a page on a
change (notes/changing) takes away must stand in the file that it names; what it makes may be named.
"""
import argparse
import json
import re
import sys
from pathlib import Path

from diffs import changed_files

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["common", "tests", "notes", *(path.name for path in ROOT.glob("0?_*"))]
PAGES = sorted([ROOT / "README.md", ROOT / "tutorial", *ROOT.glob("0?_*/*.md"),
                *ROOT.glob("notes/**/*.md"), *ROOT.glob("common/**/*.md")])
LINK = re.compile(r"(?<![\[&=])\]\(([^)#\s]+)")  # but [&](...) is code
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


def faults(page, sources, built, made):
    """(line number, what it names) for all that is not there; made: folders that the page makes."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        # a path is without the full stop of its sentence
        paths, in_build = ([path.rstrip(".") for path in kind.findall(line)]
                           for kind in (PATH, BUILT))
        missing = [link for link in LINK.findall(line)
                   if "://" not in link and not (page.parent / link).exists()]
        missing += [path for path in paths if not any(ROOT.glob(path))
                    and path.split("/")[0] not in made]
        missing += [name for name in FILE.findall(line) if name not in sources]
        missing += [path for path in in_build if path not in built]
        yield from ((number, name) for name in missing)


def all_faults(page, sources, built):
    """Sentences."""
    name = page.relative_to(ROOT)
    made = set()
    try:
        if page.parent.name == "changing":
            made = {file.split("/")[0] for file in
                    changed_files(page.read_text(), lambda file: (ROOT / file).read_text())
                    if not (ROOT / file).exists()}
    except (OSError, ValueError) as error:
        yield f"{name}: {error}"
    for number, missing in faults(page, sources, built, made):
        yield f"{name}:{number}: there is no {missing}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    built = programs_of(parser.parse_args().build.resolve()) | MADE
    sources = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    sources.add("README.md")
    found = [fault for page in PAGES for fault in all_faults(page, sources, built)]
    print("\n".join(found) or f"{len(PAGES)} pages name what is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
