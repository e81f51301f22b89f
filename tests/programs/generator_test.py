# SPDX-License-Identifier: MIT
"""The generator in another language: what Python makes of notes/generator.md alone has the bits of
the programs' weights, and trains as they do."""
import sys
from dataclasses import replace

import numpy as np
import pytest
from programs import ALONE, ON_RANKS, ROOT

sys.path.insert(0, str(ROOT / "notes/scripts"))
from check_in_python import CORPUS, Case, initial_parameters, layer_digests, train  # noqa: E402

STEPS = 20
# Widths 104 and 59 are among those where rounding a weight's scale in another place shows.
CASES = [
    Case("toy"),
    Case("toy", accumulate=3, seed=4, weight_decay=0.5, clip=2.0),
    Case("text", width=64, layers=4),
    Case("text", width=64, layers=4, accumulate=3, seed=2, weight_decay=0.5, clip=1.0),
    Case("text", width=104, layers=2, batch=5, seed=3, lr=0.001, beta1=0.8, beta2=0.99, eps=1e-4),
    Case("mlp", width=59, layers=3),
    Case("toy", accumulate=2, ranks=3),
    Case("text", width=64, layers=4, accumulate=2, ranks=3),
]


def logged(programs, case, steps):
    """Of 02 on ranks, or of 01."""
    where = (0, ALONE) if case.ranks == 1 else (case.ranks, ON_RANKS[0])
    data = ["--data", CORPUS] if case.task == "text" else []
    return programs.logged(*where, *case.options(), *data, "--steps", steps, "--device", "cpu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.options()[1:]))
def test_both_languages_agree(programs, case):
    _, steps, _ = logged(programs, case, STEPS)
    theirs = np.array([(step["loss"], step["grad_norm"]) for step in steps], np.float64)
    ours = train(case, STEPS)
    assert (np.abs(theirs - ours) <= 1e-5 * np.maximum(1, np.abs(ours))).all()
    # A step with --lr 0 leaves the weights as they began.
    _, _, summary = logged(programs, replace(case, lr=0.0), 1)
    digests = layer_digests(case, initial_parameters(case))
    assert [summary["digest"], *summary["layer_digests"]] == [
        f"{digest % 2**64:016x}" for digest in (sum(digests), *digests)]
