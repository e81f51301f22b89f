# SPDX-License-Identifier: MIT
"""For the planner's test."""
from programs import MIXED, WINDOW  # noqa: F401


def expect(holds, what):
    if not holds:
        raise AssertionError(what)
