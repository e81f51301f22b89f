# SPDX-License-Identifier: MIT
"""The commands that the pages show end with the right exit code, in a copy of the tree. `build` in
them is this build; ./tutorial has its own. ELSEWHERE lists the commands that are not run here:
other tests run them, or none, because they need what a machine may lack, such as a GPU."""
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from page_reader import PAGES, ROOT, SHOWN, commands
from trial import copied

COMMANDS = {str(page.relative_to(ROOT)): commands(page.read_text()) for page in PAGES}
# {pattern of whole commands: Meson's name of the test that runs them, or NEEDS_MORE: none does}.
NEEDS_MORE = "a GPU, 140 GB, a build of all, PyTorch, tools or a chapter of yours"
ELSEWHERE = {
    r"\./tutorial (demo|test)": "a clean system by turns",  # ./tutorial test does what these do:
    r"meson setup build( && ninja .*)?|ninja -C build|meson test -C build --setup default":
        "a clean system by turns",
    r"\./tutorial (compare|drill)\b.*": "the script tutorial",
    r"\./tutorial exercise \w+": "exercises from start to end",
    r"\./tutorial break \d\d \d": "every sabotage is caught",
    r"\./tutorial mistake \w+": "every mistake trains and is caught",
    r"mpirun .*/test_communicator 2 file": "every change can be made",
    r"\./tutorial plan .*(FILE|\w+\.json).*|.*pytest -q tests/programs/plan_test\.py .*":
        "the planner",
    r"\./tutorial overlap FILE|tools/memory.py TRACE LOG": "views of recordings",
    r"\./tutorial overlap FILE --.*": "steps that are played",
    r"mpirun .* --timeout 5|kill -9 .*": "faults end a run in time",
    r"kill -STOP.*": "a rank that stands still ends the job",
    r"mpirun -hosts a,b .*": "two hosts",
    r"(srun|salloc|sbatch) .*": "a cluster under Slurm",
    r"\./tutorial test --.*|.* --device cuda .*|.* --width 16384 .*": NEEDS_MORE,
    r".*(build_gpu|carried) .*|.* -Dnccl=enabled|.* --gpu results\.txt": NEEDS_MORE,
    r"meson .*build/[at]san.*|meson configure build .*": NEEDS_MORE,
    r"mpirun --host a:.*|docker .*|tools/in_pytorch\.py .*": NEEDS_MORE,
    r"ruff .*": "style by ruff", r"git clang-format .*": "style by clang-format",
    r"meson .*build/tidy .*": "style by clang-tidy",
    r"\./tutorial (lesson|break) 09|.* 'check 09_kept'|.* --only overlap": NEEDS_MORE}
CODES = {"06_zero3 --device-memory 2MB": 6, "diff -u": 1}  # other commands end with 0
# Changes to commands: fewer steps; tests and compilations are only listed; a FILE or NN is named.
LESS = {r"^(meson test -C build (?!--setup).*)": r"\1 --list",
        "^(meson compile.*)": r"\1 --ninja-args=-n",
        r"^(\./tutorial demo .*)": r"\1 --steps 2", "--steps 300": "--steps 20",
        "--data FILE": "--data README.md", "^tools/measure": "/usr/bin/python3 -B tools/measure",
        "narrate NN": "narrate 06", r" \[NN \| --renew\]": ""}
# A command that matches runs anew on each page, because files made on a page are removed after it.
NEEDS_A_FILE = "--(save|resume|trace)|overlap"


def elsewhere(command):
    found = [words for words in ELSEWHERE if re.fullmatch(words, command)]
    assert len(found) < 2, (command, found)
    return found[0] if found else None


@pytest.fixture(scope="module")
def tree(programs):
    """A copy of the repository, in a folder with an mpirun: the launcher of the build's MPI."""
    with tempfile.TemporaryDirectory(prefix="zero_") as folder:
        mpirun = Path(folder) / "mpirun"
        mpirun.write_text(f'#!/bin/sh\nexec {shlex.quote(programs.mpiexec)} "$@"\n')
        mpirun.chmod(0o755)
        yield copied(Path(folder) / "a tree")


@pytest.fixture(scope="module")
def done():
    """The commands that have been run, on any page."""
    return set()


@pytest.mark.parametrize("page", [page for page, found in COMMANDS.items() if found])
def test_commands_are_run(page, tree, done, programs):
    """Commands run in the page's order, because one may need a file that an earlier one wrote."""
    before, failed = {*tree.iterdir()}, []
    for command in COMMANDS[page]:
        for words, less in LESS.items():
            command = re.sub(words, less, command)
        if elsewhere(command) or command in done and not re.search(NEEDS_A_FILE, command):
            continue
        done.add(command)
        own = command
        if not command.startswith("./tutorial"):  # ./tutorial has its own build
            own = re.sub(r"\bbuild\b", lambda _: shlex.quote(str(programs.build)), command)
        print(own, flush=True)
        ended = subprocess.run(
            ["sh", "-c", own], cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600,
            env=os.environ | {"PATH": f"{tree.parent}:{os.environ['PATH']}"})
        expected = max([code for words, code in CODES.items() if words in command], default=0)
        failed += [ended] * (ended.returncode != expected)
    for made in {*tree.iterdir()} - before - {tree / "build"}:
        (shutil.rmtree if made.is_dir() else Path.unlink)(made)
    assert not failed


def test_others_run_the_rest(programs):
    """Each entry of ELSEWHERE names a test and is needed by a page. Most commands are run here."""
    tests = json.loads((programs.build / "meson-info/intro-tests.json").read_text())
    assert {*ELSEWHERE.values()} <= {NEEDS_MORE, *(test["name"] for test in tests)}
    shown = {command for found in COMMANDS.values() for command in found}
    assert {elsewhere(command) for command in shown} == {None, *ELSEWHERE}
    assert sum(elsewhere(command) is None for command in shown) > len(shown) / 2


def test_no_command_is_overlooked():
    """commands() finds every line that starts a program. In blocks of sh, which pages_test.py runs
    as changes, it need not."""
    known = re.compile(SHOWN.pattern + r"|^```sh\n(?:.*\n)*?```$", re.MULTILINE)
    ours = re.compile(r"^.*(?:mpi(?:run|exec) -|\./tutorial \w+ |build/0\d_\w+/0\d_\w+ ).*", re.M)
    rest = [line for page in PAGES for line in ours.findall(known.sub("", page.read_text()))]
    assert rest == []
