# SPDX-License-Identifier: MIT
"""Who holds what by a chapter's card: 12 parameters on three ranks, as the chapters' pages draw it.

The formulas are read from the trainer's text, so nothing has to be built for it.
"""
import re
from dataclasses import dataclass
from fractions import Fraction

import trainers
from runs import Failure

COUNT, RANKS, CELL, LEFT = 12, 3, 16, 11
RETURNS = r"\[\]\([^)]*\) \{ return %s; \}"
STATE = RETURNS % "([pgkn+*/() ]+)"
PHASES = ("forward", "backward", "update")
HOST = "host: "  # begins the name of what lies there
LEGEND = f"""{COUNT} parameters on {RANKS} ranks. █ is 4 bytes, ▄ is 2; x3 is master, momentum and
variance, x2 the two moments. Sent: elements a parameter in a step of A
micro-batches, times (N - 1)/N. Borrowed: whole layers."""


@dataclass
class Column:
    """A kind of state: how much of it a rank holds, bytes of an element, tensors."""
    name: str
    share: Fraction
    size: int
    tensors: int

    @property
    def held(self):
        return int(self.share * COUNT)

    @property
    def bytes(self):
        return self.held * self.size * self.tensors

    def cells(self, rank):
        block, first = "▄" if self.size == 2 else "█", 0 if self.share == 1 else rank * self.held
        row = "".join(block if first <= i < first + self.held else "·" for i in range(COUNT))
        return row + (f" x{self.tensors}" if self.tensors > 1 else "")


def columns(formula, names, ranks, mixed):
    """The kinds of which a formula has any: each by its value of that kind alone."""
    found = []
    for kind, name in zip("pgk", names):
        values = {"p": 0, "g": 0, "k": 0, "n": Fraction(ranks)} | {kind: 1}
        share = Fraction(eval(formula, {"__builtins__": {}}, values))  # of pgkn+*/() alone
        tensors = (3 if mixed else 2) if kind == "k" else 1
        if share:
            found.append(Column(name, share, 2 if mixed and kind != "k" else 4, tensors))
    return found


class Card:
    """What a trainer's card claims."""

    def __init__(self, chapter):
        self.chapter, self.text = chapter, trainers.card(trainers.source(chapter))
        self.ranks = 1 if self.says(r"\.ranks = (false)") else RANKS
        self.dtype = "bf16" if self.says(r"\.mixed_precision = (true)") else "fp32"
        state = self.says(r"\.state_bytes = " + STATE)
        if not state:
            raise Failure(f"the card of {chapter} has no formula of bytes that can be read")
        mixed = self.dtype == "bf16"
        self.columns = columns(state, ("parameters", "gradients", "optimizer"), self.ranks, mixed)
        # Page-locked bytes serve gradients on their way down and parameters on their way up.
        on_host = self.says(r"\.offload = \{" + STATE) or "0"
        there = ("", f"{HOST}staging", f"{HOST}optimizer")
        self.columns += columns(on_host, there, self.ranks, mixed)

    def says(self, pattern):
        found = re.search(pattern, self.text)
        return found and found[1]

    def sent(self):
        factors = (self.says(r"Traffic\((.*?)\);") or "0, 0, 0").split(", ")
        return ", ".join(f"{phase} {factor.replace(' * ', '').upper()}"
                         for phase, factor in zip(PHASES, factors))

    def borrowed(self):
        whole = self.says(r"WholeLayers\((.*?)\);") or "0, 0"
        return "{} of parameters, {} of gradients".format(*whole.split(", "))

    def copied(self):
        copies = self.says(r"Copies\((.*?)\)")
        return "down {}, up {} elements a parameter of the shard".format(*copies.split(", ")) \
            if copies else "nothing"


def rows(card, before=None):
    """A chapter's picture in lines; what is not so in `before` is marked."""
    def marked(text, is_new, width=0):
        return trainers.painted(f"{text:<{width}}", "!" if is_new else " ")

    def total(columns):
        return f"{' + '.join(str(c.bytes) for c in columns)} = {sum(c.bytes for c in columns)}"

    both = [(column, before is not None and column not in before.columns)
            for column in card.columns]
    yield f"{card.chapter}, {card.dtype}"
    yield " " * LEFT + "".join(marked(column.name, is_new, CELL) for column, is_new in both)
    for rank in range(card.ranks):
        joins = before is not None and rank >= before.ranks
        name = f"  rank {rank}" if card.ranks > 1 else "  process"
        cells = "".join(marked(column.cells(rank), is_new or joins, CELL)
                        for column, is_new in both)
        yield f"{name:<{LEFT}}{cells}{'<- new' * joins}"
    if any(is_new for _, is_new in both):
        yield f"{'  changed':<{LEFT}}" + "".join(f"{'^' * COUNT * is_new:<{CELL}}"
                                                for _, is_new in both)
    there = [column for column in card.columns if column.name.startswith(HOST)]
    here = [column for column in card.columns if column not in there]
    yield f"{'  bytes':<{LEFT}}{total(here)} a rank" + \
        (f", and {total(there)} on its host" if there else "")
    for name, of in (("sent", Card.sent), ("borrowed", Card.borrowed), ("copied", Card.copied)):
        if before and of(card) != of(before):
            yield f"{f'  {name}':<{LEFT}}{marked(of(card), True)}"
            yield f"{'    before':<{LEFT}}{of(before)}"


def print_both(old, new):
    before, after = Card(old), Card(new)
    print(LEGEND)
    for lines in (rows(before), rows(after, before)):
        print("\n".join(line.rstrip() for line in lines))
