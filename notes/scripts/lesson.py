#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a chapter changes: who holds what before and after, the idea, the lines of its trainer.

`./tutorial lesson` calls this with the chapter before and the chapter; the first has none before
it. It reads text alone: nothing has to be built.
"""
import signal
import sys
import textwrap

sys.dont_write_bytecode = True
import cards  # noqa: E402
import trainers  # noqa: E402
from trainers import ROOT  # noqa: E402

WIDTH = 80


def first(chapter):
    text = trainers.source(chapter)
    print(f"{chapter} is the first chapter: this is all of its trainer.\n{text}", end="")
    print(f"{chapter}/trainer.hpp: {len(text.splitlines())} lines")


def others(old, new):
    """New files whole, changed ones by the command that shows how."""
    for file in sorted((ROOT / new).glob("*.[ch]pp")):
        other, text = ROOT / old / file.name, file.read_text()
        if not other.exists():
            print(f"new file: {new}/{file.name}, {len(text.splitlines())} lines\n{text}", end="")
        elif file.name != "trainer.hpp" and other.read_text() != text:
            print(f"changed too: diff -u {old}/{file.name} {new}/{file.name}")


def lesson(old, new):
    title, idea = trainers.page_of(new)
    for words in (f"{new}: {title}", idea):
        print(textwrap.fill(words, WIDTH, break_on_hyphens=False), end="\n\n")
    cards.print_both(old, new)
    texts = [trainers.source(chapter) for chapter in (old, new)]
    shown = trainers.changes(*texts, f"{new}/trainer.hpp", leave_out=trainers.NAMING)
    everything = trainers.changes(*texts, new)
    count = trainers.count(everything)
    left_out = count - trainers.count(shown)
    print(f"\nThe trainer, from {old}'s. Left out are {left_out} changed lines that say\n"
          "which chapter it is: the file's comment, its includes, the card's name.")
    trainers.print_code(shown)
    others(old, new)
    removed = trainers.count(everything, "-")
    print(f"{new}/trainer.hpp: {count} changed lines, {removed} removed and "
          f"{count - removed} added")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads may have enough
    lesson(*sys.argv[1:]) if len(sys.argv) > 2 else first(sys.argv[1])
