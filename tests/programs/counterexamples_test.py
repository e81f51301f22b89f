# SPDX-License-Identifier: MIT
"""The counter-examples of notes/counterexamples: the right runs have the bits that the programs
have (notes/digests.json), and the wrong ones the effects that they are shown for."""
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notes/counterexamples"
sys.path.insert(0, str(FOLDER))
PARAGRAPHS = runpy.run_path(str(FOLDER / "__main__.py"), run_name="imported")["paragraphs"]
from counter_example import EXAMPLES  # noqa: E402

PAGE = (ROOT / "notes/counterexamples.md").read_text()
CASES = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.cpp"))


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_anchored_caught_and_shown(example):
    """Whoever reproduces a program's digest has run the program. The page shows what is printed:
    it has no clock and no rounding of its own."""
    right, wrong = example.runs
    assert right.digest(right.steps) == example.recorded
    assert wrong.losses[-1] < wrong.losses[0]
    same_bits = example.name in ("tensors", "allreduce")
    assert (wrong.digest(wrong.steps) == example.recorded) == same_bits
    assert all(map(example.lines, ("right", "wrong")))
    test, case = example.caught
    assert f'TEST_CASE("{case}")' in CASES and re.fullmatch(r"adam|0\d_\w+ on [2-8] ranks", test)
    printed = "\n\n".join(PARAGRAPHS(example))
    assert max(map(len, printed.splitlines())) <= 80
    shown = textwrap.dedent("\n\n".join(printed.split("\n\n")[2:5]))
    assert f"\n```text\n{shown}\n```\n" in PAGE


# ---- One by one: what a mistake does, from its formula ---------------------------------------

def test_updates():
    """In step 1 Adam moves by lr times the sign: three ranks' mean is a multiple of lr / 3."""
    right, wrong = EXAMPLES["updates"].runs
    thirds = 3 * wrong.moved(1)
    assert np.mean(abs(thirds - np.rint(thirds)) < 0.01) > 0.95  # but for gradients as small as eps
    assert abs(wrong.distance(right, 1).max() - 4 / 3) < 1e-3  # lr + lr / 3 apart


def test_moments():
    """Nothing is kept, so a step is lr c(t) sign(g), and the first has the right bits."""
    right, wrong = EXAMPLES["moments"].runs
    assert max(wrong.seen["largest m"]) == 0 < min(right.seen["largest m"])
    assert (right.weights[1] == wrong.weights[1]).all()
    for t in (2, 12, 50):
        c = (1 - 0.9) / (1 - 0.9**t) / np.sqrt((1 - 0.999) / (1 - 0.999**t))
        assert np.percentile(wrong.lengths(t), (10, 90)) == pytest.approx(c, rel=0.01)


def test_master():
    """Lost is what is less than half the distance to a neighbour, and in fp32 next to nothing."""
    right, wrong = EXAMPLES["master"].runs
    assert np.mean(wrong.seen["lost"]) > 0.5 and np.mean(right.seen["lost"]) < 0.001
    fell = [run.losses[0] - run.losses[-1] for run in (right, wrong)]
    assert fell[1] < 0.6 * fell[0]
    before, after = (wrong.stored(w) for w in wrong.weights[:2])
    full = np.isclose(abs(right.moved(1)), 1, rtol=1e-2)  # nearly all of step 1
    # Half the distance to the neighbour further from 0; the other may be half as far.
    half = np.exp2(np.floor(np.log2(np.maximum(abs(before), 2.0**-100))) - 8)
    assert (after == before)[full & (half > 2.1 * wrong.lr)].all()
    assert (after != before)[full & (half < 0.4 * wrong.lr)].all()


def test_correction():
    """The first step is 0.1 / sqrt(0.001) learning rates long, and not one."""
    lengths = [np.median(run.lengths(1)) for run in EXAMPLES["correction"].runs]
    assert lengths == pytest.approx([1, 0.1 / np.sqrt(0.001)], rel=1e-3)


def test_overflow():
    """After the first overflow the right run goes on, and the wrong one only halves its scale."""
    right, wrong = (run.seen for run in EXAMPLES["overflow"].runs)
    first = right["skipped"].index(True)
    assert first == wrong["skipped"].index(True) and sum(right["skipped"]) == 1
    assert all(wrong["skipped"][first:])
    assert wrong["scale"][first:] == [16 - k for k in range(30 - first)]


def test_tensors():
    """Two of six tensors each: 1640, 1640 and 10496 elements of 8 bytes, and none; sent by who
    owns p of P elements: P - p to the owners and 3 p of its own to the others."""
    right, wrong = EXAMPLES["tensors"].runs
    owned = np.array([41 * 40, 41 * 40, 41 * 256, 0])
    assert wrong.seen["state"] == [*8 * owned] and len(set(right.seen["state"])) == 1
    assert (wrong.ranks.sent == wrong.steps * (owned.sum() - owned + 3 * owned)).all()


def test_padding():
    """Of one gradient the norms differ by what lies in the padding: a part of the last layer's."""
    right, wrong = EXAMPLES["padding"].runs
    assert right.sizes == [128, 128, 128, 2304] and right.used == [72, 72, 72, 2304]
    none, left = right.seen["leftovers"][0], wrong.seen["leftovers"][0]
    squares = [run.seen["norm"][0]**2 for run in (right, wrong)]
    assert none == 0 < left and squares[1] - squares[0] == pytest.approx(left, rel=1e-6)


def test_last():
    """A quarter of the last micro-batch's gradient: of a run whose step is that micro-batch."""
    right, wrong = EXAMPLES["last"].runs
    _, g = wrong.forward_and_backward(wrong.weights[0], 0)
    assert wrong.seen["norm"][0] == pytest.approx(np.linalg.norm(g[-1].mean(0) / 4), rel=1e-6)
    assert wrong.seen["norm"][0] < 0.4 * right.seen["norm"][0]


def test_allreduce():
    right, wrong = EXAMPLES["allreduce"].runs
    unit = right.steps * right.w.size * 2 // 3
    assert (right.ranks.sent == 2 * unit).all() and (wrong.ranks.sent == 3 * unit).all()


def test_families():
    """Step 1 begins with the same weights, and each gradient is within the page's bound. The second
    side is a run of 05_zero2."""
    right, wrong = EXAMPLES["families"].runs
    assert wrong.digest(20) == EXAMPLES["last"].recorded
    apart = abs(right.seen["gradient"][0] - wrong.seen["gradient"][0])
    bound = 2 * (3 + 4) * 2.0**-24 * right.seen["mean |g|"][0]
    assert (apart <= bound).all() and apart.any()
    shares = [np.mean(wrong.distance(right, t) > 0) for t in (1, 10, 20)]
    assert 0 < shares[0] < shares[1] < shares[2]


@pytest.mark.parametrize("words, code, said", [
    ([], 0, [f"\n  {name} " for name in EXAMPLES]), (["momentum"], 2, [", ".join(EXAMPLES)]),
    (["moments", "last"], 2, [", ".join(EXAMPLES)]),
    (["allreduce"], 0, ["run.ranks.reduce_scatter_mean(g)\n"])])
def test_command(words, code, said):
    done = subprocess.run([sys.executable, FOLDER, *words], text=True, capture_output=True)
    printed, other = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
    assert done.returncode == code and not other and all(word in printed for word in said)
    assert printed.count("\n") == 1 if code else max(map(len, printed.splitlines())) <= 80
