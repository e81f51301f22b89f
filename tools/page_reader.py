# SPDX-License-Identifier: MIT
"""Reads what a page offers to do: changes, as diffs without line numbers, and commands.

    ```diff
    --- common/train/adam.hpp
    +++ common/train/lion.hpp
    -class Adam {
    +class Lion {
    @@
    -// The stream must outlive Adam.
    +// The stream must outlive Lion.
    ```

    <details><summary>What you see, and which test catches it</summary>

    The loss falls too slowly.
    Caught by `adam`: "the test case".
    </details>

Lines with a minus or no sign, up to the next @@, must stand in the first file exactly once, one
after the other. Lines with a plus or with no sign replace them, in the second file, or in the first
if no second is named. If the first name is a pattern, as 0[23]_*/trainer.hpp, each file that it
matches is changed. A page's diffs are in order: each changes what those before it have left. A
block `sh` is a command to run; commands() finds those that a page only shows. A diff is a sabotage
if a sentence below it, in <details> or not, says which test of Meson and which case catch it.
`Caught by ThreadSanitizer in` means that the case, built with it, reports a race."""
import re
from dataclasses import dataclass

from runs import ROOT, Failure

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("0?_*/*.md"), *ROOT.glob("notes/**/*.md")])
BLOCK = re.compile(
    r"^```(?P<kind>diff|sh)\n(?:--- (?P<old>\S+)\n(?:\+\+\+ (?P<new>\S+)\n)?)?(?P<lines>.*?)^```$"
    r"(?:\s+(?:<details><summary>[^<]+</summary>\n\n(?:(?!Caught by |</details>|```).)*)?"
    r"Caught by (?P<tsan>ThreadSanitizer in\s+)?`(?P<test>[^`]+)`:\s+\"(?P<case>[^\"]+)\")?",
    re.MULTILINE | re.DOTALL)
# How a shown command begins; SHOWN finds it in an indented line, after "$ ", or between backticks.
COMMAND = (r"(?:(?:[A-Z_]+=\w+ )?(?:(?:mpirun|mpiexec|srun|salloc) -|build/[\w/]+/\w+ "
           r"|tools/\w+\.py |\. carried"
           r"|(?:meson|ninja|docker|git|diff|ruff|kill|sbatch|/usr/bin/python3) )"
           r"|\./tutorial\s(?:demo|doctor|drill|mistake|test|compare|\w+\s[^`\s]))")
SHOWN = re.compile(rf"^(?: {{4,}}| *\$ )({COMMAND}(?:.*\\\n)*.*)$"
                   rf"|(?<!`)`({COMMAND}[^`]*)`(?!`)", re.MULTILINE)


@dataclass
class Diff:
    old: str  # the name of the file that is read
    new: str  # the name of the file that the changed text becomes
    before: str  # lines of the old file
    after: str  # what replaces them
    test: str  # the test that must fail after this diff, "" if the diff is no sabotage
    case: str  # the case of that test
    build: str  # the build in which that test fails: plain, or tsan (ThreadSanitizer)
    title: str  # what is bold in the paragraph before the block, else the diff's first line
    place: str  # "PAGE:LINE: "

    def apply(self, text):
        """Returns the changed text; raises a Failure if `before` is not in it exactly once."""
        if (count := text.count(self.before)) != 1:
            first = self.before.splitlines()[0].strip()
            raise Failure(f"{self.place}\"{first}\" and what follows stand {count} times in "
                          f"{self.old}", 3)
        return text.replace(self.before, self.after)


def changes(page, name=""):
    """Yields the Diffs and the commands of a page's text, in order. name: of the page."""
    for block in BLOCK.finditer(page):
        paragraph = page[:block.start()].rstrip().rpartition("\n\n")[2]
        bold = re.match(r"\*\*([^*]+?)\.?\*\*", paragraph)
        if block["kind"] == "sh":
            yield block["lines"]
        at = page.count("\n", 0, block.start("lines")) + 1
        old = block["old"] or ""
        olds = [old] if "*" not in old else [
            str(file.relative_to(ROOT)) for file in sorted(ROOT.glob(old))]
        for part in re.split(r"(?m)^@@\n", block["lines"]) if old else []:
            lines = part.splitlines(keepends=True)
            before, after = ("".join(line[1:] for line in lines if line[0] in signs)
                             for signs in ("- ", "+ "))
            for old in olds:
                yield Diff(old, block["new"] or old, before, after, block["test"],
                           " ".join((block["case"] or "").split()),
                           "tsan" if block["tsan"] else "plain",
                           " ".join((bold[1] if bold else lines[0]).split()), f"{name}:{at}: ")
            at += len(lines) + 1


def edited(diffs):
    """Returns {name: text} of the files that the diffs change, one after the other."""
    texts = {}
    for diff in diffs:
        old = texts.get(diff.new) or (ROOT / diff.old).read_text("utf-8")
        texts[diff.new] = diff.apply(old)
    return texts


def commands(page):
    """Returns the commands that a page shows, in a block or a sentence, in order, each once."""
    return list(dict.fromkeys(
        " ".join((block or inline).replace("\\\n", "").split("  #")[0].split())
        for block, inline in SHOWN.findall(page)))
