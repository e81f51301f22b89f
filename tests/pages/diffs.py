# SPDX-License-Identifier: MIT
"""The changes that a page offers, as diffs without line numbers and as commands between them.

    ```diff
    --- common/train/adam.hpp
    +++ common/train/lion.hpp
    -class Adam {
    +class Lion {
    @@
    -// The stream must outlive Adam.
    +// The stream must outlive Lion.
    ```

Lines with a minus and those with neither sign, up to the next @@, must stand in the first file
exactly once, one after the other; with a plus instead they make the second (none: the same). A
page's diffs are in order: each finds what those before it have left. A block `sh` is a command.
"""
import re
from dataclasses import dataclass

BLOCK = re.compile(r"^```(?P<kind>diff|sh)\n(?:--- (?P<old>\S+)\n(?:\+\+\+ (?P<new>\S+)\n)?)?"
                   r"(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Diff:
    old: str
    new: str
    before: str
    after: str

    def apply(self, text):
        """The changed text; ValueError when its lines do not stand in `text` exactly once."""
        if (count := text.count(self.before)) != 1:
            first = self.before.splitlines()[0].strip()
            raise ValueError(f"\"{first}\" and what follows stand {count} times in {self.old}")
        return text.replace(self.before, self.after)


def changes(page):
    """Of a page's text: its Diffs, and its commands as text, in their order."""
    for block in BLOCK.finditer(page):
        if block["kind"] == "sh":
            yield block["lines"]
        for part in re.split(r"(?m)^@@\n", block["lines"]) if block["old"] else []:
            lines = part.splitlines(keepends=True)
            before, after = ("".join(line[1:] for line in lines if line[0] in signs)
                             for signs in ("- ", "+ "))
            yield Diff(block["old"], block["new"] or block["old"], before, after)


def changed_files(page, read):
    """What the page's diffs make of the files that read(name) gives, by name."""
    texts = {}
    for change in changes(page):
        if isinstance(change, Diff):
            text = texts[change.new] if change.new in texts else \
                texts.get(change.old) or read(change.old)
            texts[change.new] = change.apply(text)
    return texts
