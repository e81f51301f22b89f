#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mistakes that train: each beside the right program, in the same run.

    ./tutorial mistake         lists them
    ./tutorial mistake NAME    runs one: what is wrong, by how much

They need numpy, and some seconds. All are in notes/counterexamples.md.
"""
import sys

sys.dont_write_bytecode = True
try:
    import examples  # noqa: F401 (what it decorates becomes one of EXAMPLES)
    from counter_example import EXAMPLES
except ModuleNotFoundError as error:
    print(f"tutorial: mistake: {sys.executable} has no {error.name}: install python3-{error.name}, "
          "as ./tutorial mistake does for the system's Python", file=sys.stderr)
    sys.exit(6)


def main(words):
    if len(words) > 1 or not EXAMPLES.keys() >= set(words):
        names = ", ".join(EXAMPLES)
        print(f"tutorial: mistake: {' '.join(words)!r} is not one of {names}", file=sys.stderr)
        return 2
    if words:
        print("\n\n".join(EXAMPLES[words[0]].paragraphs()))
    else:
        print(__doc__)
        print("\n".join(f"  {name:12}{example.title}" for name, example in EXAMPLES.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
