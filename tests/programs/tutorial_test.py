# SPDX-License-Identifier: MIT
"""Runs `./tutorial` from outside: in a folder whose name has blanks, from another folder."""
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from recorded import changed, recorded, text_of
from programs import CHAPTERS, ROOT

import sabotage
from drill import DRILLS
from trial import RACE

# (wrong arguments, the exit code, words of the one sentence on stderr).
REFUSED = [
    ("lessons", 2, "unknown command 'lessons'"), ("lesson", 2, "name one chapter"),
    ("lesson 99", 2, f"there is no chapter '99'; the first is 01, the last is {CHAPTERS[-1][:2]}"),
    ("lesson 05 06", 2, "name one chapter"), ("exercise", 2, "name one chapter"),
    ("exercise 99", 2, "there is no chapter '99'"), ("exercise 05c", 2, "no chapter '05c'"),
    ("exercise 06c --fast", 2, "not '--fast'"), ("lesson zero4", 2, "there is no chapter 'zero4'"),
    ("narrate", 2, "name a chapter"), ("memory 99", 2, "there is no chapter '99'"),
    ("watch 99", 2, "there is no chapter '99'"), ("watch 06 07", 2, "it takes a chapter, or"),
    ("overlap", 2, "name a file first"), ("overlap a b", 2, "unrecognized arguments: b"),
    ("overlap no", 3, "/elsewhere/no cannot be read as a trace, of these programs or of torch"),
    ("exercise 05 --fast", 2, "--once or --hint, not '--fast'"), ("doctor now", 2, "no options"),
    ("test --fast", 2, "not '--fast'"), ("test --all --gpu", 2, "not '--all --gpu'"),
    ("test --gpu --budget 1x", 2, "--budget takes 1 to 999999, not '1x'"),
    ("demo --ranks", 2, "--ranks needs a value"), ("demo --ranks 0", 2, "not '0'"),
    ("demo --steps 9999999999999999", 2, "takes 1 to 999999"), ("demo fast", 2, "unknown option"),
    ("demo --data no.txt", 3, "/no.txt is not a file that can be read"),
    ("break", 2, "name a chapter and a number"), ("break 99 1", 2, "there is no chapter '99'"),
    ("break 05 3", 2, "05_zero2 has the sabotages 1 to 2, and no '3'"), ("break 05 1 2", 2, "name"),
    ("drill --fast", 2, "'--fast' is not one of dies, "), ("drill dies dies", 2, "name one"),
    ("mistake none", 2, "'none' is not one of updates, "), ("mistake a b", 2, "name one"),
    ("compare --all", 2, "unknown option '--all'"), ("compare", 3, "has no logs: run ./tutorial"),
    ("compare no.jsonl", 3, "/elsewhere/no.jsonl cannot be read: No such file")]


class Copy:
    """A copy of the files that the script reads, without a build."""

    def __init__(self, folder):
        self.folder, self.elsewhere = folder / "a path/with blanks", folder / "elsewhere"
        self.script = self.folder / "tutorial"
        self.elsewhere.mkdir()
        for name in ("tutorial", "meson.build", "tools", "notes/cards.json", "notes/deepspeed.json",
                     "notes/options.json", "notes/models.json", "notes/machines.json",
                     "notes/published.json", "notes/waits.txt", "notes/counterexamples.md",
                     *CHAPTERS):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, self.folder / name)
        self.environment = dict(os.environ)

    def __call__(self, text, **variables):
        return subprocess.run([self.script, *text.split()], cwd=self.elsewhere, text=True,
                              env=self.environment | variables, capture_output=True,
                              stdin=subprocess.DEVNULL)

    def refuses(self, text, code, words):
        done = self(text)
        assert (done.returncode, done.stdout) == (code, "")
        assert re.fullmatch(f"tutorial: .*{re.escape(words)}.*\n", done.stderr)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorial")
    yield Copy(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("text, code, words", REFUSED)
def test_one_sentence(copy, text, code, words):
    copy.refuses(text, code, words)


def test_help(copy):
    """Help names every command and no other, and fits on a screen."""
    cases = re.search(r"case \$command in\n(.*?)\*\)", copy.script.read_text(), re.DOTALL)[1]
    taken = re.findall(r"^ +([\w| -]+)\)", cases, re.MULTILINE)
    usage = copy("help").stdout
    assert "demo [--data FILE]" in usage and max(map(len, usage.splitlines())) < 80
    assert len(usage.splitlines()) < 24
    assert sorted(re.findall(r"^  (\w+)", usage, re.MULTILINE)) == sorted(
        word for words in taken for word in words.split(" | ") if word[0] != "-")
    for words in ("", "--help", "-h", "demo --help"):
        assert (copy(words).returncode, copy(words).stdout) == (0, usage)


def test_version(copy):
    """meson.build has the version. The changelog's newest heading and the citation repeat it."""
    version = copy("--version").stdout
    changes, citation = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    assert re.fullmatch(r"zero \d+\.\d+\n", version)
    for found in (re.search(r"(?m)^## (\S+)", changes), re.search(r'\nversion: "(.*)"', citation)):
        assert version == f"zero {found[1]}\n"


def test_one_at_a_time(copy):
    """Two ./tutorial at a time would read each other's half-made files. Where build/ cannot be
    written, nothing is installed or built."""
    build = copy.folder / "build"
    shutil.rmtree(build, ignore_errors=True)
    build.touch()
    copy.refuses("test", 6, "/build cannot be written")
    build.unlink()
    (build / "log/lock").mkdir(parents=True)  # cannot be opened, as if it were another user's
    copy.refuses("demo", 6, "/build cannot be written: if it is root's, from an earlier sudo,")
    (build / "log/lock").rmdir()
    with (build / "log/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for words in ("test", "demo"):
            copy.refuses(words, 6, "another ./tutorial is at work")


# (tests' results; Meson's exit code, or why it did not run; test_results.py's last line and code).
COUNTED = [
    ("OK EXPECTEDFAIL SKIP", 0, "2 passed, 0 failed, 1 skipped", 0),
    ("OK FAIL TIMEOUT ERROR INTERRUPT UNEXPECTEDPASS", 5, "1 passed, 5 failed, 0 skipped", 1),
    ("", 0, "0 passed, 1 failed, 0 skipped", 1),
    ("OK", 3, "1 passed, 1 failed, 0 skipped", 1),  # no test explains the code
    ("OK INTERRUPT", 124, "1 passed, 0 failed, 2 skipped", 0),
    ("", "without clang", "0 passed, 0 failed, 1 skipped", 77)]


@pytest.mark.parametrize("results, ended, last, code", COUNTED)
def test_what_is_counted(folder, results, ended, last, code):
    (folder / "pass-setup.json").write_text("\n".join(
        json.dumps({"name": f"zero:gpu / {result}", "result": result, "stdout": "a\nwhy\n"})
        for result in results.split()))
    done = subprocess.run([sys.executable, "-B", ROOT / "tools/test_results.py"], text=True,
                          input=f"{folder}/pass|{ended}\n", stdout=subprocess.PIPE)
    assert (done.stdout.splitlines()[-1], done.returncode) == (last, code)
    assert ("skipped in pass: SKIP: why\n" in done.stdout) == ("SKIP" in results)


def fake(folder, **programs):
    """Writes shell scripts of those names, and returns a PATH on which they come first."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


# What apt-get and sudo do where there is no network, where one of several servers is down, and
# where the user may not install. Without Error-Mode=any a failed apt-get update ends with 0.
OFFLINE = """case $* in *update*) echo "E: Temporary failure resolving 'a.b'"
case $* in *Error-Mode=any*) exit 100 ;; esac ;; esac"""
INSTALLS = [(OFFLINE, '[ "$1" = -l ] || exec "$@"', "E: Temporary failure resolving 'a.b'",
             "reading the lists of packages from the network"),
            (f'echo "Hit:1 a.b"; {OFFLINE}; case $* in *install*) echo no room; exit 100 ;; esac',
             '[ "$1" = -l ] || exec "$@"', "no room", r"installing \d+ packages"),
            ("", 'echo "reader is not in the sudoers file"; exit 1', "not in the sudoers file",
             "asking sudo whether you may install")]


@pytest.mark.parametrize("apt, sudo, reason, phase", INSTALLS)
def test_what_cannot_be_installed(copy, folder, apt, sudo, reason, phase):
    """./tutorial shows the reason and what to install by hand."""
    shutil.rmtree(copy.folder / "build", ignore_errors=True)
    path = fake(folder, sudo=sudo, id="echo 1000",
                **{"apt-get": apt, "dpkg-query": "echo not-installed"})
    done = copy("demo", PATH=path)
    assert done.returncode == 6 and reason in done.stderr, done
    assert re.fullmatch(f"tutorial: {phase} failed; .*by hand, as root: apt-get install g[+][+] .*",
                        done.stderr.splitlines()[-1])


def test_a_terminal_shows_how_far_a_build_is(copy, folder):
    """A terminal shows ninja's counts. In a file a build has one line without them."""
    shutil.rmtree(copy.folder / "build", ignore_errors=True)
    path = fake(folder, meson="", ninja="echo '[1/4] one'; sleep 2.5; exit 1", mpirun="echo HYDRA",
                **{"dpkg-query": "echo installed", "c++": "", "pkg-config": "",
                   "mpiexec.mpich": ""})
    piped = copy("watch", PATH=path)
    shown = subprocess.run(["script", "-qec", f"'{copy.script}' watch", "/dev/null"], text=True,
                           env=copy.environment | {"PATH": path}, capture_output=True,
                           stdin=subprocess.DEVNULL).stdout
    assert piped.returncode == 1 and "1 of 4" not in piped.stdout + piped.stderr
    assert re.search(r"\nbuilding the eight programs: \d s, 1 of 4, about \d+ s left\033", shown)


@pytest.mark.parametrize("owner, broken, chosen, said", [
    ("HYDRA build", "none", "mpich", "MPICH 1, because mpirun is its launcher"),
    ("mpirun (Open MPI) 5", "none", "openmpi", "Open MPI 1, because mpirun is its launcher"),
    ("mpirun (Open MPI) 5", "openmpi", "mpich", "MPICH 1, on"),
    ("HYDRA build", "mpich", "openmpi", "Open MPI 1, on"),
    ("HYDRA build", "mpich, openmpi", "no", "none, because no MPI here starts two ranks")])
def test_which_mpi(copy, folder, owner, broken, chosen, said):
    """The programs are built for the MPI of mpirun, because pages start programs with mpirun. If
    that MPI's ranks do not see each other, another MPI is taken, whose launcher doctor names."""
    starts = {f"mpiexec.{name}": f"exit {int(name in broken)}" for name in ("mpich", "openmpi")}
    path = fake(folder, mpirun=f"echo '{owner}'", **starts, **{"c++": "", "pkg-config": "echo 1"})
    assert subprocess.run([copy.folder / "tools/mpi.sh"], env=copy.environment | {"PATH": path},
                          capture_output=True, text=True).stdout.split()[0] == chosen
    told = " ".join(copy("doctor", PATH=path).stdout.split())
    assert f"Will be used: {said}" in told
    names_another = f"Start programs with mpiexec.{chosen}, not" in told
    assert names_another == (broken in ("mpich", "openmpi"))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_break_lists_what_the_page_offers(copy, chapter):
    listed = re.findall(r"^ *(\d+)  (.*?) +(\S+)$", copy(f"break {chapter}").stdout, re.MULTILINE)
    page = (ROOT / chapter / "README.md").read_text()
    offered = re.findall(r"^\*\*(.+?)\.?\*\*.*\n(?:.+\n)*\n```diff\n--- (?:\S*/)?(\S+)", page, re.M)
    streams = [diff.test for diff in sabotage.sabotages(sabotage.WAITS)]
    count = len(offered) + sum(test.startswith(f"{chapter} ") for test in streams)
    assert len(offered) > 1 and [words[1:] for words in listed[:len(offered)]] == offered
    assert [int(words[0]) for words in listed] == [*range(1, count + 1)]


@pytest.mark.parametrize("number, said, shown", [
    (2, "TEST CASE:  a\n\nERROR: b\n[doctest] test cases: 1",
     "ERROR: b\n[doctest] test cases: 1\n"),
    (3, f"{RACE}\n  Write of size 8:\n    #0 memcpy a\n    #1 zero::f() <null>\n",
     f"{RACE}\n    Write of size 8:\n      #1 zero::f()\nCaught, ")])
def test_break_shows_what_catches_it(monkeypatch, capsys, number, said, shown):
    diff = sabotage.of_chapter("06_zero3")[number - 1]
    found = RACE if diff.build == "tsan" else diff.case
    results = [{"name": diff.test, "said": f"{found}\n{said}", "result": "FAIL"}]
    tree = SimpleNamespace(put=lambda _: None, test=lambda *_: (results, "printed"))
    monkeypatch.setattr(sabotage, "tree_for", lambda *_: tree)
    sabotage.show(diff, "mpich")
    told = capsys.readouterr().out
    assert "\n-" in told and diff.test in told and shown in told
    results[0]["said"] = "another case"
    with pytest.raises(sabotage.Failure, match=r"not caught as its page says: .* not in: another"):
        sabotage.show(diff, "mpich")
    results[0]["result"] = "OK"
    with pytest.raises(sabotage.Failure, match="not caught as its page says: expected was FAIL of"):
        sabotage.show(diff, "mpich")


@pytest.mark.parametrize("name", DRILLS)
def test_drill(programs, folder, name):
    """The drill prints what its row of DRILLS promises."""
    for file in ("build", *CHAPTERS[:2]):
        (folder / file).symlink_to(programs.build if file == "build" else ROOT / file)
    done = programs.start([sys.executable, "-B", ROOT / "tools/drill.py", name,
                           programs.mpiexec], folder)
    assert done.code == 0 and DRILLS[name][-1] in " ".join(done.out.split()), done
    assert max(map(len, done.out.splitlines())) <= 80


def test_doctor(copy):
    """Each row says what the tool itself says."""
    done = copy("doctor")
    said = dict(re.findall(r"(?m)^(\S+(?: \S+)?)  +(.*)$", done.stdout))
    assert done.returncode == 0 and "\nMissing: " in done.stdout, done
    assert said.keys() >= {"system", "memory", "MPICH", "Open MPI", "GPUs", "CUDA", "NCCL"}
    assert said["cores"] == str(len(os.sched_getaffinity(0)))
    for row, tool in (("compiler", "g++"), ("meson", "meson"), ("ninja", "ninja")):
        version = subprocess.run([tool, "--version"], text=True, stdout=subprocess.PIPE).stdout
        assert said[row] == version.splitlines()[0]


def test_compare(copy):
    log = recorded("05_zero2_fp32")
    for name in "abc":
        (copy.elsewhere / name).write_text(text_of(changed(log, "layer_digests", 1)
                                                   if name == "c" else log))
    same, other = (copy(f"compare {names}") for names in ("a b", "a c"))
    assert (same.returncode, other.returncode) == (0, 1)
    assert "layer 1 is the first" in other.stdout and "report.html" in same.stdout


@pytest.mark.parametrize("to, code, said", [
    (">/dev/full", 6, "tutorial: lesson: standard output: No space left on device\n"),
    ("| true", 0, "")])
def test_what_cannot_be_written(copy, to, code, said):
    done = subprocess.run(["sh", "-c", f'"$0" lesson 5 {to}', copy.script], text=True,
                          env=copy.environment | {"PYTHONUNBUFFERED": ""}, capture_output=True)
    assert (done.returncode, done.stderr) == (code, said)


def test_lesson(copy):
    done, *others = (copy(words) for words in ("lesson 5", "lesson 05", "lesson 05_zero2/"))
    assert done.returncode == 0 and all(other.stdout == done.stdout for other in others)
    picture, diff = done.stdout.split("Left out are ")
    for line in ("  rank 1   ▄▄▄▄▄▄ ▄▄▄▄▄▄    ··▄▄·· ··▄▄··    ··██·· ··██·· x3",
                 f"  changed{' ' * 19}^^^^^^ ^^^^^^", "  bytes    24 + 8 + 48 = 80 per rank",
                 "  sent     forward 0, backward A, update 1",
                 "ZeRO-2: the gradients become a shard too"):
        assert line in picture
    assert "-  Replicated grads_{" in diff
    assert "Card card = " not in diff and "#include" not in diff  # these lines say nothing new
    changed = len(re.findall(r"^[+-]", diff, re.M))
    assert diff.startswith("4 changed lines")
    assert f"\n05_zero2/trainer.hpp: {changed + 4} changed lines, " in diff


@pytest.mark.parametrize("name, chapter", [
    *((name[3:], name) for name in CHAPTERS), ("ddp", CHAPTERS[1]), ("zero_offload", CHAPTERS[6]),
    ("zero_infinity", CHAPTERS[7])])
def test_a_stage_s_name_is_taken_for_its_number(copy, name, chapter):
    shown = copy(f"lesson {name}").stdout
    assert shown.startswith(chapter) and shown == copy(f"lesson {chapter[:2]}").stdout


@pytest.mark.parametrize("number, file, words", [
    (1, "01_adam/trainer.hpp", ["01_adam/trainer.hpp: "]), (6, "06_zero3/layer_window.hpp", []),
    (7, "07_offload/offload.hpp",
     ["\n+    offload_.wait_for_copies();\n", "07_offload/trainer.hpp: ",
      "8 + 8 = 16 per rank, and 8 + 48 = 56 on its host"]),
    (8, "08_infinity/state_window.hpp",
     ["\n+    states_.read_ahead();\n", "new file: 08_infinity/host_window.hpp, ",
      "0 per rank, and 8 + 8 = 16 on its host, and 48 on its disk", ", 3 of optimizer state"])])
def test_lesson_shows_whole_files(copy, number, file, words):
    shown = copy(f"lesson {number}").stdout
    assert [word for word in [(ROOT / file).read_text(), *words] if word not in shown] == []


@pytest.mark.parametrize("number", [name[:2] for name in CHAPTERS[1:]])
def test_lesson_on_a_terminal(copy, number):
    """A terminal gets the text of a pipe, in colours. README's map has its counts of lines."""
    piped = copy(f"lesson {number}").stdout
    coloured = subprocess.run(["script", "-qec", f"'{copy.script}' lesson {number}", "/dev/null"],
                              text=True, env=os.environ | {"COLUMNS": "80"}, capture_output=True,
                              stdin=subprocess.DEVNULL).stdout
    plain = re.sub(r"\033\[[\d;]*m", "", coloured)
    assert "\033" not in piped and "\033[32m+" in coloured
    assert plain.split() == piped.split()
    counts = re.findall(r"^new file: .* (\d+) lines$|: (\d+) changed", piped, re.M)
    changed = " + ".join([counts[-1][1], *(f"{new} new" for new, _ in counts[:-1])])
    assert re.search(rf"^\| \[{number}_.* \| {re.escape(changed)} \|$",
                     (ROOT / "README.md").read_text(), re.M)
