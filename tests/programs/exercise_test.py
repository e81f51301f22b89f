# SPDX-License-Identifier: MIT
"""`./tutorial exercise` behind its shell: where it starts, what it says, its hints.

What it says is tried on a toy: a project of one chapter and its suite, which compiles in a second.
In the chapters' own tests every chapter's trainer holds, and the one before it does not.
"""
import re
import shutil
import signal
import subprocess
import sys

import pytest
from programs import CHAPTERS, ROOT

import exercise
import trainers

PAIRS = list(zip(CHAPTERS, CHAPTERS[1:]))
# What the untouched trainer of the chapter before is told first: it does not compile, writes past
# a tensor, or counts what the card does not predict.
COUNTED = "CHECK( {} ) logged: mlp fp32 layers 1 accumulate 1 prefetch {} bytes {}"
FIRST = {"02": "no matching function for call to", "03": "on 1 ranks is broken off",
         "04": COUNTED.format("512 == 256", 1, "of optimizer held"),
         "05": COUNTED.format("224 == 448", 1, "of gradients reserved"),
         "06": COUNTED.format("224 == 448", 0, "of parameters reserved"),
         "07": COUNTED.format("448 == 0", 0, "of optimizer held")}
TRAINER = """// A trainer of a toy.
namespace zero {{
  static constexpr Chapter chapter{{
      .name = "{name}",
  }};
inline int tried(int ranks) {{ {body} }}
}}
"""
REPORT = """---- rank 1 of 2
===
../a.cpp:9:
TEST CASE:  bytes and bits

../a.cpp:6: ERROR: CHECK( counted == predicted ) is NOT correct!
  values: CHECK( 32 == 64 )
  logged: mlp fp32
          bytes of gradients held

../a.cpp:7: ERROR: CHECK( sum == 3 ) is NOT correct!
  values: CHECK( 4 == 3 )

../a.cpp:8: ERROR: loss of step number 2: 4.5 (40900000), expected 4 (40800000)
  logged: dtype fp32
          prefetch 1

===
[doctest] test cases: 3 | 2 passed | 1 failed
"""
SCREEN = "fails: 05_zero2 on 2 ranks 05_zero2 on 2 ranks: " + " ".join(
    REPORT.partition("9:\n")[2].replace("===\n", "").split())
WRONG = f'std::puts(R"({REPORT * 2})"); return ranks > 1;'
TOY = {
    "meson.build": """project('toy', 'cpp')
foreach n : [1, 2, 3]
  test('05_zero2 on @0@ ranks'.format(n), executable('toy_@0@'.format(n), 'toy.cpp',
    include_directories: '05_zero2'), args: n.to_string(),
    suite: ['05_zero2'] + (n > 2 ? ['long'] : []))
endforeach
""",
    "toy.cpp": """#include <cstdio>
#include <cstdlib>
struct Chapter { const char* name; };
#include "trainer.hpp"
int main(int, char** argv) { return zero::tried(std::atoi(argv[1])); }
""",
    "04_zero1/trainer.hpp": TRAINER.format(name="04_zero1", body=WRONG),
    "05_zero2/trainer.hpp": TRAINER.format(name="05_zero2", body="return 0 * ranks;")}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a toy")
    for name, text in TOY.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(ROOT / "meson_options.txt", folder)
    shutil.copytree(ROOT / "notes/scripts", folder / "notes/scripts")
    return folder


def command(root, before, after, *words):
    return [sys.executable, root / "notes/scripts/exercise.py", before, after, *map(str, words)]


def tried(root, pair, code, words, *how):
    """Its screen says so, in a terminal's lines and columns."""
    done = subprocess.run(command(root, *pair, "--once", *how), text=True, capture_output=True,
                          cwd=root, stdin=subprocess.DEVNULL)
    lines = re.sub(r"\S*/\S+/(0\d_\w+/t)", r"build/exercise/\1", done.stdout).splitlines()
    assert done.returncode == code and words in " ".join(done.stdout.split()), done
    assert len(lines) <= 24 and max(map(len, lines)) <= 80, done.stdout


def test_a_trainer_is_compiled_tried_and_judged(toy):
    """Again at each save: neither what was compiled before nor a failure may hold."""
    trainer = toy / "build/exercise/05_zero2/trainer.hpp"
    tried(toy, PAIRS[3], 1, SCREEN)
    assert trainer.read_text() == TRAINER.format(name="05_zero2", body=WRONG)
    for code, words, body in (
            (0, "All 2 tests hold, on each number of ranks: this is 05_zero2.", "return 0;"),
            (1, "fails: 05_zero2 on 1 ranks", "return 1;"),
            (1, "on 2 ranks is broken off: late", 'std::puts("rank 1/2: late"); return ranks > 1;'),
            (1, "are sizes and dtypes right?", 'std::puts("rank 0/2: SIGABRT"); return 134;'),
            (1, "It does not compile: ../05_zero2/trainer.hpp:6:", "return 2 +;")):
        trainer.write_text(TRAINER.format(name="05_zero2", body=body))
        tried(toy, PAIRS[3], code, words)
    trainer.write_text(TRAINER.format(name="05", body="return 0;"))
    tried(toy, PAIRS[3], 1, "The card is not 05_zero2's any more")


def test_every_save_is_tried(toy):
    """Until Ctrl-C."""
    trainer = toy / "build/exercise/05_zero2/trainer.hpp"
    trainer.write_text("no card")  # is refused before anything is compiled
    with subprocess.Popen(command(toy, *PAIRS[3]), stdout=subprocess.PIPE, text=True) as job:
        for screens, _ in enumerate(line for line in job.stdout if "Save to run again" in line):
            if screens == 2:
                job.send_signal(signal.SIGINT)
            trainer.write_text(f"no card // {screens}\n")
    assert (screens, job.returncode) == (2, 130)


def test_a_screen_is_not_too_high():
    results = [{"name": "06_zero3 on 2 ranks", "result": "FAIL", "said": REPORT}]
    assert len(exercise.screen(results, results, 5)) == 5


@pytest.mark.parametrize("before, after", PAIRS)
def test_beginnings_and_hints(before, after, tmp_path):
    """The body is the chapter's before, the card the chapter's; what is written there stays. Hints
    come one by one, then the diff."""
    def hint():
        return subprocess.run(command(ROOT, before, after, "--hint", "--out", tmp_path), text=True,
                              capture_output=True, stdin=subprocess.DEVNULL).stdout

    hints = [hint() for _ in range(7)]
    count = int(re.match(r"Hint 1 of ([345]): ", hints[0])[1])
    assert all(said.startswith(f"Hint {i} of {count}: ")
               for i, said in enumerate(hints[:count], 1))
    trainer = tmp_path / after / "trainer.hpp"
    text, new, old = trainer.read_text(), trainers.source(after), trainers.source(before)
    assert trainers.card(text) == trainers.card(new)
    assert text.endswith(old.partition(trainers.card(old))[2])
    lines = trainers.count(trainers.changes(text, new, after))
    assert f"'s: {lines} lines\n@@ {after}" in hints[count] and lines and hints[count] == hints[-1]
    trainer.write_text(new)
    assert "0 lines" in hint() and trainer.read_text() == new


@pytest.fixture(scope="module")
def chapters(programs, tmp_path_factory):
    """The chapters themselves, in a folder beside any that a reader has."""
    out = tmp_path_factory.mktemp("exercise")
    mpi = "openmpi" if "openmpi" in programs.mpiexec else "mpich"

    def once(pair, code, words, text=None):
        if text:
            (out / pair[1] / "trainer.hpp").write_text(text)
        tried(ROOT, pair, code, words, "--out", out, "--mpi", mpi)

    return once


@pytest.mark.parametrize("pair", PAIRS, ids=CHAPTERS[1:])
def test_whole(chapters, pair):
    chapters(pair, 1, FIRST[pair[1][:2]])
    chapters(pair, 0, f"this is {pair[1]}", trainers.source(pair[1]))
