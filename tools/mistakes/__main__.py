#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mistakes that train: each beside the right program, in the same run.

    ./tutorial mistake         lists them
    ./tutorial mistake NAME    runs one: what is wrong, by how much

The last two, families and ring, are none: they only add in another order. All
need numpy, and some seconds. They are told in notes/counterexamples.md.
"""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from runs import Failure, finish  # noqa: E402


def main():
    try:
        import examples  # noqa: F401 (what it decorates becomes one of EXAMPLES)
        from counter_example import EXAMPLES
    except ModuleNotFoundError as error:
        raise Failure(f"{sys.executable} has no {error.name}: install python3-{error.name}, as "
                      "./tutorial mistake does for the system's Python", 6) from None
    words = sys.argv[1:]
    if len(words) > 1 or not EXAMPLES.keys() >= set(words):
        raise Failure(f"{' '.join(words)!r} is not one of {', '.join(EXAMPLES)}", 2)
    if words:
        print("\n\n".join(EXAMPLES[words[0]].paragraphs()))
    else:
        print(__doc__)
        print("\n".join(f"  {name:12}{example.title}" for name, example in EXAMPLES.items()))


if __name__ == "__main__":
    finish(main, "tutorial: mistake: ")
