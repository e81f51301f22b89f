#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mistakes that train: each beside the right program, in the same run.

    python3 notes/counterexamples         lists them
    python3 notes/counterexamples NAME    runs one: what is wrong, by how much

It needs numpy, no build, and some seconds. All are in notes/counterexamples.md.
"""
import re
import sys
import textwrap

sys.dont_write_bytecode = True
import optimizer  # noqa: E402, F401 (what it decorates becomes one of EXAMPLES)
import sharding  # noqa: E402, F401
from counter_example import EXAMPLES  # noqa: E402


def filled(text, indent="  "):
    """In 80 columns; an option stays in one line with its value."""
    bound = re.sub(r"(--\S+) (?!-)", "\\1\u00a0", text)
    return textwrap.fill(bound, 80, initial_indent=indent, subsequent_indent=indent,
                         break_on_hyphens=False, break_long_words=False).replace("\u00a0", " ")


def paragraphs(example):
    """What is printed of one of them."""
    yield f"{example.name}: {example.title}"
    yield filled(example.text)
    yield "\n".join(f"  {label + ':' if at == 0 else '':10}{line}"
                    for side, label in zip(("right", "wrong"), example.sides)
                    for at, line in enumerate(example.lines(side)))
    yield "\n".join(f"  {step:>4}{right:>18}{wrong:>18}{farthest:>{18 if number else 34}}".rstrip()
                    for number, (step, right, wrong, farthest) in enumerate(example.steps_table()))
    yield "\n".join(f"  {what:<48}{right:>15}{wrong:>15}".rstrip()
                    for what, right, wrong in example.table())
    program = f"build/{example.program}/{example.program} {example.options}"
    command = filled(f"mpirun -n {example.ranks} {program}", "    ")
    yield f"  {example.sides[0].capitalize()} has the bits of\n{command}"
    yield filled('Caught here by {}: "{}".'.format(*example.caught))


def main(words):
    names = ", ".join(EXAMPLES)
    wrong = "one name at a time, of" if len(words) > 1 else \
        f"there is no {words[0]!r}; there are" if words and words[0] not in EXAMPLES else ""
    if wrong:
        print(f"counterexamples: {wrong} {names}", file=sys.stderr)
        return 2
    if words:
        print("\n\n".join(paragraphs(EXAMPLES[words[0]])))
    else:
        print(__doc__)
        print("\n".join(f"  {name:12}{example.title}" for name, example in EXAMPLES.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
