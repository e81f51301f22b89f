# SPDX-License-Identifier: MIT
"""Every file, folder and program that a page names is there, and every command of ours that it
shows is accepted. A copy of the tree follows each page of notes/changing: where the page says `Now
hold:`, the tests that it names there pass, and where it says `Now fail:`, they fail. Every sabotage
that a page offers is caught, and every wait that overlap.md adds is needed. The programs of
part.md, in a project with this one as a subproject, are right. Every Debian that README names has
been tried, and a workflow tries its Ubuntu.

The tests look at links, paths below the repository's folders, names of source files, and paths
below build/, which must be a program of the build or what the scripts make. What an edit takes away
must stand once in the file that the edit names. A page may name files that its changes make.
"""
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from page_reader import PAGES, ROOT, Diff, changes, commands, edited

import portability
import sabotage
import tables
from runs import CHAPTERS, Failure
from trial import Tree, copied, expect_results, follow

FOLDERS = ["common", "tests", "tools", "notes", *(path.name for path in ROOT.glob("0?_*"))]
CASES = "".join(path.read_text() for path in ROOT.glob("tests/*/*_test.??*"))
PART = (ROOT / "notes/changing/part.md").read_text()
# {name: text} of the files that part.md shows of the reader's project.
YOURS = dict(re.findall(r"^```\w+\n(?://|#) yours/(\S+)\n(.*?)^```", PART, re.M | re.S))
SOURCES = {*YOURS, "CHANGELOG.md", "CONTRIBUTING.md", "README.md",
           *(path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*"))}
LINK = re.compile(r"(?<![\[&=])\]\(([^)#\s]+)")  # [&](...) is no link but code
START = r"(?<![\w./$*-])"  # a name does not begin in the middle of a longer one
PATH = re.compile(START + r"(?:common|tests|notes|0\d_\w+)/[\w./*-]*")
FILE = re.compile(START + r"\w+\.(?:[ch]pp|cuh?|py|sh|md)\b")
BUILT = re.compile(START + r"build/[\w./-]*")
MADE = {f"build/{name}" for name in (
    "", "asan", "build.ninja", "cpu", "demo", "demo/report.html", "compare/report.html", "exercise",
    "log", "measure", "sabotage", "step.html", "tidy", "tsan")}


@pytest.fixture(scope="session")
def built(programs):
    """Returns what a page may name below build/: MADE, and programs, wherever they are built."""
    targets = json.loads((programs.build / "meson-info/intro-targets.json").read_text())
    return MADE | {"build/" + str(Path(file).relative_to(programs.build))
                   for target in targets if target["type"] == "executable"
                   for file in target["filename"]}


def made_by(page):
    """Returns the first folders of the files that a page's changes make. Fails if a line that a
    change takes away is not there, or if the test case that should catch it does not exist."""
    diffs = [change for change in changes(page.read_text(), page.relative_to(ROOT))
             if isinstance(change, Diff)]
    for diff in diffs:
        assert not diff.test or f'TEST_CASE("{diff.case}")' in CASES or (
            f"def {diff.case}(" in CASES), diff.case
    # Except on pages of notes/changing, each edit is made by itself.
    together = [diffs] if page.parent.name == "changing" else [[diff] for diff in diffs]
    made = [name for some in together for name in edited(some)]
    return {name.split("/")[0] for name in made if not (ROOT / name).exists()}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "notes/waits.txt", ROOT / "tutorial"],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page, built):
    made, missing = made_by(page), []
    for line in page.read_text().splitlines():
        # a path is without the full stop of its sentence
        paths, in_build = ([path.rstrip(".") for path in kind.findall(line)]
                           for kind in (PATH, BUILT))
        missing += [link for link in LINK.findall(line)
                    if "://" not in link and not (page.parent / link).exists()]
        missing += [path for path in paths if not any(ROOT.glob(path))
                    and path.split("/")[0] not in made]
        missing += [name for name in FILE.findall(line) if name not in SOURCES]
        missing += [path for path in in_build if path not in built]
    assert not missing


ASKED = re.compile(r"(?:mpirun (?:-\w+ )*-n (\d+) )?"
                   r"((?:build/0\d_\w+/0\d_\w+|\./tutorial plan)\b(?!.*(?:FILE|json)).*)")


def asked_of(text):
    """Returns (ranks, words) of each command for a program or the planner."""
    found = map(ASKED.fullmatch, commands(text))
    return [(match[1], match[2].split()) for match in found if match]


COMMANDS = {page: asked_of(page.read_text()) for page in PAGES}
QUESTIONS = (ROOT / "notes/questions.md").read_text()
TEXTS = dict(re.findall(r"^###? (\d+)\. ((?:.*\n)*?)(?=##|\Z)", QUESTIONS, re.MULTILINE))
# (number of a question, a figure of its answer, by its formula).
ANSWERS = [(1, 2 * 70656 / 4 + 2 * 2 * 65536), (1, 2 * 70656), (2, 394752), (2, 2 * 394752),
           (3, 2 * 526336 / 4), (6, 4 * 394752), (6, 394752),
           (9, 16 * 0.05 + 8 * 4202496 / 10**6 + 0.05),
           (9, 24 * 0.05 + 8 * 6303744 / 10**6 + 0.05),
           (14, 4 * 7), (14, 14 * 7), (14, 2 * 14 / 25 * 10**3)]


def start(programs, ranks, words, cwd):
    """Runs a page's command: the planner's as it is, a program's with --plan for its ranks."""
    asked = ["--ranks", ranks] if ranks else []
    if words[0] == "./tutorial":
        return programs.start([str(ROOT / "tutorial"), *words[1:]], cwd)
    if "--plan" not in words:
        asked.append("--plan")
    return programs.start([words[0].replace("build", str(programs.build), 1), *words[1:], *asked],
                          cwd)


@pytest.mark.parametrize("page", [page for page, found in COMMANDS.items() if found],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_taken(page, programs, tmp_path):
    for ranks, words in COMMANDS[page]:
        done = start(programs, ranks, words, tmp_path)
        assert done.code == 0, (words, done)


@pytest.mark.parametrize("number, result", ANSWERS)
def test_an_answer_has_what_its_formula_gives(number, result, programs, tmp_path):
    """A command of the answer predicts this figure. The answer has it, if it is a whole number."""
    text = TEXTS[str(number)]
    words = f"{result:,.0f}".replace(",", " ")
    assert result != int(result) or words in " ".join(text.split())
    said = "".join(start(programs, *asked, tmp_path).out for asked in asked_of(text))
    assert words in said or f"{result:.2f}" in said


def test_the_first_screen_has_what_08_plans(programs):
    """README begins with 08's plan of the run that 07 made on an H100: GB on device, host, disk."""
    words = "--task mlp --width 16384 --layers 30 --batch 1024 --ranks 1 --device cuda".split()
    out = programs.run(0, "08_infinity", "--plan", *words).out.partition("elements sent")[0]
    sums = [sum(int(re.findall(r"\d{1,3}(?: \d{3})*", row)[1].replace(" ", ""))
                for row in re.findall(r"^  \w+ +(\d.*)", part, re.M))
            for part in re.split("on its (?:host|disk)", out)]
    told = "{:.1f} GB there, {:.1f} GB in the machine's memory, {:.1f} GB on a disk"
    assert told.format(*(each / 1e9 for each in sums)) in " ".join(
        (ROOT / "README.md").read_text().split())


# {page: its `Now hold:` and `Now fail:`}, {page: the commands to run after all its changes}.
NAMED = re.compile(r"Now (hold|fail):((?:\s+`[^`]+`,?)+)")
FOUND = {page.name: found for page in PAGES if page.parent.name == "changing"
         if (found := [*NAMED.finditer(page.read_text())])}
RUN_AFTER = {page.name: found for page in PAGES if page.parent.name == "changing"
             if (found := re.findall("`(mpirun [^`]+)`", page.read_text()))}


def test_a_diff_beside_a_page_applies():
    assert {named[1] for found in FOUND.values() for named in found} == {"hold", "fail"}
    for diff in ROOT.glob("notes/changing/*.diff"):
        subprocess.run(["git", "apply", "--check", diff], cwd=ROOT, check=True)


@pytest.mark.parametrize("page", FOUND)
def test_a_change_can_be_made(page, programs, tmp_path):
    """The page is followed from each `Now hold:` or `Now fail:` to the next."""
    tree, done = copied(tmp_path / "tree"), 0
    for named in FOUND[page]:
        steps = [*changes(named.string[:named.start()], f"notes/changing/{page}")]
        follow(steps[done:], tree)
        tests, done = re.findall("`([^`]+)`", named[2]), len(steps)
        word = {"hold": "OK", "fail": "FAIL"}[named[1]]
        expect_results([word] * len(tests), *Tree(tree, tree / "build").test(*tests))
    for command in RUN_AFTER.get(page, []):
        subprocess.run([programs.mpiexec, *command.split()[1:]], cwd=tree, check=True)


def test_a_project_with_our_parts_can_be_made(programs, folder):
    """The project of part.md can be built. Its programs print what this test computes itself."""
    for name, text in YOURS.items():
        (folder / name).write_text(text)
    (folder / "subprojects").mkdir()
    (folder / "subprojects/zero").symlink_to(ROOT)
    mpi = "mpich" if programs.passes_signals else "openmpi"
    for command in ("meson setup build -Doptimization=0 -Dzero:cuda=disabled -Dzero:mpi=" + mpi,
                    "ninja -C build element product ranks"):
        subprocess.run(command.split(), cwd=folder, check=True)
    configured = {path.name for path in (folder / "build/subprojects/zero").iterdir()}
    assert "common" in configured and not configured & {"tests", "06_zero3"}

    def printed(name, *launch):
        done = programs.start([*launch, str(folder / "build" / name)])
        assert done.code == 0, done
        return [*map(float, done.out.split())]

    weight, momentum, variance = 1, 0, 0
    for t, grad in enumerate((0.5, -0.25, 2), 1):
        momentum = 0.9 * momentum + 0.1 * grad
        variance = 0.999 * variance + 0.001 * grad**2
        weight -= 0.01 * momentum / (1 - 0.9**t) / ((variance / (1 - 0.999**t))**0.5 + 1e-8)
    assert printed("element") == [pytest.approx(weight, rel=1e-6)]
    assert printed("product") == [sum((5 * i + k) * (32 * k + j) for k in range(5))
                                  for i in range(7) for j in range(32)]
    for n in (2, 3):
        means = [i + (n - 1) / 2 for i in range(12)]
        sizes = [-(-size // (8 * n)) * 8 * n for size in (100, 300, 200)]  # padded
        in_use = 4 * (sum(sizes) // n + 2 * max(sizes))  # bytes: the shard, two slots
        layers = [number for size in sizes for number in (size * (n + 1) / 2, in_use)]
        assert printed("ranks", programs.mpiexec, "-n", str(n)) == means + layers

    counts = re.findall(r"\((\S+\.hpp)\) \| (\d+) ", PART)
    for header, count in counts:
        made = subprocess.run(["c++", "-std=c++20", f"-I{ROOT}", f"-I{ROOT}/common", "-MM", "-xc++",
                               ROOT / "notes/changing" / header], capture_output=True, text=True)
        assert made.stdout.count(".hpp") == int(count), made
    assert len(counts) == 4


def test_every_sabotage_is_caught(programs):
    """Sabotages for one kind of build are tried one after the other, in one tree."""
    found = [(page, diff) for page in sabotage.PAGES for diff in sabotage.sabotages(page)]

    def missed(build):
        tree, why = sabotage.tree_for(programs.build / "sabotage", build), ""
        for page, diff in found:
            if diff.build == build:
                try:
                    sabotage.tried([diff], tree)
                    why = ""
                except Failure as failure:
                    why = str(failure)
                print("MISSED" if why else "caught", page.relative_to(ROOT), diff.title, diff.test,
                      why, flush=True)
                yield bool(why)

    with ThreadPoolExecutor() as both:
        assert not sum(both.map(lambda build: sum(missed(build)), sabotage.OPTIONS))


WAIT = re.compile(r"^.*(?:_\.wait\(|~Trainer).*\n", re.MULTILINE)


def test_sabotage_of_each_wait_of_overlap_is_caught(programs, tmp_path):
    """On two streams ThreadSanitizer, or a test's own check, catches that a wait is missing."""
    texts = edited(changes((ROOT / "notes/changing/overlap.md").read_text()))
    tree = Tree(tmp_path / "tree", tmp_path / "build", *sabotage.OPTIONS["tsan"])
    for chapter in CHAPTERS[1:5]:
        trainer, choice = f"{chapter}/trainer.hpp", f"{chapter} schedules on 2 ranks"
        text = texts[trainer]
        for wait in [None, *WAIT.finditer(text)]:
            broken = text[:wait.start()] + text[wait.end():] if wait else text
            tree.put(texts | {trainer: broken})
            results, printed = tree.test(choice, "--timeout-multiplier=3")
            print(chapter, wait and wait[0].strip(), results and results[0]["result"], flush=True)
            expect_results(["FAIL"] if wait else ["OK"], results, printed)


def test_the_systems_of_readme_are_tried():
    """portability.py tries each Debian; tested.md has its last runs. GitHub tries Ubuntu."""
    recorded = [row["system"] for row in json.loads(portability.RECORD.read_text())]
    assert recorded == [*portability.SYSTEMS]
    assert tables.systems(None) in (ROOT / "notes/tested.md").read_text()
    promise = re.search(r"You need(?:.|\n)+?The ranks", (ROOT / "README.md").read_text())[0]
    tried = {name.partition("-")[0] for name in recorded}
    assert set(re.findall(r"\b(?:1\d|testing|sid)\b", promise)) == tried
    jobs = re.findall("runs-on: ubuntu-([0-9].*)", (ROOT / ".github/workflows/ci.yml").read_text())
    assert jobs == re.findall(r"Ubuntu (\d+\.\d+)", promise)


def test_there_are_commands_and_changes():
    assert sum(map(len, COMMANDS.values())) > 50 and len(ANSWERS) > 10
    assert len(FOUND) >= 3 and len(RUN_AFTER) == 1
