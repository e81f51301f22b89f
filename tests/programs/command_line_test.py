# SPDX-License-Identifier: MIT
"""What the seven programs answer to a command line, good or bad, alone and on ranks.

A bad one ends with one sentence on stderr, the right exit code, nothing on stdout and no file
made or changed. A good one prints and logs what is documented.
"""
import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest
from expected import (check_run_line, check_summary_line, device_bytes, expected_plan,
                      names_of_options)
from programs import (ALONE, CHAPTERS, DATA, MIXED, NUMERICS, OFFLOAD, ON_RANKS, RESOURCES, USAGE,
                      WINDOW, bits, read_log)

SMALL = ["--width", 8, "--layers", 2, "--batch", 2]  # of task text
A_FEW_SECONDS = 10
SLURM_TASK = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
NOT_UTF8 = os.fsdecode(b"caf\xe9.txt")

# Wrong command lines by the chapters asked; the sentence contains every word of them.
BAD_WORDS = [
    (CHAPTERS, "--foo, --step 3, extra, --lr abc, --lr 1e999, --lr 1e300, --lr nan, --lr inf, "
               "--lr -1, --beta1 1, --beta2 -0.1, --eps 0, --weight-decay -1, --clip -1, "
               "--seed -1, --seed 99999999999999999999, --steps -1, --steps 0, --steps 1.5, "
               "--steps 0x10, --layers 0, --layers 99999999, --batch 0, --accumulate 0, "
               "--width 0, --width 12, --task foo, --task 1, --device gpu, --device-memory 64, "
               "--device-memory 64mb, --device-memory -1MB"),
    (CHAPTERS, "--narrate --quiet, --narrate --device cuda"),
    (CHAPTERS[:1], "--comm nccl"),
    (CHAPTERS[:2], "--dtype bf16, --loss-scale dynamic"),
    (CHAPTERS[:5], "--prefetch 1"),
    (WINDOW, "--prefetch 3, --prefetch -1"),
    (CHAPTERS[:6], "--bus 1, --pageable"),
    ([OFFLOAD], "--bus -1, --bus fast"),
    (ON_RANKS, "--comm ib, --reduce fast, --timeout 0, --timeout 86401, --check-every -1"),
    (MIXED, "--dtype fp64, --dtype 2, --narrate --dtype fp16"),
]
# Other wrong ones, the words that the sentence contains, the chapters asked.
BAD_OPTIONS = [(text, text.replace(" ", ", "), chapters)
               for chapters, texts in BAD_WORDS for text in texts.split(", ")] + [
    ("--comm nccl --device cpu", "--comm nccl, --device cuda, --comm mpi", ON_RANKS),
    ("--reduce native --device cpu", "--reduce native, --comm nccl", ON_RANKS),
    ("--pageable --device cpu", "--pageable, page-locked, --device cuda", [OFFLOAD]),
    ("--task toy --width 8", "toy, --width", CHAPTERS),
    ("--loss-scale 8", "--loss-scale, fp16", MIXED),
    ("--data text.txt --log text.txt", "--log, text.txt", CHAPTERS),
    ("--data text.txt --trace text.txt", "--trace, text.txt", CHAPTERS),
    *((f"--narrate={n}", f"--narrate {n}, 12, 13 and 2", CHAPTERS) for n in (5, -1)),
    *((f"{option} {file}", f"{option}, {file}, {why}", CHAPTERS)
      for option in ("--log", "--trace")
      for file, why in (("nowhere/new.log", "No such file"), ("folder", "directory"))),
    ("--trace new.log --log new.log", "--trace, --log, new.log", CHAPTERS),
]
BAD_DATA = [(f"--data {name}", f"{name}, {why}", CHAPTERS) for name, why in (
    ("missing.txt", "No such file"), ("empty.txt", "0 bytes, 9"), ("five.txt", "5 bytes, 9"),
    ("eight.txt", "8 bytes, 9"), ("folder", "directory"))]
# Of each kind, these are told on ranks too: once, whoever finds them.
ON_RANKS_TOO = ["--lr abc", "--comm ib", "--narrate --quiet", "--comm nccl --device cpu",
                "--loss-scale 8", "--log folder", "--trace nowhere/new.log", "--data missing.txt",
                "--data eight.txt"]
TOO_LARGE = "--task mlp --width 65536 --layers 512 --batch 1 --device cpu --log new.log"
TOO_MUCH = (r"^{}each rank needs [\d ]{{15,}} bytes[,] {} on this machine share [\d ]+ that are "
            "available: no chapter fits[,] use fewer or smaller layers or batches[,] or more mach")
FULL = "--width 8 --layers 2 --batch 2 --steps 3 --quiet"


def refusals():
    """Exit code, ranks (0: without mpirun), chapter, arguments and the words of the sentence."""
    for code, rows in ((USAGE, BAD_OPTIONS), (DATA, BAD_DATA)):
        for number, (text, words, chapters) in enumerate(rows):
            for ranks, asked in ((0, chapters), (2, [name for name in chapters if name != ALONE])):
                if ranks and text not in ON_RANKS_TOO:
                    continue
                writes = "--log" in text or "--trace" in text  # else a log that must not be
                log = "" if writes else "--log kept.log " if ranks else "--log new.log "
                yield code, ranks, asked[number % len(asked)], log + text, words
        yield from ((code, 0, CHAPTERS[number], f"--plan {text}", words)
                    for number, (text, words, _) in enumerate(rows) if code == DATA)
    yield USAGE, 2, ALONE, "", "2, mpirun"
    yield USAGE, 2, "04_zero1", "--plan", "--plan, mpirun, --ranks 2"
    for ranks, chapter in (*((0, chapter) for chapter in CHAPTERS), (2, "06_zero3")):
        # The first is told before anything is reserved, with what is needed and what there is.
        who = "01_adam: " if chapter == ALONE else ""
        yield RESOURCES, ranks, chapter, TOO_LARGE, TOO_MUCH.format(who, max(ranks, 1))
    for option, *ranks in (("--log", 0, 2), ("--trace", 0, 2)):
        for number, chapter in zip(ranks, (ALONE, "02_distributed_adam")):
            yield (RESOURCES, number, chapter, f"{FULL} {option} /dev/full",
                   "/dev/full, No space left")


# Chapter and arguments of rank 0, of rank 1, and the words of the sentence.
UNEQUAL = [
    ("04_zero1 --lr 0.01", "04_zero1 --lr 0.02", "rank 1, --lr, 0.01, 0.02"),
    ("06_zero3 --prefetch 0", "06_zero3", "rank 1, --prefetch, 0, 1"),
    ("05_zero2 --dtype fp16 --loss-scale 8", "05_zero2 --dtype fp16", "--loss-scale, dynamic"),
    ("05_zero2 --log new.log", "05_zero2", "rank 1, --log, new.log"),
    ("05_zero2 --device-memory 1GB", "05_zero2", "rank 1, --device-memory, 1000000000, 0"),
    ("07_offload --bus 2", "07_offload", "rank 1, --bus, 2, 0"),
    ("02_distributed_adam --timeout 5", "02_distributed_adam", "rank 1, --timeout, 5, 60"),
    ("04_zero1", "04_zero1 --foo", "04_zero1, --foo"),
    ("04_zero1 --lr abc", "04_zero1", "--lr, abc"),
    ("04_zero1 --foo", "04_zero1 --help", "--foo"),
    ("06_zero3", "06_zero3 --help", "rank 1, --help"),
    ("06_zero3 --help", "06_zero3", "rank 1, --help"),
    ("04_zero1", "05_zero2", "rank 1, 04_zero1, 05_zero2"),
    ("02_distributed_adam", "03_mixed_precision --dtype fp32", "rank 1, 03_mixed_precision"),
]


@pytest.fixture(name="folder")
def filled(folder):
    """What a user may have lying there. Paths are bytes: one is no text in any encoding."""
    text = "to be or not to be\n" * 9
    for name, content in {"kept.log": "kept\n" * 9999, "empty.txt": "", "five.txt": "12345",
                          "eight.txt": "12345678", "text.txt": text, NOT_UTF8: text}.items():
        (folder / name).write_text(content)
    (folder / "folder").mkdir()
    return folder


@pytest.fixture
def good(programs, folder):
    """What a run printed that ends well, with nothing on stderr."""
    def run(ranks, chapter, *args):
        outcome = programs.run(ranks, chapter, *args, cwd=folder)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out
    return run


@pytest.fixture
def refused(programs, folder):
    """Runs a command that must end with one sentence; words: regular expressions, separated by a
    comma and a space."""
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
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


# ---- Bad ones ----------------------------------------------------------------------------------

@pytest.mark.parametrize("code, ranks, chapter, text, words", refusals())
def test_a_bad_one_is_refused(programs, refused, code, ranks, chapter, text, words):
    refused(programs.command(ranks, chapter, *text.split()), code, words)


@pytest.mark.parametrize("first, second, words", UNEQUAL)
def test_ranks_must_be_asked_the_same(programs, refused, first, second, words):
    halves = [["-n", "1", *programs.command(0, *text.split())] for text in (first, second)]
    refused([programs.mpiexec, *halves[0], ":", *halves[1]], USAGE, words)


@pytest.mark.parametrize("without_mpi", (False, True))
def test_another_launcher(programs, refused, folder, without_mpi):
    """Each of its four ranks believes to be alone; only the first is to say so."""
    size, rank = SLURM_TASK
    others = {}
    if not without_mpi:  # but another MPI's, within a batch system
        ours = "openmpi" in Path(programs.mpiexec).name
        others = SLURM_TASK | ({"PMI_SIZE": "1"} if not ours else {})
        size, rank = (f"{'PMI' if ours else 'OMPI_COMM_WORLD'}_{what}" for what in ("SIZE", "RANK"))
    command = programs.command(0, "05_zero2", "--log", "new.log")
    refused(command, USAGE, "4 ranks, MPI sees 1, mpirun", **{**others, size: "4", rank: "0"})
    before = contents(folder)
    for place in ("1", "3"):
        outcome = programs.start(command, folder, **{**others, size: "4", rank: place})
        # A launcher stops all ranks, and the one that speaks, at the first that is not 0.
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert contents(folder) == before, "a file was made or changed"


def test_other_texts_of_one_name(programs, refused, folder):
    """Ranks in folders of their own, each with a text of that name."""
    for rank, text in enumerate(("or not to be", "or not to be", "or not to me")):
        (folder / str(rank)).mkdir()
        (folder / str(rank) / "text.txt").write_text(text)
    own = " ".join(programs.command(0, "05_zero2", "--data", "text.txt"))
    place = "OMPI_COMM_WORLD_RANK" if "openmpi" in programs.mpiexec else "PMI_RANK"
    refused([programs.mpiexec, "-n", "3", "sh", "-c", f"cd ${place} && exec {own}"], DATA,
            "rank 2 reads a text of 12 bytes, digest [0-9a-f]{16}, rank 0, same file")


def test_memory_of_a_device(programs, refused, good, folder):
    """What 06 does not fit into and 07 does, to the byte: refused, planned and run."""
    model = "--task mlp --width 7 --layers 3 --batch 5".split()
    needs = [sum(peak for _, peak in device_bytes(chapter, 2, "bf16").values())
             for chapter in WINDOW]
    most, least = (f"{bytes:,}".replace(",", " ") for bytes in needs)
    said = f"each rank needs {most} bytes of device memory, --device-memory allows {least}: "
    said += f"07_offload would need {least}"
    allowed = [*model, "--device-memory", f"{needs[1] / 1e6:.6f}MB"]
    refused(programs.command(2, "06_zero3", *allowed, "--log", "new.log"), RESOURCES,
            f"^{re.escape(said)}$")
    for chapter, words in (("06_zero3", said), (OFFLOAD, "fits into --device-memory")):
        assert good(0, chapter, "--plan", "--ranks", 2, *allowed).endswith(f"\n\n{words}\n")
    good(2, OFFLOAD, *allowed, "--steps", 2, "--log", "new.log")
    run, _, summary = read_log(folder / "new.log")
    assert run["options"]["device-memory"] == needs[1]
    assert summary["memory"]["total"]["reserved"] == needs[1]


# ---- Good ones ---------------------------------------------------------------------------------

def test_mpirun_as_a_task_of_a_batch_system(programs):
    outcome = programs.run(2, "05_zero2", *SMALL, "--steps", 1, **SLURM_TASK)
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("ranks, chapter", ((0, ALONE), (2, "06_zero3")))
def test_a_path_that_is_not_utf8(good, folder, ranks, chapter):
    """The log stays JSON."""
    good(ranks, chapter, *SMALL, "--steps", 1, "--data", NOT_UTF8, "--log", "new.log")
    assert read_log(folder / "new.log")[0]["options"]["data"] == "caf\ufffd.txt"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help(good, chapter):
    text = good(0, chapter, "--help")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert set(re.findall(r"--[a-z][a-z0-9-]*", text)) == {*names_of_options(chapter), "--help"}
    if chapter == OFFLOAD:
        assert good(2, chapter, "--help") == text, "once"


@pytest.mark.parametrize("ranks, dtype, micro_batches",
                         ((1, "fp32", 3), (3, "bf16", 3), (3, "fp32", 1), (64, "bf16", 1)))
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_plan(good, chapter, ranks, dtype, micro_batches):
    ranks, dtype = 1 if chapter == ALONE else ranks, dtype if chapter in MIXED else "fp32"
    args = f"--plan --task mlp --width 7 --layers 3 --batch 5 --accumulate {micro_batches}"
    args += f" --ranks {ranks}" if chapter in ON_RANKS else ""
    args += f" --dtype {dtype}" if chapter in MIXED else ""
    rows = [line.replace(",", " ").split() for line in good(0, chapter, *args.split()).splitlines()]
    for row in expected_plan(chapter, ranks, dtype, micro_batches):
        assert row.replace(",", " ").split() in rows


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_log(good, folder, chapter):
    """Quiet, and over a log that is there already; checked on the way."""
    ranks = 0 if chapter == ALONE else 3
    args = ["--check-every", 2] if ranks else []
    assert good(ranks, chapter, *SMALL, "--steps", 5, "--quiet", "--data", "text.txt", "--log",
                "kept.log", *args) == ""
    run, steps, summary = read_log(folder / "kept.log")
    check_run_line(run, chapter, max(ranks, 1))
    for number, step in enumerate(steps, 1):
        assert list(step) == ["step", "loss", "grad_norm", "skipped", "ms"]
        assert (step["step"], step["skipped"]) == (number, False) and step["ms"] > 0
        bits(step["loss"]), bits(step["grad_norm"])  # throw when they are no fp32 numbers
    assert len(steps) == len({bits(step["loss"]) for step in steps}) == 5
    check_summary_line(summary, chapter)


def test_a_skipped_step(good, folder):
    printed = good(2, "04_zero1", *SMALL, "--steps", 2, "--dtype", "fp16", "--loss-scale", "1e38",
                   "--log", "new.log")
    assert printed.count("skipped: a gradient is not finite") == 2
    assert "2 steps skipped\nno step was taken" in printed
    _, steps, summary = read_log(folder / "new.log")
    said = [(step["skipped"], step["grad_norm"], type(step["loss"])) for step in steps]
    assert said == [(True, None, float)] * 2
    assert summary["skipped_steps"] == 2


def test_no_step_is_taken(programs, folder):
    """fp16 whose every step overflows: the scale falls to 1, and that is said with advice."""
    outcome = programs.run(2, "03_mixed_precision", *SMALL, "--steps", 20, "--dtype", "fp16",
                           "--lr", 1e30, "--log", "new.log", cwd=folder)
    _, steps, summary = read_log(folder / "new.log")
    scales = [step["loss_scale"] for step in steps]
    assert scales == [2.0**16] + [max(2.0**(18 - n), 1) for n in range(2, 21)]
    assert outcome.out.count("8 steps in a row were skipped: try a lower --lr") == 1
    assert outcome.out.count("the loss scale cannot be less than 1: try a lower --lr") == 1
    rows = re.findall(r"(?m)^ +\d+  not finite  not finite .* (\d+)  skipped:", outcome.out)
    assert [float(scale) for scale in rows] == scales[1:]
    said = outcome.own_errors()
    assert outcome.code == NUMERICS and summary["skipped_steps"] == 19
    assert len(said) == 1 and "the last step, 20," in said[0]


@pytest.mark.parametrize("ranks, chapter", ((0, ALONE), (2, "06_zero3")))
def test_every_tenth_step_is_told(good, ranks, chapter):
    printed = good(ranks, chapter, *SMALL, "--steps", 101)
    steps = [int(n) for n in re.findall(r"(?m)^ *(\d+)(?: +\d+\.\d+){3}$", printed)]
    assert steps == [1, *range(10, 101, 10), 101]
    assert re.fullmatch(r"([ -~]{0,80}\n)*", printed), "plain and narrow"
    assert re.search(r"(?m)^parameters [0-9a-f]{16} ", printed)


def test_progress(programs, folder):
    """A terminal also sees a line that is replaced, with the time that is left."""
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
        warm = sorted(times[3:int(done)])
        assert left == f"{warm[len(warm) // 2] * (10**7 - int(done)) / 1000:.0f}", done
