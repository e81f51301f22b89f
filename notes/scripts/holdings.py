# SPDX-License-Identifier: MIT
"""Who holds what by a chapter's card: 12 parameters on three ranks, as the chapters' pages draw it.
"""
from cards import RANKS, Card
from trainers import painted

COUNT, CELL, LEFT = 12, 16, 11
LEGEND = f"""{COUNT} parameters on {RANKS} ranks. █ is 4 bytes, ▄ is 2; x3 is master, momentum and
variance, x2 the two moments. Sent: elements a parameter in a step of A
micro-batches, times (N - 1)/N. Borrowed: whole layers."""


def cells(column, rank):
    held = int(column.share * COUNT)
    block, first = "▄" if column.size == 2 else "█", 0 if column.share == 1 else rank * held
    row = "".join(block if first <= i < first + held else "·" for i in range(COUNT))
    return row + (f" x{column.tensors}" if column.tensors > 1 else "")


def total(columns):
    held = [int(column.share * COUNT) * column.bytes for column in columns]
    return f"{' + '.join(map(str, held))} = {sum(held)}"


def claims(card):
    """What else changes from card to card."""
    phases = zip(("forward", "backward", "update"), card.sent.split(", "))
    whole = (card.says(r"WholeLayers\((.*?)\);") or "0, 0").split(", ")
    copies = card.says(r"Copies\((.*?)\)")
    return {
        "sent": ", ".join(f"{phase} {factor}" for phase, factor in phases),
        "borrowed": "{} of parameters, {} of gradients".format(*whole),
        "copied": "down {}, up {} elements a parameter of the shard".format(*copies.split(", "))
                  if copies else "nothing",
    }


def rows(card, before=None):
    """A chapter's picture in lines; what is not so in `before` is marked."""
    def marked(text, is_new, width=0):
        return painted(f"{text:<{width}}", "!" if is_new else " ")

    both = [(column, before is not None and column not in before.columns)
            for column in card.columns]
    yield f"{card.chapter}, {card.dtype}"
    yield " " * LEFT + "".join(marked(column.name, is_new, CELL) for column, is_new in both)
    for rank in range(card.ranks):
        joins = before is not None and rank >= before.ranks
        name = f"  rank {rank}" if card.ranks > 1 else "  process"
        row = "".join(marked(cells(column, rank), is_new or joins, CELL)
                      for column, is_new in both)
        yield f"{name:<{LEFT}}{row}{'<- new' * joins}"
    if any(is_new for _, is_new in both):
        yield f"{'  changed':<{LEFT}}" + "".join(f"{'^' * COUNT * is_new:<{CELL}}"
                                                for _, is_new in both)
    here, there = card.places()
    yield f"{'  bytes':<{LEFT}}{total(here)} a rank" + \
        (f", and {total(there)} on its host" if there else "")
    for name, claim in claims(card).items():
        if before and claim != claims(before)[name]:
            yield f"{f'  {name}':<{LEFT}}{marked(claim, True)}"
            yield f"{'    before':<{LEFT}}{claims(before)[name]}"


def print_both(old, new):
    before, after = Card(old), Card(new)
    print(LEGEND)
    for lines in (rows(before), rows(after, before)):
        print("\n".join(line.rstrip() for line in lines))
