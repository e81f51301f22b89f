# SPDX-License-Identifier: MIT
"""The chapters' trainers and cards as text, for which nothing has to be built; what changes."""
import difflib
import json
import re
import sys
from dataclasses import dataclass
from fractions import Fraction

from runs import ROOT

CARD = re.compile(r"  static constexpr Card card = .*\n")  # of which chapter it is
BEGIN = "namespace zero {\n"  # what is above is the file's comment and its includes
# A line that says which chapter this is: the file's comment, its includes, its card.
NAMING = re.compile(rf"//|#include |{CARD.pattern[:-2]}")
COLOURS = {"-": "31", "+": "32", "@": "36", "!": "1;33"}  # ANSI's, by the sign of a line


def source(chapter):
    return (ROOT / chapter / "trainer.hpp").read_text("utf-8")


def card(text):
    """The line of a trainer's text that names its card; empty where there is none."""
    return "".join(CARD.findall(text)[:1])


def starting_point(before, after):
    """The trainer of `before` under the comment, the includes and the card of `after`."""
    old, new = source(before), source(after)
    head, _, _ = new.partition(BEGIN)
    _, _, body = old.partition(BEGIN)
    return head + BEGIN + body.replace(card(old), card(new))


def emptied(text):
    """Of a header with one function: without its body, which is the exercise."""
    return re.sub(r"(?ms)^(HOST_DEVICE inline .*?\) \{\n).*?^\}", r"\1  // Here is yours.\n}", text)


def without_waits(text):
    """Of a header: without the lines in which one of its streams waits for a point of another."""
    return re.sub(r"(?m)^ +(?:if \(.*\) )?\w+_\.wait\(.*\n", "", text)


def changes(old, new, name, leave_out=None):
    """The lines of a diff, each with its sign, in hunks that begin with a line's number in `name`,
    which is the new text. leave_out: lines that it matches are not looked at."""
    texts = [[(number, line) for number, line in enumerate(text.splitlines(), 1)
              if not (leave_out and leave_out.match(line))] for text in (old, new)]
    a, b = ([line for _, line in text] for text in texts)
    return [re.sub(r"^@@ \S+ \+(\d+).*",
                   lambda at: f"@@ {name}:{texts[1][max(0, int(at[1]) - 1)][0]}", line)
            for line in [*difflib.unified_diff(a, b, lineterm="")][2:]]


def count(lines, signs="-+"):
    """How many lines of a diff are removed, added, or either."""
    return sum(line[0] in signs for line in lines)


def painted(text, sign):
    """For a terminal, in the sign's colour."""
    coloured = sign in COLOURS and sys.stdout.isatty()
    return f"\033[{COLOURS[sign]}m{text}\033[0m" if coloured else text


def print_code(lines):
    """Lines of code with their signs, which a terminal narrower than they are folds."""
    for line in lines:
        print(painted(line, line[:1]))


RANKS = 3
# The cards of C++: a unit test sees that they are the same.
CARDS = {card["name"]: card for card in json.loads((ROOT / "notes/cards.json").read_text("utf-8"))}


@dataclass
class Column:
    """A kind of state: the share of it that a rank holds, bytes of an element, tensors."""
    name: str
    share: Fraction
    size: int
    tensors: int
    bytes = property(lambda self: self.size * self.tensors)  # of a parameter that a rank holds


class Card:
    """What a chapter's card says, in 16 bits where the chapter has them, else in fp32."""

    def __init__(self, chapter, dtype="bf16"):
        self.chapter, self.says = chapter, CARDS[chapter]
        self.ranks = RANKS if self.says["ranks"] else 1
        self.dtype = dtype if self.says["mixed_precision"] else "fp32"
        held = self.says["held"]
        here = [self.column(kind, how) for kind, how in held.items() if " on " not in how]
        host, disk = ([self.column(kind, "sharded", f"{place}: {kind}")
                       for kind, how in held.items() if how.endswith(place)]
                      for place in ("host", "disk"))
        # Page-locked bytes serve gradients on their way down and parameters on their way up.
        if here and host:
            host.insert(0, self.column("gradients", "sharded", "host: staging"))
        self.places = [here, host, disk]
        self.columns = here + host + disk

    def column(self, kind, how, name=None):
        mixed, of_adam = self.dtype != "fp32", kind == "optimizer"
        # Parameters in fp32 are their own master where Adam can reach them.
        master = mixed or (name is not None and " on " not in self.says["held"]["parameters"])
        return Column(name or kind, Fraction(1, self.ranks if how == "sharded" else 1),
                      2 if mixed and not of_adam else 4, 2 + master if of_adam else 1)


def state_formula(chapter, dtype):
    """Bytes of state per parameter in each place, on N ranks."""
    def formula(columns):
        whole, part = (sum(column.bytes for column in columns if (column.share < 1) == is_part)
                       for is_part in (False, True))
        return " + ".join([str(whole)] * (whole > 0) + [f"{part}/N"] * (part > 0))

    places = zip(("", " on the host", " on the disk"), map(formula, Card(chapter, dtype).places))
    return " and ".join(held + where for where, held in places if held)
