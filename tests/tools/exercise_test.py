# SPDX-License-Identifier: MIT
"""Tests `./tutorial exercise`: where it starts, its hints, what it says of recorded results of
tests.

test_whole builds, in a tree of its own, the text to start from, which fails, and the chapter."""
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import exercise
import trainers
from runs import CHAPTERS, ROOT
from trial import RACE, copied

PAIRS = list(zip(["", *CHAPTERS], CHAPTERS))
# (the chapter before, the chapter, the part). In part b of 06, as in 08, readers write a window's
# waits; of 02 and 05, messages beside computation; in part c, a window that keeps the last layer.
EXERCISES = [*((*pair, "") for pair in PAIRS), *((*PAIRS[at], "b") for at in (1, 4, 5)),
             (*PAIRS[5], "c")]
NAMES = [*CHAPTERS, "02b", "05b", "06b", "06c"]
REPORT = """---- rank 1 of 2
===
../a.cpp:9:
TEST CASE:  bytes and bits

../a.cpp:6: ERROR: CHECK( counted == predicted ) is NOT correct!
  values: CHECK( 32 == 64 )

../a.cpp:8: ERROR: loss of step number 2: 4.5 (40900000), expected 4 (40800000)
  logged: dtype fp32
          prefetch 1

===
[doctest] test cases: 3 | 2 passed | 1 failed
"""
SCREEN = ("holds: 05_zero2 on 1 ranks fails: 05_zero2 on 2 ranks 05_zero2 on 2 ranks: "
          + " ".join(REPORT.partition("9:\n")[2].replace("===\n", "").split()))
HELD = {1: "OK", 2: "OK"}
# ({ranks: what a failing test said, or OK}, what was printed, what the screen says of it).
JUDGED = [
    (HELD, "", "All 2 tests hold, on each number of ranks: this is 05_zero2."),
    ({1: "OK", 2: REPORT * 2}, "", SCREEN),
    ({1: "OK", 2: "rank 1/2: late"}, "", "on 2 ranks is broken off: late"),
    ({2: f"{RACE}\n  Write of size 8:\n    #0 memcpy a\n    #1 zero::f() <null>\n"}, "",
     "A data race: no order between these two. Write of size 8: #1 zero::f()"),
    ({1: "rank 0/1: SIGABRT"}, "", "are sizes and dtypes right?"),
    ({}, "ninja: 1\n05_zero2/trainer.hpp:6: error: expected ;\n[2/3] b.cpp",
     "It does not compile: 05_zero2/trainer.hpp:6: error: expected ;")]


def command(before, after, *words):
    return [sys.executable, "-B", ROOT / "tools/exercise.py", before, after, *words]


@pytest.mark.parametrize("said, printed, words", JUDGED)
def test_what_a_trainer_is_told(tmp_path, said, printed, words):
    """What is said of a reader's trainer fits on any screen. The card may not be changed."""
    of_05 = exercise.Exercise(*PAIRS[4], tmp_path, "auto")
    results = [{"name": f"05_zero2 on {ranks} ranks", "said": text,
                "result": "OK" if text == "OK" else "FAIL"} for ranks, text in said.items()]
    of_05.tree = SimpleNamespace(put=lambda _: None, test=lambda *_, **__: (results, printed))
    good, lines = of_05.judge(20)
    assert good == (said == HELD) and words in " ".join(" ".join(lines).split())
    assert good or len(of_05.judge(5)[1]) <= 5
    of_05.trainer.write_text("no card")
    good, lines = of_05.judge(20)
    assert not good and lines[0].startswith("The card is not 05_zero2's any more")


def test_every_save_is_tried(tmp_path):
    """The exercise goes on until Ctrl-C."""
    trainer = tmp_path / "05_zero2/trainer.hpp"
    trainer.parent.mkdir()
    trainer.write_text("no card")  # this is refused before anything is compiled
    with subprocess.Popen(command(*PAIRS[4], "--out", tmp_path), stdout=subprocess.PIPE,
                          text=True) as job:
        for screens, _ in enumerate(line for line in job.stdout if "Save to run again" in line):
            if screens == 2:
                job.send_signal(signal.SIGINT)
            trainer.write_text(f"no card // {screens}\n")
    assert (screens, job.returncode) == (2, 130)


@pytest.mark.parametrize("before, after, part", EXERCISES, ids=NAMES)
def test_beginnings_and_hints(before, after, part, tmp_path, capsys):
    """The card is the chapter's, the body that of the chapter before, or for a window or a part the
    chapter's own. What the reader has written stays. Hints come one by one, then the diff."""
    def hint():
        exercise.hint(exercise.Exercise(before, after, tmp_path, "auto", part))
        return capsys.readouterr().out

    of = exercise.Exercise(before, after, tmp_path, "auto", part)
    text = of.trainer.read_text()
    old = trainers.source(after if part else before) if before else ""
    if of.window:
        left = trainers.changes(text, of.own, "")
        waits = 3 if after == CHAPTERS[-1] else 6
        assert trainers.count(left) == sum(".wait(" in line for line in left) == waits
    elif part:
        assert text == (ROOT / of.name).read_text()
    elif before:
        assert text.endswith(old.partition(trainers.card(old))[2])
    else:
        assert "sqrt(var" not in text
    assert trainers.card(text) == trainers.card(of.own)
    hints = [hint() for _ in range(7)]
    count = int(re.match(r"Hint 1 of ([345]): ", hints[0])[1])
    assert all(said.startswith(f"Hint {i} of {count}: ") for i, said in enumerate(hints[:count], 1))
    lines = trainers.count(trainers.changes(text, of.own, after))
    assert f"'s: {lines} lines\n@@ {of.name}:" in hints[count] and lines
    assert hints[count] == hints[-1]
    of.trainer.write_text(of.own)
    assert "0 lines" in hint() and of.trainer.read_text() == of.own


def test_the_first_half_is_the_page_s(tmp_path):
    """06's first half gathers into one slot and computes with it, under a card that claims no more.
    Links to the checkout, which an earlier version left, are removed."""
    (tmp_path / "06_zero3").symlink_to(ROOT / "06_zero3")
    of = exercise.Exercise(*PAIRS[5], tmp_path, "auto")
    card, = of.given
    assert exercise.ONE_OF_EACH in card.read_text() and not card.parent.is_symlink()
    assert "window" not in of.own and of.own.count("slot_.borrow(l)") == 2
    assert "and_prefetched" in (ROOT / "06_zero3/card.hpp").read_text()


def test_part_c_has_formulas_of_its_own(tmp_path):
    """notes/fsdp2.diff gives them: the card, and predictions, of a window that keeps a layer."""
    given = exercise.Exercise(*PAIRS[5], tmp_path, "auto", "c").given
    assert [file.name for file in given] == ["prediction.hpp", "prediction.cpp", "card.hpp"]
    for file in given:
        assert file.read_text() != (ROOT / file.relative_to(tmp_path / "kept")).read_text()


def test_a_copy_takes_texts_and_keeps_times(tmp_path):
    """An equal file keeps its time, and a file that the repository no longer has is removed."""
    name, other = Path("05_zero2/trainer.hpp"), Path("06_zero3/trainer.hpp")
    tree = copied(tmp_path / "tree", {name: "mine"})
    (tree / "05_zero2/of_yesterday.hpp").touch()
    times = [(tree / file).stat().st_mtime_ns for file in (name, other)]
    copied(tree, {name: "mine"})
    assert times == [(tree / file).stat().st_mtime_ns for file in (name, other)]
    assert (tree / name).read_text() == "mine" and not (tree / "05_zero2/of_yesterday.hpp").exists()
    copied(tree)
    assert (tree / name).read_text() == (ROOT / name).read_text()


@pytest.mark.parametrize("before, after, part", EXERCISES, ids=NAMES)
def test_whole(programs, tmp_path_factory, before, after, part):
    """Exercises run in a folder of their own, in which most use one build."""
    mpi = "openmpi" if "openmpi" in programs.mpiexec else "mpich"
    out = tmp_path_factory.getbasetemp() / "exercise"
    of = exercise.Exercise(before, after, out, mpi, part)
    good, lines = of.judge(20)
    assert not good and len(lines) <= 20 and max(map(len, lines)) <= 80, lines
    of.trainer.write_text(of.own)
    good, lines = of.judge(20)
    assert good, lines
