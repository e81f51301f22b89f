#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Shows what a chapter changes: who holds what before and after, and the lines of its trainer.
`./tutorial lesson` calls this with the chapter before and the chapter, or with 01 alone. It only
reads text, so nothing has to be built."""
import re
import sys

import trainers
from runs import finish, folded
from trainers import RANKS, ROOT, Picture

LAYERS = (6, 6)  # parameters of the two layers, as in the model that `./tutorial narrate` tells
CELL, LEFT = 17, 11  # characters: of a column of the picture, and of the names to its left
CHANGED = " ".join("^" * size for size in LAYERS)  # stands below a column that is new
LEGEND = """12 parameters, two layers of 6, on 3 ranks. █ is 4 bytes, ▄ is 2; · is another
rank's; x3: master, momentum and variance; x2: the two moments. Sent: elements
per parameter in a step of A micro-batches, times (N - 1)/N. Borrowed: whole
layers; of the optimizer state pieces."""


def cells(column, rank):
    """Draws a Column: a block for each element that the rank holds. Of a shard it holds a third."""
    block = "▄" if column.size == 2 else "█"
    row = " ".join("".join(block if column.share == 1 or i * RANKS // size == rank else "·"
                           for i in range(size)) for size in LAYERS)
    return row + (f" x{column.tensors}" if column.tensors > 1 else "")


def total(columns):
    """Returns the bytes of these columns on a rank, and their sum, as text."""
    held = [int(column.share * sum(LAYERS)) * column.bytes for column in columns]
    text = " + ".join(map(str, held))
    return f"{text} = {sum(held)}" if len(held) > 1 else text


def claims(card):
    """Returns {name: words} on what the card of a Picture says is sent, borrowed and copied."""
    borrowed, copied = card.says["borrowed"], card.says["copied"]
    layers = f"{'prefetch + ' if borrowed['and_prefetched'] else ''}{borrowed['parameters']}"
    borrows = f"{layers} of parameters, {borrowed['gradients']} of gradients"
    if borrowed["pieces"]:
        borrows += f", {borrowed['pieces']} of optimizer state"
    copies = "nothing"
    if set(copied.values()) != {"0"}:
        copies = ("{to_host} to the host, {to_device} to the device, elements per parameter of the "
                  "shard".format(**copied))
    return {"sent": ", ".join(map(" ".join, card.says["sent"].items())), "borrowed": borrows,
            "copied": copies}


def rows(card, before):
    """Yields the lines of `card`, a Picture; what the Picture `before` lacks is marked in them."""
    def marked(text, is_new, width=0):
        return trainers.painted(f"{text:<{width}}", "!" if is_new else " ")

    both = [(column, column not in before.columns) for column in card.columns]
    yield f"{card.chapter}, {card.dtype}"
    yield " " * LEFT + "".join(marked(column.name, is_new, CELL) for column, is_new in both)
    for rank in range(card.ranks):
        joins = rank >= before.ranks
        name = f"  rank {rank}" if card.ranks > 1 else "  process"
        row = "".join(marked(cells(column, rank), is_new or joins, CELL) for column, is_new in both)
        yield f"{name:<{LEFT}}{row}{'<- new' if joins else ''}"
    if any(is_new for _, is_new in both):
        marks = (CHANGED if is_new else "" for _, is_new in both)
        yield f"{'  changed':<{LEFT}}" + "".join(f"{mark:<{CELL}}" for mark in marks)
    here, host, disk = card.places
    yield f"{'  bytes':<{LEFT}}{total(here) if here else 0} per rank" + "".join(
        f", and {total(there)} on its {name}" for name, there in (("host", host), ("disk", disk))
        if there)
    for (name, claim), old in zip(claims(card).items(), claims(before).values()):
        if claim != old:
            yield f"{f'  {name}':<{LEFT}}{marked(claim, True)}"
            yield f"{'    before':<{LEFT}}{old}"


def first(chapter):
    text = trainers.source(chapter)
    print(f"{chapter} is the first chapter: this is all of its trainer.\n{text}", end="")
    print(f"{chapter}/trainer.hpp: {len(text.splitlines())} lines")


def others(old, new):
    """Prints new files whole, and for each changed file the command that shows its changes."""
    for file in sorted((ROOT / new).glob("*.[ch]pp")):
        other, text = ROOT / old / file.name, file.read_text("utf-8")
        if not other.exists():
            print(f"new file: {new}/{file.name}, {len(text.splitlines())} lines\n{text}", end="")
        elif file.name != "trainer.hpp" and other.read_text("utf-8") != text:
            print(f"changed too: diff -u {old}/{file.name} {new}/{file.name}")


def lesson(old, new):
    page = (ROOT / new / "README.md").read_text("utf-8")
    title, problem = re.match(r"# \d\d (.*)\n\n((?:.+\n)+)", page).groups()
    for words in (f"{new}: {title}", problem, *re.findall(r"\*\*Before:(?:.+\n)+", page)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", " ".join(words.split()))
        print(*folded(plain), "", sep="\n")
    before, after = Picture(old), Picture(new)
    print(LEGEND, *(line.rstrip() for card in (before, after) for line in rows(card, before)),
          sep="\n")
    texts = [trainers.source(chapter) for chapter in (old, new)]
    shown = trainers.changes(*texts, f"{new}/trainer.hpp", leave_out=trainers.NAMING)
    everything = trainers.changes(*texts, new)
    count, removed = trainers.count(everything), trainers.count(everything, "-")
    print(f"\nThe trainer, from {old}'s. Left out are {count - trainers.count(shown)} changed "
          "lines that say\n"
          "which chapter it is: the file's comment, its includes, the card's name.")
    trainers.print_code(shown)
    others(old, new)
    print(f"{new}/trainer.hpp: {count} changed lines, {removed} removed and "
          f"{count - removed} added")


if __name__ == "__main__":
    finish(lambda: lesson(*sys.argv[1:]) if sys.argv[2:] else first(*sys.argv[1:]),
           "tutorial: lesson: ")
