#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every command of ours that a page shows is accepted by its program: with --plan in place of ranks
it ends with exit code 0. Of the questions also: what an answer's formula gives stands in it, and an
edit takes the place of lines that are there."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "notes/scripts"), str(ROOT / "tests/programs")]
import answers  # noqa: E402
from programs import options_of  # noqa: E402
from tables import spaced  # noqa: E402

EDIT = re.compile(r"```diff\n--- (\S+)\n((?:[-+ ].*\n)+)```")
COMMAND = re.compile(r"^(?:    |\$ )(?:mpirun (?:-\w+ )*-n (\d+) )?"
                     r"(build/(?:0\d_\w+/0\d_\w+|plan)\b(?:.*\\\n)*.*)$", re.MULTILINE)


def commands(page):
    """(ranks, the program and its options) for each; 0: without a launcher."""
    for ranks, words in COMMAND.findall(page.read_text()):
        yield int(ranks or 0), words.replace("\\\n", " ").split("  #")[0].split()


def refused(build, ranks, words):
    """What the program says against it; empty where it takes it."""
    asked = ["--ranks", str(ranks)] if ranks else []
    if not words[0].endswith("/plan") and "--plan" not in words:
        asked.append("--plan")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([words[0].replace("build", str(build), 1), *words[1:], *asked],
                              cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""


def answered():
    """What does not hold of the answers to questions."""
    texts = answers.answers()
    for number, _, _, _, _, formula in answers.FIGURES:
        words = " ".join(texts[number][0].split())
        if (result := answers.value(formula)) == int(result) and spaced(int(result)) not in words:
            yield f"question {number}: {formula} = {spaced(int(result))} does not stand there"
    for number, (text, _) in texts.items():
        for name, lines in EDIT.findall(text):
            before = "".join(line[1:] for line in lines.splitlines(keepends=True)
                             if line[0] in "- ")
            if (ROOT / name).read_text().count(before) != 1:
                yield f"question {number}: {name} has not these lines once:\n{before}"


def faults(build):
    """Also that a misspelt option would be found."""
    count = 0
    for page in sorted([ROOT / "README.md", *ROOT.glob("0*/*.md"), *ROOT.glob("notes/*.md")]):
        for ranks, words in commands(page):
            count += 1
            if why := refused(build, ranks, words):
                yield f"{page.relative_to(ROOT)}: {' '.join(words)}: {why}"
            if not refused(build, ranks, [*words, "--acumulate", "2"]):
                yield f"{' '.join(words)}: a misspelt option is taken"
    print(f"{count} commands of the pages are tried")
    yield from answered()


def main():
    found = list(faults(Path(options_of(__doc__).build).resolve()))
    print("\n".join(found) or "every command is taken")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
