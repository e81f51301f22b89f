# SPDX-License-Identifier: MIT
"""transformers loads a chapter's checkpoint, computes the same, and saves what a chapter loads."""
import sys
from dataclasses import replace

import pytest
from programs import ROOT, SKIPPED


def test_a_llama_is_theirs(programs):
    """tools/in_pytorch.py runs in this Python or in the one on PATH: whichever has transformers."""
    patient = replace(programs, patience=230)
    for python in (sys.executable, "python3"):
        outcome = patient.start([python, str(ROOT / "tools/in_pytorch.py"), "llama", "--build",
                                 str(programs.build), "--mpiexec", programs.mpiexec])
        if outcome.code != SKIPPED:
            break
    else:
        pytest.skip(outcome.out.strip())
    assert outcome.code == 0 and outcome.out.count("\nyes ") == 6, outcome
