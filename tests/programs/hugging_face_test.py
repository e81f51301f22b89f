# SPDX-License-Identifier: MIT
"""transformers opens what a chapter saves, computes what it does, and writes what it reads."""
import sys
from dataclasses import replace

import pytest
from programs import ROOT, SKIPPED


def test_a_llama_is_theirs(programs):
    """By the Python that runs this, or the one on PATH: by that which has transformers."""
    patient = replace(programs, patience=230)
    for python in (sys.executable, "python3"):
        outcome = patient.start([python, str(ROOT / "tools/in_pytorch.py"), "llama", "--build",
                                 str(programs.build), "--mpiexec", programs.mpiexec])
        if outcome.code != SKIPPED:
            break
    else:
        pytest.skip(outcome.out.strip())
    assert outcome.code == 0 and outcome.out.count("\nyes ") == 6, outcome
