# SPDX-License-Identifier: MIT
"""Every command of ours that a page shows is accepted by its program: with --plan in place of ranks
it ends with exit code 0. Of the questions also: what an answer's formula gives stands in it, and is
what a command of it predicts."""
import re

import pytest
from page_reader import PAGES, ROOT

COMMAND = re.compile(r"^(?:    |\$ )(?:mpirun (?:-\w+ )*-n (\d+) )?"
                     r"(build/(?:0\d_\w+/0\d_\w+|plan)\b(?:.*\\\n)*.*)$", re.MULTILINE)
COMMANDS = {page: COMMAND.findall(page.read_text()) for page in PAGES}
QUESTIONS = (ROOT / "notes/questions.md").read_text()
TEXTS = dict(re.findall(r"^###? (\d+)\. ((?:.*\n)*?)(?=##)", QUESTIONS, re.MULTILINE))
FOUND = re.findall(r"^\| (\d+) \| .*? \| ([\d ./x+^()]+) \| ([\d .]+) \w", QUESTIONS,
                   re.MULTILINE)


def start(programs, ranks, words, cwd):
    asked = ["--ranks", ranks] if ranks else []
    if not words[0].endswith("/plan") and "--plan" not in words:
        asked.append("--plan")
    return programs.start([words[0].replace("build", str(programs.build), 1), *words[1:], *asked],
                          cwd)


@pytest.mark.parametrize("page", [page for page, found in COMMANDS.items() if found],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_taken(page, programs, tmp_path):
    """And a misspelt option would be found."""
    for ranks, text in COMMANDS[page]:
        words = text.replace("\\\n", " ").split("  #")[0].split()
        done = start(programs, ranks, words, tmp_path)
        assert done.code == 0, (words, done)
        assert start(programs, ranks, [*words, "--acumulate", "2"], tmp_path).code != 0, words


def test_there_are_commands():
    assert sum(map(len, COMMANDS.values())) > 50


@pytest.mark.parametrize("number, formula, found", FOUND)
def test_an_answer_has_what_its_formula_gives(number, formula, found, programs, tmp_path):
    result = eval(re.sub(r"(?<=\d) (?=\d)", "", formula).replace("x", "*").replace("^", "**"))
    assert round(result, 2) == float(found.replace(" ", ""))
    words = f"{result:,.0f}".replace(",", " ")
    assert result != int(result) or words in " ".join(TEXTS[number].split())
    said = "".join(start(programs, ranks, words.split(), tmp_path).out
                   for ranks, words in COMMAND.findall(TEXTS[number]))
    assert words in said or f"{result:.2f}" in said or number == "12"  # --plan adds no rows up
