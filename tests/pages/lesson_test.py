# SPDX-License-Identifier: MIT
"""The rules that keep the lesson in the chapters, and what stands around it small."""
import re
import subprocess
from fnmatch import fnmatch

import pytest
from page_reader import ROOT

CHAPTERS = sorted(path.parent.name for path in ROOT.glob("0*/trainer.hpp"))
# The rooms of common/: each includes only those before it.
ROOMS = ["memory", "compute", "train", "comm", "checkpoint", "trace", "report", "run"]
CPP = (".h", ".hpp", ".cpp", ".cu", ".cuh")
METHODS = ["Trainer(const Options", "StepResult step(", "AdamState adam_state(", "void forward(",
           "void backward(", "StepResult update("]
MEMBERS = [" params_{", " grads_{", " master_{", " momentum_{", " variance_{"]
LONGEST_LINE = 100
# Of files: what is counted, and how much of it there may be: round numbers, far enough above what
# there is that whoever adds a chapter is not refused.
SIZES = {"0*/*.hpp": ("lines", 165 * len(CHAPTERS)), "common/*": ("lines", 9700),
         "tests/*": ("lines", 13900), "tutorial": ("lines", 300), "tools/*": ("lines", 9450),
         "README.md": ("lines", 180), "*.md": ("words", 53200), "*": ("files", 340)}


def tracked():
    """Names of files; without git's folder, of all but what a build or Python makes."""
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


def test_trainers_keep_their_order():
    """main.cpp is one text from 02 on."""
    for name in CHAPTERS:
        assert f"{name}/main.cpp" in FILES, f"{name} is not tracked: git add it"
    assert len({FILES[f"{name}/main.cpp"] for name in CHAPTERS[1:]}) == 1
    for chapter in CHAPTERS:
        text = FILES[f"{chapter}/trainer.hpp"]
        for words in (METHODS, MEMBERS):
            places = [text.find(word) for word in words if word in text]
            assert places == sorted(places) and len(places) >= 3, f"{chapter}: {words}"
        # What it includes of an earlier chapter, as 06's window, it does not say again.
        own = re.sub(r"(?m)^#include .*$", "", text)
        assert not [other for other in CHAPTERS if other != chapter and other in own], chapter


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("common/")])
def test_common_knows_no_chapter(name):
    """Nothing in common/ knows a stage, chooses by the preprocessor, ends the program, or includes
    what stands in a later room."""
    text = SOURCES[name]
    if name.endswith("/dtype.hpp"):  # the one condition: which compiler reads this
        text = text.replace("#ifdef __CUDACC__", "")
    for pattern in (r"(?i)zero_?[123]\b|zero_stage|stage [123]", "|".join(CHAPTERS),
                    r"(?m)^\s*#\s*if", r"\bexit\("):
        assert not re.search(pattern, text)
    room = name.split("/")[1]  # common.hpp lies in none and may include all
    later = ROOMS[ROOMS.index(room) + 1:] if room in ROOMS else []
    assert not [other for other in re.findall(r'(?m)^#include "(\w+)/', text) if other in later]


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_fits_the_page(name):
    """It names its licence; nothing is unfinished. And what a tool reads is UTF-8 in any locale."""
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
    what, given = SIZES[pattern]
    texts = [text for name, text in FILES.items() if fnmatch(name, pattern)]
    count = {"lines": sum(text.count("\n") for text in texts), "files": len(texts),
             "words": sum(len(text.split()) for text in texts)}[what]
    print(f"{pattern}: {count} of {given} {what}")
    assert 0 < count <= given
