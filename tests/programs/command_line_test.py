# SPDX-License-Identifier: MIT
"""What the eight programs answer to a command line, good or bad, alone and on ranks.

A bad command line ends with one sentence on stderr and the right exit code. It prints nothing on
stdout, and makes and changes no file. A good one prints and logs what is documented."""
import json
import os
import pty
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from programs import ALONE, CHAPTERS, DATA, MIXED, NUMERICS, RESOURCES, USAGE, bits, read_log

SMALL = ["--width", 8, "--layers", 2, "--batch", 2]  # of the default task, text
DDP = "02_distributed_adam"
A_FEW_SECONDS = 10
# What srun sets for a rank that is alone: how many ranks there are, and which one this is.
SLURM_TASK = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}

# Which options are refused is tested in tests/unit/options_test.cpp, and what a machine lacks in
# choice_test.cpp. Here it is tested how a program ends that refuses something.
# In patterns [,] is a comma: `refused` below separates patterns by a comma and a space.
TOO_LARGE = "--task mlp --width 65536 --layers 512 --batch 1 --device cpu --log new.log"
TOO_MUCH = (r"^{}: each rank needs [\d ]{{15,}} bytes[,] {} on this machine share [\d ]+ that are "
            "available: use another chapter[,] fewer or smaller layers or batches[,] or more mach")
FULL = "--width 8 --layers 2 --batch 2 --steps 3 --quiet"
# Exit code, ranks (0: without mpirun), chapter, arguments, and patterns that the sentence matches.
REFUSED = [
    (USAGE, 0, ALONE, "--log new.log --foo", "--foo"),
    (USAGE, 2, "04_zero1", "--log kept.log --lr abc", "--lr, abc"),
    (USAGE, 0, "05_zero2", "--check-every -1", "--check-every, -1"),
    (USAGE, 0, "08_infinity", "--state device", "--state, device, disk, host"),
    (USAGE, 0, "08_infinity", "--state host --disk 1", "--disk, which --state host does not"),
    (USAGE, 0, "08_infinity", "--piece 7", "--piece, 7, 8"),
    (USAGE, 2, DDP, "--comm nccl --device cpu", "--comm nccl, --device cuda, --comm mpi"),
    *((USAGE, ranks, chapter, f"{options} {file}", f"{options.split()[-1]}, {file}, {why}")
      for ranks, chapter, options in ((0, ALONE, "--trace new --log"),
                                      (2, DDP, "--log kept.log --trace"))
      for file, why in (("nowhere/new.log", "No such file"), ("folder", "directory"))),
    (USAGE, 0, ALONE, "--data text.txt --log text.txt", "--log, text.txt"),
    (USAGE, 2, "04_zero1", "--data text.txt --trace text.txt", "--trace, text.txt"),
    *((USAGE, 0, DDP, f"--trace {trace} --log {log}", f"--trace, --log, {log}")
      for trace, log in (("new.log", "./new.log"), ("link", "kept.log"))),
    (USAGE, 2, ALONE, "", "2, mpirun"),
    (USAGE, 2, "04_zero1", "--plan", "--plan, mpirun, --ranks 2"),
    *((DATA, ranks, chapter, f"{how} --data {name}", f"{name}, {why}")
      for ranks, chapter, how in ((0, ALONE, "--log new.log"), (0, "05_zero2", "--plan"),
                                  (2, "06_zero3", "--log kept.log"))
      for name, why in (("missing.txt", "No such file"), ("empty.txt", "0 bytes, 9"),
                        ("eight.txt", "8 bytes, 9"), ("folder", "directory"))),
    # The sentence names the bytes that are needed and available. No memory was reserved yet.
    (RESOURCES, 0, ALONE, TOO_LARGE, TOO_MUCH.format(ALONE, 1)),
    (RESOURCES, 0, DDP, TOO_LARGE, TOO_MUCH.format(DDP, 1)),
    (RESOURCES, 2, "06_zero3", TOO_LARGE, TOO_MUCH.format("06_zero3", 2)),
    (RESOURCES, 2, "06_zero3", f"{FULL} --device-memory 0.01MB", "device memory, allows 10 000:"),
    (RESOURCES, 2, "08_infinity", f"{FULL} --offload-dir /proc", "bytes in .*/proc, share 0"),
    *((RESOURCES, ranks, chapter, f"{FULL} {option} /dev/full", "/dev/full, No space left")
      for ranks, chapter in ((0, ALONE), (2, DDP)) for option in ("--log", "--trace"))]
# Chapter and arguments of rank 0, those of rank 1, and patterns that the sentence matches.
UNEQUAL = [
    ("04_zero1 --lr 0.01", "04_zero1 --lr 0.02", "rank 1, --lr, 0.01, 0.02"),
    ("05_zero2 --dtype fp16 --loss-scale 8", "05_zero2 --dtype fp16", "--loss-scale, dynamic"),
    ("05_zero2 --log new.log", "05_zero2", "rank 1, --log, new.log"),
    ("04_zero1", "04_zero1 --foo", "04_zero1, --foo"),
    ("06_zero3 --help", "06_zero3", "rank 1, --help"),
    ("04_zero1", "05_zero2", "rank 1, 04_zero1, 05_zero2"),
    ("02_distributed_adam", "03_mixed_precision --dtype fp32", "rank 1, 03_mixed_precision")]


@pytest.fixture(name="folder")
def filled(folder):
    """A folder with files, a folder and a link, as a user may have them."""
    text = "to be or not to be\n" * 9
    for name, content in {"kept.log": "kept\n" * 9999, "empty.txt": "",
                          "eight.txt": "12345678", "text.txt": text}.items():
        (folder / name).write_text(content)
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("kept.log")
    return folder


@pytest.fixture
def good(programs, folder):
    """Returns a function that runs a program, which must end with 0 and an empty stderr, and
    returns what it printed."""
    def run(ranks, chapter, *args, **variables):
        outcome = programs.run(ranks, chapter, *args, cwd=folder, **variables)
        assert (outcome.code, outcome.own_errors()) == (0, [])
        return outcome.out
    return run


@pytest.fixture
def refused(programs, folder):
    """Returns a function that runs a command, which must end with one sentence. `words` are regular
    expressions, separated by a comma and a space."""
    def run(command, code, words, **variables):
        before, start = contents(folder), time.monotonic()
        outcome = programs.start(command, folder, **variables)
        took = time.monotonic() - start
        assert (outcome.code, outcome.out) == (code, ""), outcome
        lines = outcome.own_errors()
        assert len(lines) == 1 and len(lines[0]) <= 200
        for word in words.split(", "):
            assert re.search(word, lines[0])
        assert contents(folder) == before, "a file was made or changed"
        assert took < A_FEW_SECONDS
    return run


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("code, ranks, chapter, text, words", REFUSED)
def test_a_bad_one_is_refused(programs, refused, code, ranks, chapter, text, words):
    refused(programs.command(ranks, chapter, *text.split()), code, words)


@pytest.mark.parametrize("first, second, words", UNEQUAL)
def test_ranks_must_be_asked_the_same(programs, refused, first, second, words):
    halves = (shlex.join(programs.command(0, *text.split())) for text in (first, second))
    refused(programs.unlike(*halves), USAGE, words)


@pytest.mark.parametrize("without_mpi", (False, True))
def test_another_launcher(programs, refused, folder, without_mpi):
    """Another MPI's launcher starts four ranks, each alone for this MPI; one prints the error."""
    size, rank = SLURM_TASK
    others = {}
    if not without_mpi:  # another MPI's launcher, within a job of Slurm
        ours = "openmpi" in Path(programs.mpiexec).name
        others = SLURM_TASK | ({"PMI_SIZE": "1"} if not ours else {})
        size, rank = (f"{'PMI' if ours else 'OMPI_COMM_WORLD'}_{what}" for what in ("SIZE", "RANK"))
    command = programs.command(0, "05_zero2", "--log", "new.log")
    refused(command, USAGE, "4 ranks, MPI sees 1, mpirun", **{**others, size: "4", rank: "0"})
    before = contents(folder)
    for place in ("1", "3"):
        outcome = programs.start(command, folder, **{**others, size: "4", rank: place})
        # The others end with 0: at another code the launcher would stop the rank that prints.
        assert (outcome.code, outcome.out, outcome.own_errors()) == (0, "", [])
    assert contents(folder) == before, "a file was made or changed"


def test_other_texts_of_one_name(programs, refused, folder):
    """Each rank has a folder with another text of the same name."""
    for rank, text in enumerate(("or not to be", "or not to me")):
        (folder / str(rank)).mkdir()
        (folder / str(rank) / "text.txt").write_text(text)
    own = shlex.join(programs.command(0, "05_zero2", "--data", "text.txt"))
    refused(programs.unlike(f"cd 0 && {own}", f"cd 1 && {own}"), DATA,
            "rank 1 reads a text of 12 bytes, digest [0-9a-f]{16}, rank 0, same file")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_log(good, folder, chapter):
    """The log has the value of each option that --help lists, and replaces an older log. A quiet
    run with --check-every prints nothing. Counts are compared in tests/ranks/accounts_test.cpp."""
    ranks = 0 if chapter == ALONE else 3
    told = good(ranks, chapter, "--help")
    assert max(map(len, told.splitlines())) <= 80
    names = re.findall(r"(?m)^  .*?--([a-z][a-z0-9-]*)", told)
    assert good(ranks, chapter, *SMALL, "--steps", 5, "--quiet", "--data", "text.txt", "--log",
                "kept.log", *(["--check-every", 2] if ranks else [])) == ""
    run, steps, summary = read_log(folder / "kept.log")
    assert sorted(run["options"]) == sorted({*names} - {"help", "plan", "ranks"})
    assert len(names) == len({*names})
    options = {"width": 8, "layers": 2, "batch": 2, "steps": 5, "data": "text.txt", "lr": 2e-3}
    assert run["options"] == run["options"] | options
    facts = {"chapter": chapter, "ranks": max(ranks, 1),
             "dtype": "bf16" if chapter in MIXED else "fp32",
             "family": "every micro-batch" if chapter >= "05" else "once a step"}
    assert run == run | facts
    assert bool(run["mpi"]) == (chapter != ALONE)
    for number, step in enumerate(steps, 1):
        assert list(step) == ["step", "loss", "grad_norm", "skipped", "ms"]
        assert (step["step"], step["skipped"]) == (number, False) and step["ms"] > 0
        bits(step["loss"]), bits(step["grad_norm"])  # these throw if they are no fp32 numbers
    assert len(steps) == len({bits(step["loss"]) for step in steps}) == 5
    assert (summary["skipped_steps"], len({*summary["layer_digests"]})) == (0, 2)


def test_a_skipped_step(good, folder):
    printed = good(2, "04_zero1", *SMALL, "--steps", 2, "--dtype", "fp16", "--loss-scale",
                   "1.23456e38", "--log", "new.log")
    assert printed.count(" 1.23456e+38  skipped: a gradient is not finite") == 2
    assert "2 steps skipped\nno step was taken" in printed
    for step in read_log(folder / "new.log")[1]:
        assert (step["skipped"], step["grad_norm"], type(step["loss"])) == (True, None, float)


def test_no_second_step_is_taken(programs, folder):
    """With this --lr all steps after the first overflow in fp16, even when the loss scale is 1."""
    outcome = programs.run(2, "03_mixed_precision", *SMALL, "--steps", 20, "--dtype", "fp16",
                           "--lr", 1e30, "--log", "new.log", cwd=folder)
    _, steps, summary = read_log(folder / "new.log")
    scales = [step["loss_scale"] for step in steps]
    assert (scales[0], scales[-1]) == (2**16, 1)
    assert outcome.code == NUMERICS and summary["skipped_steps"] == 19
    assert outcome.out.count("the loss scale cannot be less than 1: try a lower --lr") == 1
    rows = re.findall(r"(?m)^ +\d+  not finite  not finite .* (\d+)  skipped:", outcome.out)
    assert [float(scale) for scale in rows] == scales[1:]


@pytest.mark.parametrize("ranks, chapter", ((0, ALONE), (2, "06_zero3")))
def test_every_tenth_step_is_told(good, ranks, chapter):
    printed = good(ranks, chapter, *SMALL, "--steps", 101)
    steps = [int(n) for n in re.findall(r"(?m)^ *(\d+)(?: +\d+\.\d+){3}$", printed)]
    assert steps == [1, *range(10, 101, 10), 101]
    assert re.fullmatch(r"([ -~]{0,80}\n)*", printed), "plain and narrow"
    shards = "replicas: none, each rank holds shards\n" if ranks else ""
    assert re.search(rf"\n\n{shards}parameters [0-9a-f]{{16}} ", printed)


def test_large_figures_stay_apart(programs):
    """In a plan for 10^11 parameters blanks part the numbers, and groups of three digits."""
    said = programs.run(0, ALONE, "--plan", "--task", "mlp", "--width", 50000, "--layers", 40).out
    assert "100 002 000 000" in said and not re.search(r"\d{3} \d{4}", said)


def test_progress(programs, folder):
    """On a terminal one line is replaced, which shows the time that is left."""
    ours, terminal = pty.openpty()
    command = programs.command(0, ALONE, *SMALL, "--steps", 10**7, "--log", "new.log")
    seen, lines = "", []
    with subprocess.Popen(["timeout", "20", *command], cwd=folder, stdout=terminal) as run:
        os.close(terminal)  # reading fails when the program has closed it
        while len(lines) < 4:
            seen += os.read(ours, 4096).decode()
            lines = re.findall(r"\r\x1b\[K *(\d+)(?: +\d+\.\d+){3}  (\d+) s left", seen)
        run.terminate()
    steps = (folder / "new.log").read_text().split("\n")[1:-1]
    times = [json.loads(step)["ms"] for step in steps]
    for done, left in lines[:-1]:
        # The program keeps 4096 times in a ring, and leaves out those in its first three places.
        kept = times[:int(done)][-4096:]
        first = int(done) % 4096 if int(done) > 4096 else 0
        kept = kept[-first:] + kept[:-first] if first else kept
        warm = sorted(kept[3:])
        assert left == f"{warm[len(warm) // 2] * (10**7 - int(done)) / 1000:.0f}", done


def test_a_disk_is_told_and_modelled(programs):
    """A plan and a run's table have rows for the disk. A disk of 10^6 bytes/s takes its time."""
    words = 0, "08_infinity", *"--task mlp --width 16 --layers 3 --steps 2".split()
    rows = r"on its disk\n  optimizer .*state from disk .*state to disk "
    assert re.search(rows, programs.run(*words, "--plan").out, re.S)
    assert "disk" not in programs.run(*words, "--plan", "--state", "host").out
    slow = *words, "--disk", 1e-3
    assert re.search(f"a disk of 0.001 GB/s.*{rows}", programs.run(*slow).out, re.S)
    read = programs.logged(*slow)[2]["disk"]["read"]
    assert read["exposed_ms"] + read["hidden_ms"] >= read["counted"] / 2 / 1e3
