# SPDX-License-Identifier: MIT
"""Every command of ours that a page shows is accepted by its program: with --plan in place of ranks
it ends with exit code 0. Of the questions also: what an answer's formula gives stands in it."""
import re

import pytest
from page_reader import PAGES, ROOT

import answers
from tables import spaced

COMMAND = re.compile(r"^(?:    |\$ )(?:mpirun (?:-\w+ )*-n (\d+) )?"
                     r"(build/(?:0\d_\w+/0\d_\w+|plan)\b(?:.*\\\n)*.*)$", re.MULTILINE)
COMMANDS = {page: COMMAND.findall(page.read_text()) for page in PAGES}
TEXTS = answers.answers()


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


@pytest.mark.parametrize("number, formula", {(row[0], row[-1]) for row in answers.FIGURES})
def test_an_answer_has_what_its_formula_gives(number, formula):
    result = answers.value(formula)
    assert result != int(result) or \
        spaced(int(result)) in " ".join(TEXTS[number][0].split())
