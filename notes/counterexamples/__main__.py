#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mistakes that train: each beside the right program, in the same run.

    python3 notes/counterexamples         lists them
    python3 notes/counterexamples NAME    runs one: what is wrong, by how much

It needs numpy, no build, and some seconds. All are in notes/counterexamples.md.
"""
import sys

sys.dont_write_bytecode = True
import examples  # noqa: E402, F401 (what it decorates becomes one of EXAMPLES)
from counter_example import EXAMPLES  # noqa: E402


def main(words):
    if len(words) > 1 or not EXAMPLES.keys() >= set(words):
        names = ", ".join(EXAMPLES)
        print(f"counterexamples: {' '.join(words)!r} is not one of {names}", file=sys.stderr)
        return 2
    if words:
        print("\n\n".join(EXAMPLES[words[0]].paragraphs()))
    else:
        print(__doc__)
        print("\n".join(f"  {name:12}{example.title}" for name, example in EXAMPLES.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
