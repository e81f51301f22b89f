#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The counter-examples of notes/counterexamples: the right runs have the bits that the programs
have (notes/digests.json), and the wrong ones the effects that they are shown for."""
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notes/counterexamples"
sys.path.insert(0, str(FOLDER))
import numpy as np  # noqa: E402
import optimizer  # noqa: E402
import sharding  # noqa: E402
from counter_example import EXAMPLES  # noqa: E402

problems = []


def check(holds, words):
    if not holds:
        problems.append(words)


def runs(example):
    return example.train(False), example.train(True)


def moved(run, step):
    """By a step, in learning rates."""
    return (run.weights[step] - run.weights[step - 1]) / run.lr


# ---- All of them -----------------------------------------------------------------------------

def anchored():
    """Whoever reproduces a program's digest has run the program."""
    for example in EXAMPLES.values():
        right, wrong = runs(example)
        check(right.digest(right.steps) == example.recorded,
              f"{example.name}: the right run is not that of {example.command}")
        check(wrong.losses[-1] < wrong.losses[0], f"{example.name}: the wrong run does not learn")
        same_bits = example.name in ("tensors", "allreduce")
        check((wrong.digest(wrong.steps) == example.recorded) == same_bits,
              f"{example.name}: the wrong run has {'other' if same_bits else 'the right'} bits")
        check(all(map(example.lines, ("right", "wrong"))), f"{example.name}: no lines to show")
    check(runs(sharding.families)[1].digest(20) == sharding.last.recorded,
          "families: the second run is not that of 05_zero2")


def caught():
    """The tests that catch them are there."""
    cases = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.cpp"))
    for example in EXAMPLES.values():
        test, case = example.caught
        check(f'TEST_CASE("{case}")' in cases, f"{example.name}: there is no case {case!r}")
        check(re.fullmatch(r"adam|0\d_\w+ on [2-8] ranks", test), f"{example.name}: {test!r}")


def page():
    """Whatever the machine, it prints the page's lines and tables: they have no clock and no
    rounding of their own."""
    paragraphs = runpy.run_path(str(FOLDER / "__main__.py"), run_name="imported")["paragraphs"]
    text = (ROOT / "notes/counterexamples.md").read_text()
    for example in EXAMPLES.values():
        printed = "\n\n".join(paragraphs(example))
        check(max(map(len, printed.splitlines())) <= 80, f"{example.name}: wider than 80 columns")
        shown = textwrap.dedent("\n\n".join(printed.split("\n\n")[2:5]))
        block = f"<!-- measured: counterexamples {example.name} -->\n\n```text\n{shown}\n```\n"
        check(block in text, f"{example.name}: the page shows something else than\n{shown}")


# ---- One by one: what a mistake does, from its formula ---------------------------------------

def updates():
    """In step 1 Adam moves by lr times the sign: three ranks' mean is a multiple of lr / 3."""
    _, wrong = runs(optimizer.updates)
    thirds = 3 * moved(wrong, 1)
    whole = np.mean(abs(thirds - np.rint(thirds)) < 0.01)  # but for gradients as small as eps
    check(whole > 0.95, f"updates: {whole} of step 1 are means of signs")
    apart = wrong.distance(optimizer.updates.train(False), 1).max()
    check(abs(apart - 4 / 3) < 1e-3, f"updates: step 1 ends {apart} apart, not lr + lr / 3")


def moments():
    """Nothing is kept, so a step is lr c(t) sign(g), and the first has the right bits."""
    right, wrong = runs(optimizer.moments)
    check(max(wrong.seen["largest m"]) == 0 < min(right.seen["largest m"]), "moments: m is kept")
    check((right.weights[1] == wrong.weights[1]).all(), "moments: step 1 has other bits")
    for t in (2, 12, 50):
        c = (1 - 0.9) / (1 - 0.9**t) / np.sqrt((1 - 0.999) / (1 - 0.999**t))
        low, high = np.percentile(wrong.lengths(t), (10, 90))
        check(max(abs(low - c), abs(high - c)) < 0.01 * c, f"moments: step {t} is not {c} long")


def master():
    """Lost is what is less than half the distance to a neighbour, and in fp32 next to nothing."""
    right, wrong = runs(optimizer.master)
    check(np.mean(wrong.seen["lost"]) > 0.5 and np.mean(right.seen["lost"]) < 0.001,
          "master: updates are not lost")
    fell = [run.losses[0] - run.losses[-1] for run in (right, wrong)]
    check(fell[1] < 0.6 * fell[0], f"master: the losses fall by {fell}")
    before, after = (wrong.stored(w) for w in wrong.weights[:2])
    full = np.isclose(abs(moved(right, 1)), 1, rtol=1e-2)  # nearly all of step 1
    # Half the distance to the neighbour further from 0; the other may be half as far.
    half = np.exp2(np.floor(np.log2(np.maximum(abs(before), 2.0**-100))) - 8)
    check((after == before)[full & (half > 2.1 * wrong.lr)].all(), "master: a lost update moved")
    check((after != before)[full & (half < 0.4 * wrong.lr)].all(), "master: a large one is lost")


def correction():
    """The first step is 0.1 / sqrt(0.001) learning rates long, and not one."""
    lengths = [np.median(run.lengths(1)) for run in runs(optimizer.correction)]
    check(np.allclose(lengths, (1, 0.1 / np.sqrt(0.001)), rtol=1e-3), f"correction: {lengths}")


def overflow():
    """After the first overflow the right run goes on, and the wrong one only halves its scale."""
    right, wrong = (run.seen for run in runs(optimizer.overflow))
    first = right["skipped"].index(True)
    check(first == wrong["skipped"].index(True) and sum(right["skipped"]) == 1,
          f"overflow: steps {right['skipped']}")
    check(all(wrong["skipped"][first:]), "overflow: the wrong run recovers")
    check(wrong["scale"][first:] == [16 - k for k in range(30 - first)],
          f"overflow: scales {wrong['scale']}")


def tensors():
    """Two of six tensors each: 1640, 1640 and 10496 elements of 8 bytes, and none; sent by who
    owns p of P elements: P - p to the owners and 3 p of its own to the others."""
    right, wrong = runs(sharding.tensors)
    owned = np.array([41 * 40, 41 * 40, 41 * 256, 0])
    check(wrong.seen["state"] == [*8 * owned], f"tensors: held are {wrong.seen['state']}")
    check(len(set(right.seen["state"])) == 1, f"tensors: {right.seen['state']} is uneven")
    check((wrong.ranks.sent == wrong.steps * (owned.sum() - owned + 3 * owned)).all(),
          f"tensors: sent are {wrong.ranks.sent}")


def padding():
    """Of one gradient the norms differ by what lies in the padding: a part of the last layer's."""
    right, wrong = runs(sharding.padding)
    check(right.sizes == [128, 128, 128, 2304] and right.used == [72, 72, 72, 2304],
          f"padding: layers of {right.sizes}")
    first = right.seen["leftovers"][0], wrong.seen["leftovers"][0]
    norms = right.seen["norm"][0], wrong.seen["norm"][0]
    check(first[0] == 0 < first[1] and
          np.isclose(norms[1]**2 - norms[0]**2, first[1], rtol=1e-6), f"padding: {norms} {first}")


def last():
    """A quarter of the last micro-batch's gradient: of a run whose step is that micro-batch."""
    right, wrong = runs(sharding.last)
    _, g = wrong.forward_and_backward(wrong.weights[0], 0)
    mine = np.linalg.norm(g[-1].mean(0) / 4)
    check(np.isclose(wrong.seen["norm"][0], mine, rtol=1e-6), "last: it is not the last one")
    check(wrong.seen["norm"][0] < 0.4 * right.seen["norm"][0], "last: it is not a quarter")


def allreduce():
    right, wrong = runs(sharding.allreduce)
    unit = right.steps * right.w.size * 2 // 3
    check((right.ranks.sent == 2 * unit).all() and (wrong.ranks.sent == 3 * unit).all(),
          f"allreduce: sent are {right.ranks.sent} and {wrong.ranks.sent}, of {unit}")


def families():
    """Step 1 begins with the same weights, and each gradient is within the page's bound."""
    right, wrong = runs(sharding.families)
    apart = abs(right.seen["gradient"][0] - wrong.seen["gradient"][0])
    bound = 2 * (3 + 4) * 2.0**-24 * right.seen["mean |g|"][0]
    check((apart <= bound).all() and apart.any(), "families: a gradient is outside its bound")
    shares = [np.mean(wrong.distance(right, t) > 0) for t in (1, 10, 20)]
    check(0 < shares[0] < shares[1] < shares[2], f"families: {shares} of the weights differ")


# ---- The command -----------------------------------------------------------------------------

def start(*words):
    return subprocess.run([sys.executable, FOLDER, *words], text=True, capture_output=True)


def command():
    names = ", ".join(EXAMPLES)
    everything = start()
    check(everything.returncode == 0 and all(f"\n  {name} " in everything.stdout
                                             for name in EXAMPLES), f"the list: {everything}")
    for words in (["momentum"], ["moments", "last"]):
        refused = start(*words)
        check(refused.returncode == 2 and not refused.stdout and
              refused.stderr.count("\n") == 1 and names in refused.stderr, f"{words}: {refused}")
    one = start("allreduce")
    wide = [line for line in (one.stdout + everything.stdout).splitlines() if len(line) > 80]
    check(one.returncode == 0 and not one.stderr and not wide, f"allreduce: {one} {wide}")
    check("run.ranks.reduce_scatter_mean(g)\n" in one.stdout, f"no lines of code: {one.stdout}")


def main():
    for test in (anchored, caught, page, updates, moments, master, correction, overflow, tensors,
                 padding, last, allreduce, families, command):
        test()
        print(test.__name__, flush=True)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
