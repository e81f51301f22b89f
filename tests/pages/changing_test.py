# SPDX-License-Identifier: MIT
"""Tries the changes of notes/changing: in a copy of the tree, in which a page has been followed
up to its `Now hold:`, every test holds that it names there."""
import re
import subprocess

import pytest
from page_reader import PAGES, Diff, changes, copied

from trial import Trial

NAMED = re.compile(r"Now hold:((?:\s+`[^`]+`,?)+)")
FOUND = {page.name: named for page in PAGES if page.parent.name == "changing"
         for named in NAMED.finditer(page.read_text())}


def follow(text, tree):
    for change in changes(text):
        if isinstance(change, Diff):
            old, new = tree / change.old, tree / change.new
            new.write_text(change.apply((new if new.exists() else old).read_text()))
        else:
            subprocess.run(["sh", "-ec", change], cwd=tree, check=True)


@pytest.mark.parametrize("page", FOUND)
def test_a_change_can_be_made(page, tmp_path):
    tree = copied(tmp_path / "tree")
    follow(FOUND[page].string[:FOUND[page].start()], tree)
    tests = re.findall("`([^`]+)`", FOUND[page][1])
    results, printed = Trial(tree, tree / "build").test(*tests)
    assert [result["result"] for result in results] == ["OK"] * len(tests), printed[-3000:]


def test_there_are_changes():
    assert len(FOUND) >= 3
