#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Writes every measured block of the pages, and every figure of measured numbers, from
notes/measured. It runs no program, and writes the same bytes each time. The other figures, which
show ideas, are edited by hand.

tools/measure.py writes a file of notes/measured for each machine: the machine's name, and of each
block when it was measured, and the numbers that were `found`. A block stands in a page between the
comments `measured: NAME` and `end`."""
import json
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

from figures import FIGURES
from runs import ROOT, Failure, Programs, finish
from tables import TABLES, TIMELESS

BLOCK = re.compile(r"^<!-- measured: (.*?) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
MEASURED = ROOT / "notes/measured"
PAGES = sorted([ROOT / "README.md", *ROOT.glob("notes/**/*.md"), *ROOT.glob("0*/README.md")])
WIDTH = 120  # of a line of prose


class Block(Programs):
    """The numbers of one block. `blocks` has the numbers of all, as load() returns them."""
    mpiexec, logs = [], Path()  # Programs has them; here nothing is started

    def __init__(self, name, blocks):
        self.name, self.blocks = name, blocks

    def program(self, chapter):
        return chapter  # a command is named here, not started: nothing needs to be built

    def block(self, name):
        return Block(name, self.blocks)

    def get(self, what, measure):
        """Returns the numbers measured as `what`. In measure.py get() calls measure(programs)."""
        try:
            return self.blocks[self.name]["found"][what]
        except KeyError:
            raise Failure(f"notes/measured has no {what!r} of {self.name!r}: run tools/measure.py "
                          f"--only {self.name.removeprefix('figure ')!r}") from None

    def text(self, measure):
        """Returns the text that measure(programs) has returned."""
        return "\n".join(self.get("printed", lambda of: measure(of).rstrip("\n").split("\n")))

    def command(self, chapter, ranks, *arguments, dtype=None):
        return self.prepare("log", chapter, ranks, *arguments, dtype=dtype)

    def run(self, keep, chapter, ranks, *arguments, dtype=None):
        """Returns keep(run) as a namespace, with `shown`, the command as a reader types it."""
        shown = self.command(chapter, ranks, *arguments, dtype=dtype).shown
        found = self.get(shown, lambda of: keep(of.run(chapter, ranks, *arguments, dtype=dtype)))
        return SimpleNamespace(**found, chapter=chapter, number=chapter[:2], shown=shown)


def load():
    """Returns {block: {machine, when, found}} of all files."""
    files = [json.loads(path.read_text("utf-8")) for path in sorted(MEASURED.glob("*.json"))]
    return {name: {"machine": file["machine"], **block}
            for file in files for name, block in file["blocks"].items()}


def content(name, blocks):
    """Returns a block's Markdown, with where and when it was measured if that matters."""
    maker, *arguments = name.split()
    if maker not in TABLES:
        raise Failure(f"there is no table {maker!r}; there are {', '.join(TABLES)}")
    if name == "gpu" and name not in blocks:
        return "(No GPU has run these steps yet.)"
    block = Block(name, blocks)
    lines = TABLES[maker](block, *arguments).splitlines()
    if block.name in blocks and maker not in TIMELESS:
        lines += ["", f"*{blocks[block.name]['machine']}; {blocks[block.name]['when']}.*"]
    return "\n".join(line if line.startswith(("|", " ")) or len(line) <= WIDTH else
                     textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
                     for line in lines)


def blocks_of(page):
    """Returns the names of a page's measured blocks."""
    text = page.read_text("utf-8")
    if text.count("<!-- measured: ") != len(BLOCK.findall(text)):
        raise Failure(f"{page.relative_to(ROOT)}: a `measured` comment has no `end` of its own")
    return [name for name, _ in BLOCK.findall(text)]


def rendered(blocks):
    """Returns, by path, the text of each page that has a block, and of each drawn figure."""
    def anew(block):
        return f"<!-- measured: {block[1]} -->\n\n{content(block[1], blocks)}\n\n<!-- end -->"

    texts = {page: BLOCK.sub(anew, page.read_text("utf-8")) for page in PAGES if blocks_of(page)}
    return texts | {ROOT / f"notes/figures/{name}.svg": draw(Block(f"figure {name}", blocks))
                    for name, draw in FIGURES.items()}


def differing(blocks):
    """Returns those texts of rendered() that differ from their files."""
    return {path: text for path, text in rendered(blocks).items()
            if not path.exists() or path.read_text("utf-8") != text}


def main():
    for path, text in differing(load()).items():
        path.write_text(text, "utf-8")
        print(f"rewrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    finish(main, "render.py: ")
