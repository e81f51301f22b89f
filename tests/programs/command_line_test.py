#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the seven programs answer to a command line, good or bad, alone and on ranks.

A bad one ends with one sentence on stderr, the right exit code, nothing on stdout and no file
made or changed. A good one prints and logs what is documented.
"""
import itertools
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
from expected import (MIXED, OFFLOAD, WINDOW, check_run_line,  # noqa: E402
                      check_summary_line, device_bytes, expect, expected_plan, names_of_options)
from programs import ALONE, CHAPTERS, ON_RANKS, Programs, bits, options_of, read_log  # noqa: E402

USAGE, DATA, NUMERICS, RESOURCES = 2, 3, 5, 6
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
# Other wrong ones, the words that the sentence contains, the chapters asked (default: all).
BAD_OPTIONS = [(text, text.replace(" ", ", "), chapters)
               for chapters, texts in BAD_WORDS for text in texts.split(", ")] + [
    ("--comm nccl --device cpu", "--comm nccl, --device cuda, --comm mpi", ON_RANKS),
    ("--reduce native --device cpu", "--reduce native, --comm nccl", ON_RANKS),
    ("--pageable --device cpu", "--pageable, page-locked, --device cuda", [OFFLOAD]),
    ("--task toy --width 8", "toy, --width"),
    ("--loss-scale 8", "--loss-scale, fp16", MIXED),
    ("--data text.txt --log text.txt", "--log, text.txt"),
    ("--data text.txt --trace text.txt", "--trace, text.txt"),
    *((f"--narrate={n}", f"--narrate {n}, 12, 13 and 2") for n in (5, -1)),
    *((f"{option} {file}", f"{option}, {file}, {why}") for option in ("--log", "--trace")
      for file, why in (("nowhere/new.log", "No such file"), ("folder", "directory"))),
    ("--trace new.log --log new.log", "--trace, --log, new.log"),
]
BAD_DATA = [(f"--data {name}", f"{name}, {why}") for name, why in (
    ("missing.txt", "No such file"), ("empty.txt", "0 bytes, 9"), ("five.txt", "5 bytes, 9"),
    ("eight.txt", "8 bytes, 9"), ("folder", "directory"))]
TOO_LARGE = "--task mlp --width 65536 --layers 512 --batch 1 --device cpu --log new.log"
TOO_MUCH = (r"^{}each rank needs [\d ]{{15,}} bytes[,] {} on this machine share [\d ]+ that are "
            "available: no chapter fits[,] use fewer or smaller layers or batches[,] or more mach")
FULL = "--width 8 --layers 2 --batch 2 --steps 3 --quiet"
# Exit code, ranks (0: without mpirun), chapter, arguments and the words of the sentence.
OTHERWISE_REFUSED = [
    (USAGE, 4, ALONE, "", "4, mpirun"),
    (USAGE, 4, "04_zero1", "--plan", "--plan, mpirun, --ranks 4"),
    *((DATA, 0, CHAPTERS[number], f"--plan {text}", words)
      for number, (text, words) in enumerate(BAD_DATA)),
    # The first is told before anything is reserved, with what is needed and what there is.
    *(row for ranks, chapter in [*zip([0] * 7, CHAPTERS), (4, CHAPTERS[1]), (4, CHAPTERS[5])]
      for row in ((RESOURCES, ranks, chapter, TOO_LARGE,
                   TOO_MUCH.format("01_adam: " if chapter == ALONE else "", max(ranks, 1))),
                  *((RESOURCES, ranks, chapter, f"{FULL} {option} /dev/full",
                     "/dev/full, No space left") for option in ("--log", "--trace")))),
]

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


def fill(folder):
    """What a user may have lying there. Paths are bytes: one is no text in any encoding."""
    text = "to be or not to be\n" * 9
    for name, content in {"kept.log": "kept\n" * 9999, "empty.txt": "", "five.txt": "12345",
                          "eight.txt": "12345678", "text.txt": text,
                          NOT_UTF8: text}.items():
        (folder / name).write_text(content)
    (folder / "folder").mkdir()


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


class Test:
    def __init__(self, programs):
        self.programs = programs
        self.pool = ThreadPoolExecutor(2)  # a launcher spends half of its time waiting
        self.checked, self.failed = 0, []

    def check(self, name, body, *args):
        """Runs body(folder, *args) in a fresh folder, soon; whatever it throws is a failure."""
        self.checked += 1
        self.pool.submit(self.check_now, name, body, *args)

    def check_now(self, name, body, *args):
        try:
            with tempfile.TemporaryDirectory(prefix="command_line_") as folder:
                fill(Path(folder))
                body(Path(folder), *args)
        except Exception:  # pylint: disable=broad-except
            self.failed.append(name)
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)

    def good(self, folder, ranks, chapter, *args):
        """What a run printed that ends well, with nothing on stderr."""
        outcome = self.programs.run(ranks, chapter, *args, cwd=folder)
        expect(outcome.code == 0 and outcome.err == "", f"exit code 0 expected: {outcome}")
        return outcome.out

    def refused(self, folder, command, code, words, **variables):
        """words: regular expressions, separated by a comma and a space."""
        before = contents(folder)
        start = time.monotonic()
        outcome = self.programs.start(command, folder, **variables)
        took = time.monotonic() - start
        said = f"{' '.join(command)}\n{outcome}"
        expect((outcome.code, outcome.out) == (code, ""), f"{code}, no output expected: {said}")
        lines = outcome.own_errors()
        expect(len(lines) == 1 and len(lines[0]) <= 200, f"one sentence expected: {said}")
        for word in words.split(", "):
            expect(re.search(word, lines[0]), f"{word!r} expected: {said}")
        expect(contents(folder) == before, f"a file was made or changed: {said}")
        expect(took < A_FEW_SECONDS, f"it took {took:.1f} s: {said}")

    def check_refused(self, code, ranks, chapter, text, words):
        command = self.programs.command(ranks, chapter, *(text.split(" ") if text else []))
        self.check(f"{chapter} {text} on {ranks} ranks", self.refused, command, code, words)

    def check_bad(self, code, number, text, words, chapters=CHAPTERS):
        """Alone and on four ranks, each time with a log that must not be written."""
        for ranks, asked in ((0, chapters), (4, [name for name in chapters if name in ON_RANKS])):
            writes = "--log" in text or "--trace" in text
            log = "" if writes else "--log kept.log " if ranks else "--log new.log "
            if asked:
                self.check_refused(code, ranks, asked[number % len(asked)], log + text, words)

    def check_unequal(self, first, second, words):
        halves = [["-n", "1", *self.programs.command(0, *text.split())] for text in (first, second)]
        command = [self.programs.mpiexec, *halves[0], ":", *halves[1]]
        self.check(f"{first} : {second}", self.refused, command, USAGE, words)

    def another_launcher(self, folder, others, size, rank):
        """Each of its four ranks believes to be alone; only the first is to say so."""
        command = self.programs.command(0, "05_zero2", "--log", "new.log")
        places = [{**others, size: "4", rank: str(place)} for place in range(4)]
        self.refused(folder, command, USAGE, "4 ranks, MPI sees 1, mpirun", **places[0])
        before = contents(folder)
        for place in places[1:]:
            outcome = self.programs.start(command, folder, **place)
            # A launcher stops all ranks, and the one that speaks, at the first that is not 0.
            expect((outcome.code, outcome.out, outcome.err) == (0, "", ""), f"silence: {outcome}")
        expect(contents(folder) == before, "a file was made or changed")

    def within_a_batch_system(self, folder):
        command = self.programs.command(2, "05_zero2", *SMALL, "--steps", 1)
        outcome = self.programs.start(command, folder, **SLURM_TASK)
        expect((outcome.code, outcome.err) == (0, ""), f"a run on two ranks: {outcome}")

    def not_utf8(self, folder, ranks, chapter):
        """The log stays JSON."""
        self.good(folder, ranks, chapter, *SMALL, "--data", NOT_UTF8, "--log", "new.log")
        run = read_log(folder / "new.log")[0]
        expect(run["options"]["data"] == "caf\ufffd.txt", f"a replaced byte expected: {run}")

    def help(self, folder, chapter, ranks):
        told = {self.good(folder, number, chapter, "--help") for number in (0, ranks)}
        text = told.pop()
        expect(not told, f"the same text, once, expected on {ranks} ranks: {told}")
        expect(all(len(line) <= 80 for line in text.splitlines()), f"80 columns at most: {text}")
        listed = set(re.findall(r"--[a-z][a-z0-9-]*", text))
        expect(listed == set(names_of_options(chapter)) | {"--help"}, f"other options: {listed}")

    def plan(self, folder, chapter, ranks):
        dtypes = ("fp32", "bf16") if chapter in MIXED else ("fp32",)
        for dtype, micro_batches in itertools.product(dtypes, (1, 3)):
            args = f"--plan --task mlp --width 7 --layers 3 --batch 5 --accumulate {micro_batches}"
            args += f" --ranks {ranks}" if chapter in ON_RANKS else ""
            args += f" --dtype {dtype}" if chapter in MIXED else ""
            printed = self.good(folder, 0, chapter, *args.split())
            rows = [line.replace(",", " ").split() for line in printed.splitlines()]
            for row in expected_plan(chapter, ranks, dtype, micro_batches):
                expect(row.replace(",", " ").split() in rows, f"{args}: {row} expected: {printed}")

    def log(self, folder, chapter, ranks):
        """Quiet, and over a log that is there already."""
        printed = self.good(folder, ranks, chapter, *SMALL, "--steps", 5, "--quiet", "--data",
                            "text.txt", "--log", "kept.log")
        expect(printed == "", f"silence expected: {printed}")
        run, steps, summary = read_log(folder / "kept.log")
        check_run_line(run, chapter, max(ranks, 1))
        for number, step in enumerate(steps, 1):
            expect(list(step) == ["step", "loss", "grad_norm", "skipped", "ms"], f"keys: {step}")
            expect((step["step"], step["skipped"]) == (number, False) and step["ms"] > 0, f"{step}")
            bits(step["loss"]), bits(step["grad_norm"])  # throw when they are no fp32 numbers
        expect(len(steps) == len({bits(step["loss"]) for step in steps}) == 5, f"alike: {steps}")
        check_summary_line(summary, chapter)

    def device_memory(self, folder):
        """What 06 does not fit into and 07 does, to the byte: refused, planned and run."""
        model = "--task mlp --width 7 --layers 3 --batch 5".split()
        needs = [sum(peak for _, peak in device_bytes(chapter, 4, "bf16").values())
                 for chapter in WINDOW]
        most, least = (f"{bytes:,}".replace(",", " ") for bytes in needs)
        said = f"each rank needs {most} bytes of device memory, --device-memory allows {least}: "
        said += f"07_offload would need {least}"
        allowed = [*model, "--device-memory", f"{needs[1] / 1e6:.6f}MB"]
        self.refused(folder, self.programs.command(4, "06_zero3", *allowed, "--log", "new.log"),
                     RESOURCES, f"^{re.escape(said)}$")
        for chapter, words in (("06_zero3", said), (OFFLOAD, "fits into --device-memory")):
            printed = self.good(folder, 0, chapter, "--plan", "--ranks", 4, *allowed)
            expect(printed.endswith(f"\n\n{words}\n"), f"{words} expected: {printed}")
        self.good(folder, 4, OFFLOAD, *allowed, "--steps", 2, "--log", "new.log")
        run, _, summary = read_log(folder / "new.log")
        expect(run["options"]["device-memory"] == summary["memory"]["total"]["reserved"] ==
               needs[1], f"{needs[1]} bytes expected: {run} {summary}")

    def skipped(self, folder):
        printed = self.good(folder, 2, "04_zero1", *SMALL, "--steps", 2, "--dtype", "fp16",
                            "--loss-scale", "1e38", "--log", "new.log")
        expect(printed.count("skipped: a gradient is not finite") == 2 and
               "2 steps skipped\nno step was taken" in printed, f"said and counted: {printed}")
        _, steps, summary = read_log(folder / "new.log")
        said = [(step["skipped"], step["grad_norm"], type(step["loss"])) for step in steps]
        expect(said == [(True, None, float)] * 2, f"skipped: {steps}")
        expect(summary["skipped_steps"] == 2, f"2 skipped: {summary}")

    def never_taken(self, folder):
        """fp16 whose every step overflows: the scale falls to 1, and that is said with advice."""
        outcome = self.programs.run(2, "03_mixed_precision", *SMALL, "--steps", 20, "--dtype",
                                    "fp16", "--lr", 1e30, "--log", "new.log", cwd=folder)
        _, steps, summary = read_log(folder / "new.log")
        scales = [step["loss_scale"] for step in steps]
        expect(scales == [2.0**16] + [max(2.0**(18 - n), 1) for n in range(2, 21)], f"{scales}")
        for words in ("8 steps in a row were skipped: try a lower --lr",
                      "the loss scale cannot be less than 1: try a lower --lr"):
            expect(outcome.out.count(words) == 1, f"once {words!r}: {outcome.out}")
        rows = re.findall(r"(?m)^ +\d+  not finite  not finite .* (\d+)  skipped:", outcome.out)
        expect([float(scale) for scale in rows] == scales[1:], f"told with scales: {outcome.out}")
        said = outcome.own_errors()
        expect(outcome.code == NUMERICS and len(said) == 1 and "the last step, 20," in said[0] and
               summary["skipped_steps"] == 19, f"exit code 5 after the log: {outcome}")

    def other_texts(self, folder):
        """Ranks in folders of their own, each with a text of that name."""
        for rank, text in enumerate(("or not to be", "or not to be", "or not to me")):
            (folder / str(rank)).mkdir()
            (folder / str(rank) / "text.txt").write_text(text)
        own = " ".join(self.programs.command(0, "05_zero2", "--data", "text.txt"))
        place = "OMPI_COMM_WORLD_RANK" if "openmpi" in self.programs.mpiexec else "PMI_RANK"
        self.refused(folder, [self.programs.mpiexec, "-n", "3", "sh", "-c",
                              f"cd ${place} && exec {own}"], DATA,
                     "rank 2 reads a text of 12 bytes, digest [0-9a-f]{16}, rank 0, same file")

    def every_tenth(self, folder, chapter, ranks):
        printed = self.good(folder, ranks, chapter, *SMALL, "--steps", 101)
        steps = [int(n) for n in re.findall(r"(?m)^ *(\d+)(?: +\d+\.\d+){3}$", printed)]
        expect(steps == [1, *range(10, 101, 10), 101], f"every tenth expected: {printed}")
        expect(re.fullmatch(r"([ -~]{0,80}\n)*", printed), f"plain and narrow: {printed!r}")
        expect(re.search(r"(?m)^parameters [0-9a-f]{16} ", printed), printed)

    def progress(self, folder):
        """A terminal also sees a line that is replaced, with the time that is left."""
        ours, terminal = pty.openpty()
        command = self.programs.command(0, ALONE, *SMALL, "--steps", 10**7, "--log", "new.log")
        subprocess.run(["timeout", "4", *command], cwd=folder, stdout=terminal, check=False)
        seen = os.read(ours, 4096).decode()
        lines = re.findall(r"\r\x1b\[K *(\d+)(?: +\d+\.\d+){3}  (\d+) s left", seen)
        expect(len(lines) > 2, f"progress: {seen!r}")
        steps = (folder / "new.log").read_text().split("\n")[1:-1]
        times = [json.loads(step)["ms"] for step in steps]
        for done, left in lines[:-1]:
            warm = sorted(times[3:int(done)])
            expected = warm[len(warm) // 2] * (10**7 - int(done)) / 1000
            expect(left == f"{expected:.0f}", f"{expected} s left expected: {done}, {left}")


def main():
    options = options_of(__doc__)
    test = Test(Programs(options.build, options.mpiexec, patience=30))
    for code, rows in ((USAGE, BAD_OPTIONS), (DATA, BAD_DATA)):
        for number, row in enumerate(rows):
            test.check_bad(code, number, *row)
    for row in OTHERWISE_REFUSED:
        test.check_refused(*row)
    for row in UNEQUAL:
        test.check_unequal(*row)
    of_mpi = "PMI" if "openmpi" in Path(options.mpiexec).name else "OMPI_COMM_WORLD"
    others = SLURM_TASK | ({"PMI_SIZE": "1"} if of_mpi != "PMI" else {})  # of a batch system
    test.check("another MPI's mpirun", test.another_launcher, others, f"{of_mpi}_SIZE",
               f"{of_mpi}_RANK")
    test.check("mpirun as a batch system's task", test.within_a_batch_system)
    test.check("srun without MPI", test.another_launcher, {}, *SLURM_TASK)
    for number, chapter in enumerate(CHAPTERS):
        test.check(f"{chapter} --help", test.help, chapter, 4 if number in (1, 6) else 0)
        test.check(f"{chapter} --log", test.log, chapter, 0 if chapter == ALONE else 3)
        for ranks in (1, 3, 64) if chapter in ON_RANKS else (1,):
            test.check(f"{chapter} --plan on {ranks} ranks", test.plan, chapter, ranks)
    for ranks, chapter in ((0, ALONE), (4, "06_zero3")):
        test.check(f"a path that is not UTF-8 on {ranks} ranks", test.not_utf8, ranks, chapter)
        test.check(f"every tenth step on {ranks} ranks", test.every_tenth, chapter, ranks)
    test.check("--device-memory", test.device_memory)
    test.check("a skipped step", test.skipped)
    test.check("no step is taken", test.never_taken)
    test.check("other texts of one name", test.other_texts)
    test.check("checked on the way", test.good, 3, "05_zero2", *SMALL, "--steps", 4,
               "--check-every", 2)
    test.check("progress", test.progress)
    test.pool.shutdown()
    print(f"{test.checked} checked, {len(test.failed)} failed")
    return 1 if test.failed else 0


if __name__ == "__main__":
    sys.exit(main())
