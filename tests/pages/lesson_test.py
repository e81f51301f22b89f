# SPDX-License-Identifier: MIT
"""The code follows rules that no compiler checks: trainers can be laid side by side, shared code
knows no chapter, lines are short, and files have no more of them than SIZES allows."""
import re
import subprocess
from fnmatch import fnmatch

import pytest
from page_reader import ROOT

CHAPTERS = sorted(path.parent.name for path in ROOT.glob("0*/trainer.hpp"))
# The folders of common/ in order: each includes only itself and those before it.
ROOMS = ["memory", "compute", "train", "comm", "checkpoint", "trace", "report", "run"]
CPP = (".h", ".hpp", ".cpp", ".cu", ".cuh")
METHODS = ["Trainer(const Options", "StepResult step(", "AdamState adam_state(", "void forward(",
           "void backward(", "StepResult update("]
MEMBERS = [" params_{", " grads_{", " master_{", " momentum_{", " variance_{"]
LONGEST_LINE = 100
# How many lines the files of a pattern may have together: who adds some takes others away.
SIZES = {"0*/*.hpp": 165 * len(CHAPTERS), "common/*": 9900, "tests/*": 13950, "tools/*": 9640}


def tracked():
    """Returns the files that git knows; in a copy without git, all that no build or Python made."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                check=True).stdout.splitlines()
        return [name for name in listed if (ROOT / name).exists()]
    names = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [str(name) for name in names if name.parts[0] != "build" and
            "__pycache__" not in name.parts]


FILES = {name: (ROOT / name).read_text(errors="replace") for name in tracked()
         if not name.endswith((".svg", ".png")) and name != "notes/corpus.txt"}
SOURCES = {name: text for name, text in FILES.items() if name.endswith((*CPP, ".py"))}


def test_main_is_one_text_from_02_on():
    for name in CHAPTERS:
        assert f"{name}/main.cpp" in FILES, f"{name} is not tracked: git add it"
    assert len({FILES[f"{name}/main.cpp"] for name in CHAPTERS[1:]}) == 1


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_trainer_has_all_parts_in_order(chapter):
    """The order makes a diff of two trainers short. 01 and 02, in fp32, have no master weights."""
    text = FILES[f"{chapter}/trainer.hpp"]
    members = [name for name in MEMBERS if name != " master_{" or chapter >= "03"]
    for words in (METHODS, members):
        places = [text.find(word) for word in words]
        assert -1 not in places and places == sorted(places), dict(zip(words, places))
    # A trainer may include another chapter's file, as 07 does 06's window, but name no chapter.
    own = re.sub(r"(?m)^#include .*$", "", text)
    assert not [other for other in CHAPTERS if other != chapter and other in own]


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("common/")])
def test_common_knows_no_chapter(name):
    """Shared code names no stage or chapter, has no #if or exit(), and includes no later folder."""
    text = SOURCES[name]
    if name.endswith("/dtype.hpp"):  # the one exception: which compiler reads this file
        text = text.replace("#ifdef __CUDACC__", "")
    for pattern in (r"(?i)zero_?[123]\b|zero_stage|stage [123]", "|".join(CHAPTERS),
                    r"(?m)^\s*#\s*if", r"\bexit\("):
        assert not re.search(pattern, text)
    room = name.split("/")[1]  # common/common.hpp is in no room and may include all
    later = ROOMS[ROOMS.index(room) + 1:] if room in ROOMS else []
    assert not [other for other in re.findall(r'(?m)^#include "(\w+)/', text) if other in later]


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_fits_the_page(name):
    """A source names its licence, has short lines and no note of unfinished work. A tool names the
    encoding of the files that it reads, because a locale may have another one."""
    lines = SOURCES[name].splitlines()
    assert any("SPDX-License-Identifier: MIT" in line for line in lines[:2])
    wrong = [f"{name}:{at}: {line}" for at, line in enumerate(lines, 1)
             if len(line) > LONGEST_LINE or line != line.rstrip()]
    assert not wrong, f"at most {LONGEST_LINE} characters, no blank at the end: " + wrong[0]
    assert "read_text()" not in SOURCES[name] or not name.startswith("tools/")
    unfinished = "TO" + "DO|FIX" + "ME|XX" + "X"
    assert not re.search(rf"\b({unfinished})\b", SOURCES[name])


@pytest.mark.parametrize("pattern", SIZES)
def test_it_stays_light(pattern):
    lines = sum(text.count("\n") for name, text in FILES.items() if fnmatch(name, pattern))
    print(f"{pattern}: {lines} of {SIZES[pattern]} lines")
    assert 0 < lines <= SIZES[pattern]
