# SPDX-License-Identifier: MIT
"""The diffs of notes/counterexamples.md can be made, and with them the programs print the page's
numbers. The right programs have the digests of notes/digests.json."""
import json
import re
import subprocess
import sys

import pytest

import mistake
import page_reader
import sabotage
from runs import ROOT

RECORDED = {(str(row["ranks"]), row["program"], row["options"]): row["digest"]
            for row in json.loads((ROOT / "notes/digests.json").read_text())}
PAGE = mistake.PAGE.read_text()
HEAD, *SECTIONS = PAGE.split("\n## ")  # one for each mistake, in their order
ROWS = dict(re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", HEAD))
MISTAKES = mistake.mistakes()
CASES = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.cpp"))
# These mistakes cost memory or messages, but change no bit of what is trained.
BITS_ARE_RIGHT = ("tensors", "allreduce")


@pytest.mark.parametrize("name", MISTAKES)
def test_told(name):
    """Each diff can be made, its test case exists, and runs of unchanged programs are recorded."""
    found = MISTAKES[name]
    page_reader.edited(found.diffs)
    assert bool(found.diffs) == (name != "families")
    assert f'TEST_CASE("{found.caught.partition(": ")[2]}")' in CASES
    assert all(tuple(command) in RECORDED for command in found.commands)
    assert (name in ROWS) == (name not in mistake.SIDES)


@pytest.mark.parametrize("name", MISTAKES)
def test_what_programs_print_is_told(name, programs, capsys):
    """The page's table has the last losses and a row of what is printed. Percentages and counts in
    a section's prose are printed, too. The loss falls, whatever is wrong."""
    found, work = MISTAKES[name], programs.build / "sabotage"
    mpi = "openmpi" if "openmpi" in programs.mpiexec else "mpich"
    right, wrong = found.runs(programs.build, programs.mpiexec, work, mpi)
    found.print_runs(right, wrong)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert right.code == 0 and right.summary["digest"] == RECORDED[tuple(found.commands[0])]
    assert wrong.steps[-1]["loss"] < wrong.steps[0]["loss"]
    apart = any(wrong.distances(len(wrong.steps)))
    assert apart == (name not in BITS_ARE_RIGHT)
    prose = SECTIONS[[*MISTAKES].index(name)].partition("\n```diff")[0]
    for figure in re.findall(r"\d[\d.]* %|\d+ of \d+", prose):
        assert figure in printed
    if name in ROWS:
        losses = [f"{run.steps[-1]['loss']:.5f}" for run in (right, wrong)]
        assert ROWS[name].split(" | ")[:2] == losses
        rows = [" | ".join(row) for row in found.figures(right, wrong)]
        assert " | ".join(ROWS[name].split(" | ")[2:]) in rows


@pytest.mark.parametrize("name", [name for name, found in MISTAKES.items() if found.diffs])
def test_every_mistake_is_caught(name, programs):
    """The test that the mistake's section names fails."""
    sabotage.tried(MISTAKES[name].diffs, sabotage.tree_for(programs.build / "sabotage", "plain"))


def test_listed_and_refused():
    def told(*words):
        return subprocess.run([sys.executable, "-B", ROOT / "tools/mistake.py", *words], text=True,
                              capture_output=True)

    listed = told()
    assert listed.returncode == 0 and not listed.stderr
    assert all(f"\n  {name} " in listed.stdout for name in MISTAKES)
    assert max(map(len, listed.stdout.splitlines())) <= 80
    refused = told("momentum")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert ", ".join(MISTAKES) in refused.stderr
