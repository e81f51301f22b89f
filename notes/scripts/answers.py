# SPDX-License-Identifier: MIT
"""Runs the commands of notes/questions.md and finds the figures that its answers predict."""
import functools
import os
import re
import signal
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path

from cards import ROOT
from runs import ENVIRONMENT, Failure, output_of
from tables import fenced, spaced, table

PAGE = ROOT / "notes" / "questions.md"
# Of each figure: the question, which of its commands (from 0), the first row of what that prints
# which begins so, the column there, the unit, and the formula as the answer has it.
FIGURES = (
    (1, 0, "parameters", 2, "bytes at the peak", "2 x 70 656 / 4 + 2 x 2 x 65 536"),
    (1, 1, "parameters", 2, "bytes at the peak", "2 x 70 656"),
    (2, 0, "backward", 2, "elements", "394 752"),
    (2, 0, "update", 2, "elements", "394 752"),
    (2, 1, "forward", 2, "elements", "394 752"),
    (2, 1, "backward", 2, "elements", "2 x 394 752"),
    (3, 0, "parameters", 3, "bytes resident", "2 x 526 336 / 4"),
    (3, 0, "parameters", 2, "bytes at the peak", "2 x 526 336 / 4 + 2 x 2 x 65 792"),
    (4, 0, "parameters", 1, "bytes resident", "2 x 8 x 21 936"),
    (6, 0, "backward", 2, "elements", "4 x 394 752"),
    (6, 1, "backward", 2, "elements", "394 752"),
    (8, 0, "backward", 2, "elements", "2 x 394 752"),
    (9, 0, "communication, ms", 1, "ms in 03", "16 x 0.05 + 8 x 4 202 496 / 10^6 + 0.05"),
    (9, 0, "communication, ms", 4, "ms in 06", "24 x 0.05 + 8 x 6 303 744 / 10^6 + 0.05"),
    (10, 0, "resident", 1, "kB in 03", "(16 x 526 336 + 97 940) / 10^3"),
    (10, 0, "resident", 4, "kB in 06", "(16 x 526 336 + 97 940) / 10^3"),
    (12, 0, "tensors, as reserved", 1, "bytes", "5 080 980"),
    (13, 0, "forward", 1, "elements", "4 x 394 752"),
    (13, 0, "backward", 1, "elements", "8 x 394 752"),
    (14, 0, "resident", 5, "GB in 07", "4 x 7"),
    (14, 0, "on the host", 5, "GB in 07", "14 x 7"),
    (14, 0, "copies, ms", 5, "ms in 07", "2 x 14 / 25 x 10^3"),
)


def answers():
    """Of every question its number, its text, and the commands in it, as a reader types them."""
    _, *parts = re.split(r"^###? (\d+)\. ", PAGE.read_text(), flags=re.MULTILINE)
    return {int(number): (text, re.findall(r"^    ((?:mpirun -n \d+ )?build/.*)$", text,
                                           re.MULTILINE))
            for number, text in zip(parts[::2], parts[1::2])}


def built(programs, command):
    """A command of the page with this build's programs and launcher."""
    words = command.replace("build/", f"{programs.build}/").split()
    return [*programs.mpiexec, *words[1:]] if words[0] == "mpirun" else words


def value(formula):
    """Of sums and products, as they are written in the answers."""
    words = re.sub(r"(?<=\d) (?=\d)", "", formula).replace(" x ", " * ").replace("^", "**")
    if not re.fullmatch(r"[\d\s.*/+()]+", words):
        raise Failure(f"{formula} is no sum of products")
    return eval(words)  # pylint: disable=eval-used  (digits and operators alone)


def cell(printed, name, column):
    """Of the first row of that name, as a number."""
    found = re.search(rf"^ *{re.escape(name)}  .*", printed, re.MULTILINE)
    if not found:
        raise Failure(f"no row {name} in:\n{printed}")
    return float(re.split(" {2,}", found[0].strip())[column].replace(" ", ""))


def questions(programs):
    """Every figure that an answer predicts, and what the command says. Throws where they differ."""
    @functools.cache
    def printed(command):
        print(f"  {command}", flush=True)
        return output_of(built(programs, command))

    commands = {number: shown for number, (_, shown) in answers().items()}
    rows = []
    for number, which, name, column, unit, formula in FIGURES:
        command = commands[number][which]
        fenced(printed(command))  # it fits a terminal
        found, expected = cell(printed(command), name, column), value(formula)
        if round(expected, 2) != round(found, 2):
            raise Failure(f"question {number}: {formula} = {expected}, but {found} in {command}")
        shown = spaced(int(found)) if found == int(found) else f"{found:.2f}"
        program = re.search(r"build/(?:\w+/)?(\w+)", command)[1]
        rows.append([number, f"{program}: {name.removesuffix(', ms')}", formula, f"{shown} {unit}"])
    digests, same = (
        [re.search("^parameters (.*?) ", printed(command.replace(" --accumulate 2", taken)),
                   re.MULTILINE)[1] for command in commands[7]]
        for taken in (" --accumulate 2", ""))
    if len(set(digests)) != 2 or len(set(same)) != 1:
        raise Failure(f"question 7: {digests} with accumulation, {same} without")
    rows += [[7, "04_zero1 and 05_zero2: digests", "differ", "`, `".join(digests).join("``")],
             [7, "both without `--accumulate 2`", "the same", f"`{same[0]}`"]]
    skipped = re.findall(r"^ +(\d+) .* skipped: ", printed(commands[11][0]), re.MULTILINE)
    if len(skipped) != 3 or skipped[0] != "3":
        raise Failure(f"question 11: skipped are the steps {skipped}")
    rows.append([11, "03_mixed_precision: skipped steps", "3, the first of them step 3",
                 ", ".join(skipped)])
    return table(["question", "figure", "predicted", "found"],
                 sorted(rows, key=lambda row: row[0]), left=4)


def struck(programs, command, number):
    """The exit code of a run on ranks of which rank 1 gets that signal, and the ranks' words."""
    with tempfile.TemporaryDirectory() as folder:
        note = 'echo $$ > "$0/${PMI_RANK-$OMPI_COMM_WORLD_RANK}"; exec "$@"'
        words = built(programs, command)
        program = next(i for i, word in enumerate(words) if "/" in word and i > 0)
        with subprocess.Popen([*words[:program], "sh", "-c", note, folder, *words[program:]],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace",
                              env=os.environ | ENVIRONMENT) as process:
            time.sleep(4)  # it is in its steps
            os.kill(int((Path(folder) / "1").read_text()), number)
            printed, _ = process.communicate()
    return process.returncode, re.findall(r"^rank \d+/\d+.*", printed, re.MULTILINE)


def ends(programs):
    """What ends a run of which a rank stands still, or is killed."""
    command = answers()[5][1][0]
    programs.run("06_zero3", 2, "--steps", 1)  # who is named below the table
    blocks = []
    for words, number in (("kill -STOP", signal.SIGSTOP), ("kill -9", signal.SIGKILL)):
        print(f"  {command}, {words}", flush=True)
        code, said = struck(programs, command, number)
        if code == 0 or (number == signal.SIGSTOP) != (code == 4 and bool(said)):
            raise Failure(f"{words} of a rank: exit code {code}, {said}")
        lines = [line for sentence in said
                 for line in textwrap.wrap(sentence, 80, break_on_hyphens=False)]
        blocks.append("\n".join([f"{words} of rank 1: exit code {code}",
                                 *(lines or ["(the launcher's own words alone)"])]))
    return fenced("\n\n".join(blocks))


TABLES = {"questions": questions, "ends": ends}
