# SPDX-License-Identifier: MIT
"""Reads the chapters' trainers and cards, and finds what changes between two. It needs no build."""
import difflib
import re
import sys
from dataclasses import dataclass
from fractions import Fraction

from planner.plan import CARDS, card_of, own_terms
from planner.plan import state_formula as plan_formula
from runs import PLACES, ROOT, on

CARD = re.compile(r"  static constexpr Card card = .*\n")  # names the chapter
BEGIN = "namespace zero {\n"  # above it are the file's comment and its includes
# Lines that only say which chapter this is: the file's comment, its includes, its card.
NAMING = re.compile(rf"//|#include |{CARD.pattern[:-2]}")
COLOURS = {"-": "31", "+": "32", "@": "36", "!": "1;33"}  # ANSI's, by the sign of a line


def source(chapter):
    return (ROOT / chapter / "trainer.hpp").read_text("utf-8")


def card(text):
    """Returns the line of a trainer's text that names its card; "" if there is none."""
    return "".join(CARD.findall(text)[:1])


def starting_point(before, after):
    """Returns the trainer of chapter `before` under the comment, includes and card of `after`."""
    old, new = source(before), source(after)
    head, _, _ = new.partition(BEGIN)
    _, _, body = old.partition(BEGIN)
    return head + BEGIN + body.replace(card(old), card(new))


def emptied(text):
    """Returns adam_element.hpp's text without its function's body, which exercise 01 asks for."""
    return re.sub(r"(?ms)^(HOST_DEVICE inline .*?\) \{\n).*?^\}", r"\1  // Here is yours.\n}", text)


def without_waits(text):
    """Returns a header without the lines in which a stream waits for an event of another one."""
    return re.sub(r"(?m)^ +(?:if \(.*\) )?\w+_\.wait\(.*\n", "", text)


def changes(old, new, name, leave_out=None):
    """Returns the lines of a diff, each with its sign. A hunk begins with the number of its first
    line in `name`, the new text. Lines that the pattern leave_out matches are not compared."""
    texts = [[(number, line) for number, line in enumerate(text.splitlines(), 1)
              if not (leave_out and leave_out.match(line))] for text in (old, new)]
    a, b = ([line for _, line in text] for text in texts)
    return [re.sub(r"^@@ \S+ \+(\d+).*",
                   lambda at: f"@@ {name}:{texts[1][max(0, int(at[1]) - 1)][0]}", line)
            for line in [*difflib.unified_diff(a, b, lineterm="")][2:]]


def count(lines, signs="-+"):
    """Returns how many lines of a diff have one of these signs."""
    return sum(line[0] in signs for line in lines)


def painted(text, sign):
    """Returns the text, in the sign's colour if stdout is a terminal."""
    coloured = sign in COLOURS and sys.stdout.isatty()
    return f"\033[{COLOURS[sign]}m{text}\033[0m" if coloured else text


def print_code(lines):
    for line in lines:
        print(painted(line, line[:1]))


RANKS = 3  # of a Picture, as in the picture on README.md


@dataclass
class Column:
    """A kind of state on a rank."""
    name: str
    share: Fraction  # the share of its elements that the rank holds
    size: int  # bytes of an element
    tensors: int  # 3 of optimizer state (2 without master weights), 1 of other kinds
    bytes = property(lambda self: self.size * self.tensors)  # of a parameter that the rank holds


class Picture:
    """The state that a rank stores by its chapter's card, in `dtype`; in 01 and 02 in fp32."""

    def __init__(self, chapter, dtype="bf16"):
        self.chapter, self.says = chapter, CARDS[chapter]
        self.ranks = RANKS if self.says["ranks"] else 1
        self.dtype = dtype if self.says["mixed_precision"] else "fp32"
        self.terms = [term for term in own_terms(card_of(self.says), self.dtype)
                      if term.size and term.of in ("full", "shard")]
        self.places = [[self.column(term) for term in sorted(
            self.terms, key=lambda term: term.kind != "communication") if term.place == place]
            for place in PLACES]
        self.columns = [column for place in self.places for column in place]

    def column(self, term):
        """Returns a Term's Column. 07's staging takes gradients to the host, parameters back."""
        tensors = term.size // 4 if term.kind == "optimizer" else 1  # Adam's are in fp32
        name = "staging" if term.kind == "communication" else term.kind
        return Column(f"{term.place}: {name}" if term.place != PLACES[0] else name,
                      Fraction(1, self.ranks if term.of == "shard" else 1), term.size // tensors,
                      tensors)


def state_formula(chapter, dtype):
    """Returns the formula of the bytes of state per parameter, by place, on N ranks, as text."""
    terms = Picture(chapter, dtype).terms
    places = [(plan_formula(terms, place), on(place)) for place in PLACES]
    return " and ".join(held + where for held, where in places if held != "0")
