# SPDX-License-Identifier: MIT
"""The chapters' trainers as text: what they are called, their cards, and what changes."""
import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARD = re.compile(r"  static constexpr Chapter chapter\{\n(?:.*\n)*?  \};\n")
BEGIN = "namespace zero {\n"  # what is above is the file's comment and its includes
# A line that says which chapter this is: the file's comment, its includes, the card's name.
NAMING = re.compile(r"//|#include |      \.name = ")
COLOURS = {"-": "31", "+": "32", "@": "36", "!": "1;33"}  # ANSI's, by the sign of a line


def source(chapter):
    return (ROOT / chapter / "trainer.hpp").read_text()


def card(text):
    """The card in a trainer's text; empty where there is none."""
    found = CARD.search(text)
    return found[0] if found else ""


def starting_point(before, after):
    """The trainer of `before` under the comment, the includes and the card of `after`."""
    old, new = source(before), source(after)
    head, _, _ = new.partition(BEGIN)
    _, _, body = old.partition(BEGIN)
    return head + BEGIN + body.replace(card(old), card(new))


def changes(old, new, name, leave_out=None):
    """The lines of a diff, each with its sign, in hunks that begin with a line's number in `name`,
    which is the new text. leave_out: lines that it matches are not looked at."""
    texts = [[(number, line) for number, line in enumerate(text.splitlines(), 1)
              if not (leave_out and leave_out.match(line))] for text in (old, new)]
    a, b = ([line for _, line in text] for text in texts)
    lines = []
    for group in difflib.SequenceMatcher(None, a, b).get_grouped_opcodes(3):
        start = group[0][3]
        lines.append(f"@@ {name}:{texts[1][start][0] if start < len(b) else len(b)}")
        for tag, a0, a1, b0, b1 in group:
            if tag == "equal":
                lines += [" " + line for line in a[a0:a1]]
                continue
            lines += ["-" + line for line in a[a0:a1]] + ["+" + line for line in b[b0:b1]]
    return lines


def count(lines, signs="-+"):
    """How many lines of a diff are removed, added, or either."""
    return sum(line[0] in signs for line in lines)


def painted(text, sign):
    """For a terminal, in the sign's colour."""
    if not sys.stdout.isatty() or sign not in COLOURS:
        return text
    return f"\033[{COLOURS[sign]}m{text}\033[0m"


def print_code(lines):
    """Lines of code with their signs, which a terminal narrower than they are folds."""
    for line in lines:
        print(painted(line, line[:1]))


def page_of(chapter):
    """Title and first paragraph of a chapter's page, without marks."""
    text = (ROOT / chapter / "README.md").read_text()
    found = re.match(r"# \d\d (.*)\n\n((?:.+\n)+)", text)
    return [re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", " ".join(part.split()))
            for part in found.groups()]
