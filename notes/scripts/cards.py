# SPDX-License-Identifier: MIT
"""The chapters' cards, read from the trainers' text: nothing has to be built for it. Who holds what
by them, as the chapters' pages draw it."""
import re
from dataclasses import dataclass
from fractions import Fraction

import trainers
from runs import KINDS

STATE = KINDS[:3]  # parameters, gradients, optimizer
RANKS = 3
HOST = "host: "  # begins the name of what lies there
FORMULA = r"\[\]\([^)]*\) \{ return ([pgkn+*/() ]+); \}"


@dataclass
class Column:
    """A kind of state: the share of it that a rank holds, bytes of an element, tensors."""
    name: str
    share: Fraction
    size: int
    tensors: int

    @property
    def bytes(self):
        """Of a parameter of those that a rank holds."""
        return self.size * self.tensors


class Card:
    """What a trainer's card claims, in 16 bits where the chapter has them, else in fp32."""

    def __init__(self, chapter, dtype="bf16"):
        self.chapter, self.text = chapter, trainers.card(trainers.source(chapter))
        self.ranks = 1 if self.says(r"\.ranks = (false)") else RANKS
        self.dtype = dtype if self.says(r"\.mixed_precision = (true)") else "fp32"
        state = self.says(r"\.state_bytes = " + FORMULA)
        self.columns = list(self.held(state, STATE))
        # Page-locked bytes serve gradients on their way down and parameters on their way up.
        on_host = self.says(r"\.offload = \{" + FORMULA) or "0"
        self.columns += self.held(on_host, ("", f"{HOST}staging", f"{HOST}optimizer"))
        self.sent = (self.says(r"Traffic\((.*?)\);") or "0, 0, 0").replace(" * ", "").upper()

    def says(self, pattern):
        found = re.search(pattern, self.text)
        return found and found[1]

    def held(self, formula, names):
        """The kinds of which a formula has any: each by its value of that kind alone."""
        mixed = self.dtype != "fp32"
        for kind, name in zip("pgk", names):
            values = {"p": 0, "g": 0, "k": 0, "n": Fraction(self.ranks)} | {kind: 1}
            share = Fraction(eval(formula, {"__builtins__": {}}, values))  # of pgkn+*/() alone
            master = mixed or name.startswith(HOST)  # there the parameters are on the device
            tensors = 2 + master if kind == "k" else 1
            if share:
                yield Column(name, share, 2 if mixed and kind != "k" else 4, tensors)

    def places(self):
        """Its columns on a device, and on its host."""
        there = [column for column in self.columns if column.name.startswith(HOST)]
        return [column for column in self.columns if column not in there], there


def state_formula(chapter, dtype):
    """Bytes of state a parameter in each place, on N ranks."""
    def formula(columns):
        whole, part = (sum(column.bytes for column in columns if (column.share < 1) == is_part)
                       for is_part in (False, True))
        return " + ".join([str(whole)] * (whole > 0) + [f"{part}/N"] * (part > 0))

    device, host = map(formula, Card(chapter, dtype).places())
    return device + f" and {host} on the host" * bool(host)


# ---- A picture in lines, of 12 parameters -------------------------------------------------------

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
        return trainers.painted(f"{text:<{width}}", "!" if is_new else " ")

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
