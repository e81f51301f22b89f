# SPDX-License-Identifier: MIT
"""Each command that a page shows ends as it should: a program's with this build, one of ./tutorial
in a copy of the tree. Or another test runs it, which is named here.
"""
import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
from page_reader import PAGES, ROOT, commands, copied

COMMANDS = {str(page.relative_to(ROOT)): commands(page.read_text()) for page in PAGES}
# The test that runs it, by its name in Meson; none: it needs a GPU, tools that nothing here needs,
# a chapter of yours, or a build of all, as a pass of `./tutorial test --all` makes it.
ELSEWHERE = {
    r"\./tutorial (demo|test)$|meson setup build( &&|$)|--setup default$|^ninja":
        "a clean Debian 13",
    r"compare|drill": "the script tutorial", r"exercise": "exercises from start to end",
    r"break \d\d \d": "every sabotage is caught", r" 2 file$": "every change can be made",
    r"watch": "the walk is what the programs make", r"FILE|config\.json|pytest": "the planner",
    r"--timeout 5$|^kill": "faults end a run in time", r"-hosts? ": "two hosts",
    r"cuda|e gpu|gpu_|test --|asan|tsan|tidy|clang-format|docker|-Ddebug|\b08|ruff|_pytorch": "",
    r"tools/measure": "figures show what they say", r"tools/memory": "views of recordings"}
CODES = {"06_zero3 --device-memory 2MB": 6, "diff -u": 1}  # else 0
# What would last minutes is cut short, and other tests run those of Meson.
LESS = {"^(meson test.*)": r"\1 --list", "^(meson compile.*)": r"\1 --ninja-args=-n",
        r"^(\./tutorial demo.*)": r"\1 --steps 2", "--steps 300": "--steps 20",
        "--data FILE": "--data README.md", " NN": " 06"}


@pytest.fixture(scope="module")
def tree(programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec {programs.mpiexec} "$@"\n')
    (folder / "mpirun").chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    yield copied(folder / "tree")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def tests(programs):
    return {test["name"] for test in
            json.loads((programs.build / "meson-info/intro-tests.json").read_text())}


@pytest.mark.parametrize("page", [page for page, found in COMMANDS.items() if found])
def test_commands_are_run(page, tree, tests, programs):
    """In the page's order, as one may need a file that another has left."""
    before, failed = {*tree.iterdir()}, []
    for command in COMMANDS[page]:
        for words, less in LESS.items():
            command = re.sub(words, less, command)
        if by := [test for words, test in ELSEWHERE.items() if re.search(words, command)]:
            assert by[0] in {*tests, ""}
            continue
        if not command.startswith("./tutorial"):  # which builds its own
            command = re.sub(r"\bbuild\b", shlex.quote(str(programs.build)), command)
        print(command, flush=True)
        done = subprocess.run(["sh", "-c", command], cwd=tree, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expected = max([code for words, code in CODES.items() if words in command], default=0)
        failed += [done] * (done.returncode != expected)
    for made in {*tree.iterdir()} - before - {tree / "build"}:
        subprocess.run(["rm", "-r", made], check=True)
    assert not failed
