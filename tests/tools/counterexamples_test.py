# SPDX-License-Identifier: MIT
"""The counter-examples of tools/mistakes: the right runs have the bits that the programs
have (notes/digests.json), and the wrong ones the effects that the page tells, in every digit."""
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
HEAD, *SECTIONS = PAGE.split("\n## ")  # one for each example, in their order
ROWS = dict(re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", HEAD))
CASES = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.cpp"))


@pytest.mark.parametrize("example, section", zip(EXAMPLES.values(), SECTIONS), ids=EXAMPLES)
def test_anchored_caught_and_told(example, section):
    """Whoever reproduces a program's digest has run the program. The page's table has the last
    losses and a row of what is printed; code, percentages, counts and bits are the printed ones."""
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
    paragraphs = [*example.paragraphs()]
    printed = "\n\n".join(paragraphs)
    assert max(map(len, printed.splitlines())) <= 80
    code, losses, found = map(textwrap.dedent, paragraphs[2:5])
    assert re.findall("```text\n(.*?)\n```", section, re.S) in ([], [code])
    for figure in re.findall(r"\d[\d.]* %|\d+ of \d+|0x\w+", section):
        assert figure in found
    if example.sides == ("right", "wrong"):
        ours, theirs, *row = ROWS[example.name].split(" | ")
        assert losses.splitlines()[-1].split()[1:3] == [ours, theirs]
        assert row in [re.split("  +", line) for line in found.splitlines()]


def test_every_example_has_its_section():
    assert len(SECTIONS) == len(EXAMPLES) and PAGE.count("```text\n") >= 3


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
