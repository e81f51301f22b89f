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
    return textwrap.fill(text, 80, initial_indent=indent, subsequent_indent=indent,
                         break_on_hyphens=False, break_long_words=False)


def command(example):
    """An option stays in one line with its value."""
    bound = re.sub(r"(--\S+) (?!-)", "\\1\u00a0", example.command)
    return filled(bound, "    ").replace("\u00a0", " ")


def columns(first, *cells):
    return f"  {first:<48}{''.join(f'{cell:>15}' for cell in cells)}".rstrip()


def by_step(step, *cells):
    return f"  {step:>4}{''.join(f'{cell:>18}' for cell in cells)}"


def paragraphs(example):
    """What is printed of one of them."""
    yield f"{example.name}: {example.title}"
    yield filled(example.text)
    yield "\n".join(f"  {label + ':' if at == 0 else '':10}{line}"
                    for side, label in zip(("right", "wrong"), example.sides)
                    for at, line in enumerate(example.lines(side)))
    right, wrong = example.sides
    head = by_step("step", f"loss, {right}", f"loss, {wrong}", "farthest weight")
    yield "\n".join([head + ", learning rates", *(by_step(*row) for row in example.steps_table())])
    yield "\n".join(columns(*row) for row in [("", *example.sides), *example.table()])
    yield f"  {right.capitalize()} has the bits of\n{command(example)}"
    test, case = example.caught
    yield filled(f'Caught here by {test}: "{case}".')


def main(words):
    names = ", ".join(EXAMPLES)
    if len(words) > 1:
        print(f"counterexamples: one name at a time, of {names}", file=sys.stderr)
        return 2
    if words and words[0] not in EXAMPLES:
        print(f"counterexamples: there is no {words[0]!r}; there are {names}", file=sys.stderr)
        return 2
    if words:
        print("\n\n".join(paragraphs(EXAMPLES[words[0]])))
    else:
        print(__doc__)
        print("\n".join(f"  {name:12}{example.title}" for name, example in EXAMPLES.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
