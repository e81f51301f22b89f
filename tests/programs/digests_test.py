# SPDX-License-Identifier: MIT
"""Runs on the CPU have the bits of notes/digests.json, with each instruction set of this machine.
NumPy, by notes/generator.md and formulas, has the same first weights, nearly the same gradients.

A row of notes/digests.json is a run, its last loss as printed, and its digest. README and
notes/*.md show no other digests. Runs of 200 steps are the demo's. `digests_test.py BUILD MPIEXEC
[WORD...]` records losses and digests anew, of rows whose options have all these words. NumPy rounds
gradients to 16 bits where the programs store them; it forms a llama's gradients in float64."""
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from checkpoint_test import read_tensors
from programs import ALONE, CHAPTERS, MIXED, ON_RANKS, ROOT, USAGE, Programs, read_log

from numpy_model import (CORPUS, STORED, Case, initial_parameters, layer_digests,
                         loss_and_gradient, matrices, samples_of_step)

FILE = ROOT / "notes/digests.json"
# Values of ZERO_VECTORS. No machine has all. matmul_test.cpp tests that the variable has an effect.
WIDTHS = ["avx512", "avx2", "neon", "plain"]


def steps_of(row):
    return int(re.search(r"--steps (\d+)", row["options"])[1])


RECORDED = json.loads(FILE.read_text())
OF_THE_DEMO = [row for row in RECORDED if steps_of(row) == 200]
LONG = [row for row in RECORDED if 100 <= steps_of(row) < 200]
SHORT = [row for row in RECORDED if steps_of(row) < 100]


def as_recorded(row, steps, summary):
    return row | {"loss": f"{steps[-1]['loss']:.5f}", "digest": summary["digest"]}


def compute(programs, row, **variables):
    """Runs the program of a row. Returns the row with the loss and the digest of this run."""
    ranks = 0 if row["program"] == ALONE else row["ranks"]
    return as_recorded(row, *programs.logged(ranks, row["program"], *row["options"].split(),
                                             "--device", "cpu", **variables)[1:])


@pytest.mark.parametrize("width", [None, *WIDTHS])
def test_runs(programs, width):
    """With the machine's widest vectors (`width` None) all short runs are compared. Narrower ones
    are slow: runs of at most 20 steps and two ranks are enough, without 07 and 08, which compute
    what 06 does. An emulator runs 01 only."""
    variables = {"ZERO_VECTORS": width} if width else {}
    trial = programs.run(0, ALONE, "--task", "toy", "--steps", "1", "--device", "cpu", **variables)
    if width and trial.code == USAGE:
        pytest.skip(f"this machine has no vectors of {width}")
    few = programs.emulator or width
    rows = [row for row in SHORT if not few or steps_of(row) <= 20 and row["ranks"] <= 2
            and row["program"] < CHAPTERS[6] and (row["program"] == ALONE or not programs.emulator)]
    assert rows
    for row in rows:
        assert compute(programs, row, **variables) == row


def test_pages():
    known = {row["digest"] for row in RECORDED}
    for page in [ROOT / "README.md", *ROOT.glob("notes/*.md")]:
        assert set(re.findall(r"\b[0-9a-f]{16}\b", page.read_text())) <= known, page.name
    shown = re.findall(r"^\| 0\d_\w+ \| \w+ \| (\S+) ", (ROOT / "notes/results.md").read_text(),
                       re.M)
    assert len(shown) == len(OF_THE_DEMO)
    for loss, row in zip(map(float, shown), OF_THE_DEMO):
        assert loss == pytest.approx(float(row["loss"]), abs=5.6e-5), row  # pages round to 4 digits


def test_demo_and_long_runs(programs, folder):
    """The long runs and the demo's have the recorded bits. README shows the demo's verdicts."""
    for row in LONG:
        assert compute(programs, row) == row
    done = subprocess.run([ROOT / "tools/demo.py", "--steps", "200", "--ranks", "4",
                           "--out", folder, "--build", programs.build, "--mpiexec",
                           programs.mpiexec], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    for row in OF_THE_DEMO:
        dtype = re.search(r"(?:--dtype (\S+) |)--steps", row["options"])[1] or "fp32"
        log = read_log(folder / f"{row['program']}_{dtype}.jsonl")
        assert as_recorded(row, *log[1:]) == row
    verdicts = re.search(r"(?s)\n\.\.\.\n(.*runs: +yes)\n", (ROOT / "README.md").read_text())[1]
    assert verdicts in done.stdout


def test_three_of_the_demo_s_runs(programs):
    """Three chapters are also linked to another MPI. Their bits are the same."""
    built = (programs.build / "tests/programs").glob(f"{programs.prefix}0?_*")
    linked = {path.name.removeprefix(programs.prefix) for path in built}
    rows = [row for row in OF_THE_DEMO if row["program"] in linked and "bf16" not in row["options"]]
    assert len(rows) == 3
    for row in rows:
        assert compute(programs, row) == row


STEPS = 3
# At widths 104 and 59 it matters where a weight's scale is rounded.
CASES = [
    Case("toy"), Case("toy", accumulate=3, seed=4), Case("toy", accumulate=2, ranks=3),
    Case("text", width=64, layers=4), Case("text", width=64, layers=4, accumulate=3, seed=2),
    Case("text", width=64, layers=4, accumulate=2, ranks=3),
    Case("text", width=104, layers=2, batch=5, seed=3), Case("mlp", width=59, layers=3)]
LLAMA = Case("llama", width=24, layers=2, batch=3, heads=4, kv_heads=2, hidden=20, sequence=5)
LLAMAS = [LLAMA, replace(LLAMA, kv_heads=1, accumulate=2, recompute=True, seed=5),
          replace(LLAMA, kv_heads=4, layers=1, seed=3),
          replace(LLAMA, batch=1, layers=1, sequence=70)]  # longer than a tile of 64 tokens
CASES += [*LLAMAS, replace(LLAMA, ranks=2), replace(LLAMA, vocab=300, tokens="tokens")]


def logged(programs, case, steps, *more):
    """Returns the log of 01, or of 02 on ranks; with the options `more`, of 03 on one rank."""
    where = (1, MIXED[0]) if more else (0, ALONE) if case.ranks == 1 else (case.ranks, ON_RANKS[0])
    data = ["--data", CORPUS] if case.task in ("text", "llama") and not case.tokens else []
    return programs.logged(*where, *case.options(), *data, "--steps", steps, "--device", "cpu",
                           *more)


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.options()[1:]))
def test_both_languages_agree(programs, folder, case):
    """With --lr 0 the weights stay, so that each step's loss and gradient do not need Adam."""
    if case.tokens:
        case = replace(case, tokens=folder / case.tokens)
        (np.arange(999)**2 % case.vocab).astype("<u2").tofile(case.tokens)
    _, steps, summary = logged(programs, replace(case, lr=0.0), STEPS)
    theirs = np.array([(step["loss"], step["grad_norm"]) for step in steps], np.float64)
    weights = initial_parameters(case)
    found = [loss_and_gradient(case, np.float64(weights), *samples_of_step(case, step))
             for step in range(STEPS)]
    ours = np.array([(loss, np.linalg.norm(gradient)) for loss, gradient in found])
    assert (np.abs(theirs - ours) <= 1e-5 * np.maximum(1, np.abs(ours))).all()
    digests = layer_digests(case, weights)
    assert [summary["digest"], *summary["layer_digests"]] == [
        f"{digest % 2**64:016x}" for digest in (sum(digests), *digests)]


GRADIENTS = [replace(case, batch=5, seed=5) for case in (
    Case("text", width=16, layers=3), Case("toy"), Case("mlp", width=9, layers=3),
    Case("mlp", width=9, layers=1))]


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: f"{case.task} {len(case.shapes())}")
def test_gradients_in_both_languages(programs, folder, case, dtype):
    """Each element of the gradient is compared: with --beta1 0 Adam's first momentum is the
    gradient.

    Python rounds to the stored dtype where the program does. The program also rounds each sum to
    fp32, by 2^-24 of it at most, as often as it adds a term. The bound assumes that no sum is
    larger than the tensor's largest gradient; in fp32 the differences are below a tenth of it,
    because roundings mostly cancel. In 16 bit the stored bits must agree, unless a gradient lies
    within the bound of the middle between two values. (An activation could lie there, too, and
    would change all that follows. With this seed none does.)"""
    scale = 64 if dtype == "fp16" else 1
    _, (step,), _ = logged(programs, case, 1, "--dtype", dtype, "--beta1", 0, "--save", folder,
                           *(["--loss-scale", scale] if scale > 1 else []))
    tensors = read_tensors(folder / "step_1/optimizer.safetensors")[1]

    def stored(x):
        return np.float64(STORED[dtype](np.float32(x)))

    loss, gradient = loss_and_gradient(case, stored(initial_parameters(case)),
                                       *samples_of_step(case, 0), stored, scale)
    off = 2.0**-24 * (case.batch + sum(map(sum, case.shapes())))
    assert step["loss"] == pytest.approx(loss, off)
    for l, both in enumerate(matrices(case, gradient)):
        for name, ours in zip(("weight", "bias") if both[1].size else ("weight",), both):
            theirs = scale * np.float64(tensors[f"layers.{l}.{name}.exp_avg"])
            most = off * np.abs(ours).max()
            assert ((stored(ours - most) <= theirs) & (theirs <= stored(ours + most))).all()


@pytest.mark.parametrize("case", LLAMAS, ids=lambda case: " ".join(case.options()))
def test_gradients_of_a_llama_in_both_languages(programs, folder, case):
    """Each element of a Llama's gradient is compared with Python's, which is computed in float64.

    The unit of the error is 2^-24 of the tensor's largest gradient. Each of `terms` roundings adds
    at most one unit. Because they go up as often as down, the bound is the root of their number, 31
    to 36. With 30 seeds each the largest error was 17. A wrong formula makes 10^7 (no mask, queries
    turned by one position more than keys, gradients of keys or values without one head), a missing
    eps 10^5."""
    _, (step,), _ = logged(programs, case, 1, "--dtype", "fp32", "--beta1", 0, "--save", folder)
    tensors = read_tensors(folder / "step_1/optimizer.safetensors")[1]
    loss, gradient = loss_and_gradient(case, np.float64(initial_parameters(case)),
                                       *samples_of_step(case, 0))
    shapes = {name: shape for layer in case.tensors() for name, shape in layer.items()}
    terms = case.accumulate * case.batch * case.sequence + sum(map(sum, shapes.values()))
    off = 2.0**-24 * terms**0.5
    assert step["loss"] == pytest.approx(loss, off)
    for name, ours in zip(shapes, chain(*matrices(case, gradient)), strict=True):
        theirs = tensors[f"{name}.exp_avg"]
        assert theirs.shape == ours.shape
        assert np.abs(theirs - ours).max() <= off * np.abs(ours).max(), name


@pytest.mark.parametrize("case", GRADIENTS + LLAMAS,
                         ids=lambda case: f"{case.task} {len(case.sizes())} {case.kv_heads}")
def test_gradients_in_one_of_the_languages_are_slopes(case, by=1e-6):
    """Python's gradient is the slope of its loss along a random direction, along which no ReLU
    opens or closes. Rounding of the losses makes an error of 10^-9, and a third derivative of 10^4
    would make as much; a wrong gradient makes 10^-3."""
    weights, samples = np.float64(initial_parameters(case)), samples_of_step(case, 0)
    along = np.random.default_rng(5).uniform(-1, 1, weights.size)
    (high, _), (low, _), (_, gradient) = (
        loss_and_gradient(case, weights + step * along, *samples) for step in (by, -by, 0))
    assert (high - low) / (2 * by) == pytest.approx(gradient @ along, abs=1e-7)


if __name__ == "__main__":
    here = Programs(Path(sys.argv[1]).resolve(), sys.argv[2])
    words = set(sys.argv[3:])
    rows = [compute(here, row) if words <= set(row["options"].split()) else row for row in RECORDED]
    lines = [json.dumps({key: row[key] for key in RECORDED[0]}) for row in rows]
    text = ",\n ".join(line.replace(', "options"', ',\n  "options"') for line in lines)
    FILE.write_text(f"[{text}]\n")  # each row is two lines, of which the second has the options
