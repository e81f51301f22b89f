# SPDX-License-Identifier: MIT
"""`./tutorial exercise` behind its shell: where it starts, what it says, its hints.

What it says is tried on made-up results. In the chapters' own tests every chapter's trainer holds,
and the one before it does not.
"""
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from programs import CHAPTERS, ROOT

import exercise
import trainers

PAIRS = list(zip(["", *CHAPTERS], CHAPTERS))
# What the untouched trainer of the chapter before is told first: it does not compile, writes past
# a tensor, or counts what the card does not predict.
COUNTED = "CHECK( {} ) logged: mlp fp32 layers 1 accumulate 1 prefetch {} bytes {}"
FIRST = {"01": "CHECK( 1 < 1 ) logged: the weight is not written: is the body empty?",
         "02": "no matching function for call to", "03": "on 1 ranks is broken off",
         "04": "CHECK( whole == shard ) logged: momentum",
         "05": COUNTED.format("224 == 448", 1, "of gradients reserved"),
         "06": COUNTED.format("224 == 448", 0, "of parameters reserved"),
         "07": COUNTED.format("448 == 0", 0, "of optimizer held")}
REPORT = """---- rank 1 of 2
===
../a.cpp:9:
TEST CASE:  bytes and bits

../a.cpp:6: ERROR: CHECK( counted == predicted ) is NOT correct!
  values: CHECK( 32 == 64 )
  logged: mlp fp32
          bytes of gradients held

../a.cpp:8: ERROR: loss of step number 2: 4.5 (40900000), expected 4 (40800000)
  logged: dtype fp32
          prefetch 1

===
[doctest] test cases: 3 | 2 passed | 1 failed
"""
SCREEN = ("holds: 05_zero2 on 1 ranks fails: 05_zero2 on 2 ranks 05_zero2 on 2 ranks: "
          + " ".join(REPORT.partition("9:\n")[2].replace("===\n", "").split()))
HELD = {1: "OK", 2: "OK"}
# By ranks what a test said that fails, or OK; what was printed; and what the screen says of it.
JUDGED = [
    (HELD, "", "All 2 tests hold, on each number of ranks: this is 05_zero2."),
    ({1: "OK", 2: REPORT * 2}, "", SCREEN),
    ({1: "", 2: "OK"}, "", "fails: 05_zero2 on 1 ranks"),
    ({1: "OK", 2: "rank 1/2: late"}, "", "on 2 ranks is broken off: late"),
    ({1: "rank 0/1: SIGABRT"}, "", "are sizes and dtypes right?"),
    ({}, "ninja: 1\n../05_zero2/trainer.hpp:6: error: expected ;\n[2/3] b.cpp",
     "It does not compile: ../05_zero2/trainer.hpp:6: error: expected ;")]


def command(before, after, *words):
    return [sys.executable, "-B", ROOT / "tools/exercise.py", before, after, *words]


def written(before, after, out):
    """What is to be written, and how the tree has it."""
    name = f"{after}/trainer.hpp" if before else "common/compute/adam_element.hpp"
    return out / ("" if before else "adam") / name, (ROOT / name).read_text()


@pytest.mark.parametrize("said, printed, words", JUDGED)
def test_what_a_trainer_is_told(tmp_path, said, printed, words):
    """On a screen however low; and its card is not to be changed."""
    of_05 = exercise.Exercise(*PAIRS[4], tmp_path, "auto")
    results = [{"name": f"05_zero2 on {ranks} ranks", "said": text,
                "result": "OK" if text == "OK" else "FAIL"} for ranks, text in said.items()]
    of_05.trial = SimpleNamespace(test=lambda *_, **__: (results, printed))
    good, lines = of_05.judge(20)
    assert good == (said == HELD) and words in " ".join(" ".join(lines).split())
    assert good or len(of_05.judge(5)[1]) <= 5
    of_05.trainer.write_text("no card")
    good, lines = of_05.judge(20)
    assert not good and lines[0].startswith("The card is not 05_zero2's any more")


def test_every_save_is_tried(tmp_path):
    """Until Ctrl-C."""
    trainer = tmp_path / "05_zero2/trainer.hpp"
    trainer.parent.mkdir()
    trainer.write_text("no card")  # is refused before anything is compiled
    with subprocess.Popen(command(*PAIRS[4], "--out", tmp_path), stdout=subprocess.PIPE,
                          text=True) as job:
        for screens, _ in enumerate(line for line in job.stdout if "Save to run again" in line):
            if screens == 2:
                job.send_signal(signal.SIGINT)
            trainer.write_text(f"no card // {screens}\n")
    assert (screens, job.returncode) == (2, 130)


@pytest.mark.parametrize("before, after", PAIRS)
def test_beginnings_and_hints(before, after, tmp_path):
    """The body is the chapter's before, the card the chapter's; what is written there stays. Hints
    come one by one, then the diff."""
    def hint():
        return subprocess.run(command(before, after, "--hint", "--out", tmp_path), text=True,
                              capture_output=True, stdin=subprocess.DEVNULL).stdout

    hints = [hint() for _ in range(7)]
    count = int(re.match(r"Hint 1 of ([345]): ", hints[0])[1])
    assert all(said.startswith(f"Hint {i} of {count}: ") for i, said in enumerate(hints[:count], 1))
    trainer, new = written(before, after, tmp_path)
    text = trainer.read_text()
    if before:
        old = trainers.source(before)
        assert text.endswith(old.partition(trainers.card(old))[2])
    else:
        assert text == trainers.emptied(new) and "sqrt(var" not in text
    assert trainers.card(text) == trainers.card(new)
    lines = trainers.count(trainers.changes(text, new, after))
    name = after if before else "common"
    assert f"'s: {lines} lines\n@@ {name}/" in hints[count] and lines and hints[count] == hints[-1]
    trainer.write_text(new)
    assert "0 lines" in hint() and trainer.read_text() == new


@pytest.mark.parametrize("pair", PAIRS, ids=CHAPTERS)
def test_whole(programs, tmp_path_factory, pair):
    """In a terminal's lines and columns, of the chapters themselves, in a folder beside any that a
    reader has, where all use one build. What failed, and is compiled, may not hold on."""
    mpi = "openmpi" if "openmpi" in programs.mpiexec else "mpich"
    out = tmp_path_factory.getbasetemp() / "exercise"
    trainer, right = written(*pair, out)
    tries = [(1, FIRST[pair[1][:2]], None), (0, f"this is {pair[1]}", right)]
    if not pair[0]:  # moments that are the function's own, so that the state stays 0
        own = re.sub("float& (momentum|variance)", r"float \1", right)
        tries.insert(1, (1, "CHECK( 0 == 1 ) logged: the momentum is forgotten", own))
    for code, words, text in tries:
        if text:
            trainer.write_text(text)
        done = subprocess.run(command(*pair, "--once", "--out", out, "--mpi", mpi), cwd=ROOT,
                              text=True, capture_output=True, stdin=subprocess.DEVNULL)
        printed = re.sub(r"\S*/\S+/(0\d_\w+/t|adam/c)", r"build/exercise/\1", done.stdout)
        lines = printed.splitlines()
        assert done.returncode == code and words in " ".join(done.stdout.split()), done
        assert len(lines) <= 24 and max(map(len, lines)) <= 80, done.stdout
