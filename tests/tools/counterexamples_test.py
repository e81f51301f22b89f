# SPDX-License-Identifier: MIT
"""The counter-examples of tools/mistakes: the right runs have the bits that the programs
have (notes/digests.json), and the wrong ones the effects that the page shows, in every digit."""
import json
import re
import subprocess
import sys
import textwrap

import pytest

from runs import ROOT
import examples  # noqa: F401 (what it decorates becomes one of EXAMPLES)
from counter_example import EXAMPLES

FOLDER = ROOT / "tools/mistakes"
RECORDED = json.loads((ROOT / "notes/digests.json").read_text())
PAGE = (ROOT / "notes/counterexamples.md").read_text()
CASES = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.cpp"))


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_anchored_caught_and_shown(example):
    """Whoever reproduces a program's digest has run the program. The page shows what is printed:
    it has no clock and no rounding of its own."""
    right, wrong = example.runs
    run = (example.program, example.ranks, example.options)
    recorded, = (row["digest"] for row in RECORDED
                 if (row["program"], row["ranks"], row["options"]) == run)
    assert right.digest(right.steps) == recorded
    assert wrong.losses[-1] < wrong.losses[0]
    assert (wrong.digest(wrong.steps) == recorded) == (example.name in ("tensors", "allreduce"))
    assert all(map(example.lines, ("right", "wrong")))
    test, case = example.caught
    assert f'TEST_CASE("{case}")' in CASES
    assert re.fullmatch(r"adam|(0\d_\w+|communicator) on [2-8] ranks", test)
    printed = "\n\n".join(example.paragraphs())
    assert max(map(len, printed.splitlines())) <= 80
    shown = textwrap.dedent("\n\n".join(printed.split("\n\n")[2:5]))
    assert f"\n```text\n{shown}\n```\n" in PAGE


def test_without_numpy():
    done = subprocess.run([sys.executable, "-S", FOLDER], text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (6, "")
    assert re.fullmatch("tutorial: mistake: .* no numpy: install python3-numpy, .*\n", done.stderr)


@pytest.mark.parametrize("words, code, said", [
    ([], 0, [f"\n  {name} " for name in EXAMPLES]), (["momentum"], 2, [", ".join(EXAMPLES)]),
    (["moments", "last"], 2, [", ".join(EXAMPLES)]),
    (["allreduce"], 0, ["run.ranks.reduce_scatter_mean(g)\n"])])
def test_command(words, code, said):
    done = subprocess.run([sys.executable, FOLDER, *words], text=True, capture_output=True)
    printed, other = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
    assert done.returncode == code and not other and all(word in printed for word in said)
    assert printed.count("\n") == 1 if code else max(map(len, printed.splitlines())) <= 80
