# SPDX-License-Identifier: MIT
"""Every file, folder and program that a page names is there.

Looked at are links, paths below the repository's folders, names of source files, and paths below
build/, which must be a program of the build or a folder that the scripts make. What an edit takes
away must stand in the file that it names, once; what a page on a change (notes/changing) makes may
be named.
"""
import json
import re
from pathlib import Path

import pytest
from page_reader import PAGES, ROOT, Diff, changes

FOLDERS = ["common", "tests", "notes", *(path.name for path in ROOT.glob("0?_*"))]
CASES = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.cpp"))
SOURCES = {"README.md", *(path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*"))}
LINK = re.compile(r"(?<![\[&=])\]\(([^)#\s]+)")  # but [&](...) is code
START = r"(?<![\w./$*-])"  # a name does not begin in the middle of a longer one
PATH = re.compile(START + r"(?:common|tests|notes|0\d_\w+)/[\w./*-]*")
FILE = re.compile(START + r"\w+\.(?:[ch]pp|cuh?|py|sh|md)\b")
BUILT = re.compile(START + r"build/[\w./-]*")
MADE = {f"build/{name}" for name in (
    "", "asan", "build.ninja", "cpu", "demo", "exercise", "log", "measure", "sabotage", "tsan")}


@pytest.fixture(scope="session")
def built(programs):
    """As a page names them, whatever the build folder is called."""
    targets = json.loads((programs.build / "meson-info/intro-targets.json").read_text())
    return MADE | {"build/" + str(Path(file).relative_to(programs.build))
                   for target in targets if target["type"] == "executable"
                   for file in target["filename"]}


def made_by(page):
    """Folders that a page's changes make. ValueError where lines are not there; the cases by which
    they are caught are."""
    texts, in_order = {}, page.parent.name == "changing"  # else each edit is one by itself
    for change in changes(page.read_text()):
        if isinstance(change, Diff):
            old = change.new if change.new in texts else change.old
            text = texts.get(old) if in_order else None
            texts[change.new] = change.apply(text or (ROOT / old).read_text())
            assert not change.test or f'TEST_CASE("{change.case}")' in CASES, change.case
    return {file.split("/")[0] for file in texts if not (ROOT / file).exists()}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tutorial"],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page, built):
    made, missing = made_by(page), []
    for line in page.read_text().splitlines():
        # a path is without the full stop of its sentence
        paths, in_build = ([path.rstrip(".") for path in kind.findall(line)]
                           for kind in (PATH, BUILT))
        missing += [link for link in LINK.findall(line)
                    if "://" not in link and not (page.parent / link).exists()]
        missing += [path for path in paths if not any(ROOT.glob(path))
                    and path.split("/")[0] not in made]
        missing += [name for name in FILE.findall(line) if name not in SOURCES]
        missing += [path for path in in_build if path not in built]
    assert not missing
