#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the six programs answer to a command line, good or bad, alone and on ranks.

A bad one ends with one sentence on stderr, the right exit code, nothing on stdout and no file
made or changed. A good one prints and logs what is documented.
"""
import argparse
import contextlib
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
from programs import ALONE, CHAPTERS, ON_RANKS, Programs, bits, read_log  # noqa: E402

USAGE, DATA, RESOURCES = 2, 3, 6
MIXED = CHAPTERS[2:]
SMALL = ["--width", 8, "--layers", 2, "--batch", 2]  # of task text
A_FEW_SECONDS = 10

# Wrong command lines, by the chapters asked; the sentence contains every word of them.
BAD_WORDS = [
    (CHAPTERS, "--foo, --step 3, extra, --lr abc, --lr 1e999, --lr 1e300, --lr nan, --lr inf, --lr -1, "
               "--beta2 -0.1, --eps 0, --weight-decay -1, --clip -1, --seed -1, --layers 0, "
               "--seed 99999999999999999999, --steps -1, --steps 0, --steps 1.5, --steps 0x10, "
               "--layers 99999999, --batch 0, --accumulate 0, --width 0, --width 12, --task 1, "
               "--log nowhere/new.log, --log folder"),
    (CHAPTERS[:1], "--comm nccl, --timeout 9"),
    (CHAPTERS[:2], "--dtype bf16, --loss-scale dynamic"),
    (CHAPTERS[:5], "--prefetch 1"),
    (ON_RANKS, "--reduce fast, --timeout 0, --timeout 86401"),
    (MIXED, "--dtype 2, --loss-scale -1 --dtype fp16, --dtype fp16 --loss-scale 0, "
            "--dtype fp16 --loss-scale 1e300"),
    (CHAPTERS[5:], "--prefetch 3, --prefetch -1"),
]
# The arguments, the words that the sentence must contain, and the chapters asked (default: all).
BAD_OPTIONS = [(text, text.replace("--dtype fp16", "").split(), chapters)
               for chapters, texts in BAD_WORDS for text in texts.split(", ")] + [
    ("--lr", ["--lr", "missing"]),
    ("--beta1 1", ["--beta1", "below 1"]),
    ("--device gpu", ["--device", "gpu", "auto", "cpu", "cuda"]),
    ("--comm ib", ["--comm", "ib", "auto", "mpi", "nccl"], ON_RANKS),
    ("--comm nccl --device cpu", ["--comm nccl", "--device cuda", "--comm mpi"], ON_RANKS),
    ("--reduce native --device cpu", ["--reduce native", "--comm nccl"], ON_RANKS),
    ("--steps 5 --steps 6", ["--steps"]),
    ("--width 12", ["multiple of 8"]),
    ("--task foo", ["--task", "foo", "text", "toy", "mlp"]),
    ("--task toy --width 8", ["toy", "--width"]),
    ("--task toy --layers 2", ["toy", "--layers"]),
    ("--task toy --data text.txt", ["--data", "toy"]),
    ("--task mlp --data text.txt", ["--data", "mlp"]),
    ("--dtype fp64", ["--dtype", "fp64", "fp32", "bf16", "fp16"], MIXED),
    ("--loss-scale 8", ["--loss-scale", "fp16"], MIXED),
    ("--dtype fp32 --loss-scale 8", ["--loss-scale", "fp16"], MIXED),
    ("--dtype fp16 --loss-scale abc", ["--loss-scale", "abc", "dynamic"], MIXED),
    ("--ranks 4", ["--ranks", "--plan"], ON_RANKS),
    ("--data ", ["--data", "name"]),
    ("--log ", ["--log", "name"]),
    ("--data text.txt --log text.txt", ["--log", "text.txt"]),
    ("--log nowhere/new.log", ["No such file"]),
    ("--log folder", ["directory"]),
]
BAD_DATA = [
    ("--data missing.txt", ["missing.txt", "No such file"]),
    ("--data empty.txt", ["empty.txt", "0 bytes", "9"]),
    ("--data five.txt", ["five.txt", "5 bytes", "9"]),
    ("--data eight.txt", ["eight.txt", "8 bytes", "9"]),
    ("--data folder", ["folder", "directory"]),
]

# Chapter and arguments of rank 0, of rank 1, and the words of the sentence.
UNEQUAL = [
    ("04_zero1 --lr 0.01", "04_zero1 --lr 0.02", "rank 1, --lr, 0.01, 0.02"),
    ("02_distributed_adam --width 8", "02_distributed_adam --width 16", "--width, 8, 16"),
    ("06_zero3 --prefetch 0", "06_zero3", "rank 1, --prefetch, 0, 1"),
    ("03_mixed_precision --seed 1", "03_mixed_precision --seed 2", "rank 1, --seed"),
    ("05_zero2 --dtype fp16 --loss-scale 8", "05_zero2 --dtype fp16", "--loss-scale, dynamic"),
    ("05_zero2 --log new.log", "05_zero2", "rank 1, --log, new.log"),
    ("02_distributed_adam --timeout 5", "02_distributed_adam", "rank 1, --timeout, 5, 60"),
    ("04_zero1", "04_zero1 --foo", "04_zero1, --foo"),
    ("04_zero1 --lr abc", "04_zero1", "--lr, abc"),
    ("04_zero1 --foo", "04_zero1 --help", "--foo"),
    ("06_zero3", "06_zero3 --help", "rank 1, --help"),
    ("06_zero3 --help", "06_zero3", "rank 1, --help"),
    ("04_zero1", "05_zero2", "rank 1, 04_zero1, 05_zero2"),
    ("02_distributed_adam", "03_mixed_precision --dtype fp32", "rank 1, 03_mixed_precision"),
]


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def fill(folder):
    """What a user may have lying there."""
    for name, content in {"kept.log": "kept\n", "empty.txt": "", "five.txt": "12345",
                          "eight.txt": "12345678", "text.txt": "to be or not to be\n" * 9}.items():
        (folder / name).write_text(content)
    (folder / "folder").mkdir()


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


class Test:
    def __init__(self, programs):
        self.programs = programs
        self.pool = ThreadPoolExecutor(2)  # a launcher spends half of its time waiting
        self.checked = []
        self.failed = []

    def check(self, *args):
        self.checked.append(self.pool.submit(self.check_now, *args))

    def check_now(self, name, body, *args):
        """Runs body(folder, *args) in a fresh folder; whatever it throws is a failure."""
        with tempfile.TemporaryDirectory(prefix="command_line_") as folder:
            fill(Path(folder))
            try:
                body(Path(folder), *args)
            except Exception as error:  # pylint: disable=broad-except
                own = isinstance(error, AssertionError)
                self.failed.append(name)
                print(f"FAILED {name}\n{error if own else traceback.format_exc()}\n", flush=True)

    def good(self, folder, ranks, chapter, *args):
        """What a run printed that ends well, with nothing on stderr."""
        outcome = self.programs.run(ranks, chapter, *args, cwd=folder)
        expect(outcome.code == 0 and outcome.err == "", f"exit code 0 expected: {outcome}")
        return outcome.out

    # ---- Refusals ----------------------------------------------------------------------------

    def refused(self, folder, command, code, words, **variables):
        before = contents(folder)
        start = time.monotonic()
        outcome = self.programs.start(command, folder, **variables)
        seconds = time.monotonic() - start
        said = f"{' '.join(command)}\n{outcome}"
        expect(outcome.code == code, f"exit code {code} expected: {said}")
        expect(outcome.out == "", f"nothing on stdout expected: {said}")
        lines = outcome.own_errors()
        expect(len(lines) == 1, f"one line on stderr expected: {said}")
        expect(len(lines[0]) <= 200, f"a sentence expected: {said}")
        for word in words:
            expect(word in lines[0], f"{word!r} expected: {said}")
        expect(contents(folder) == before, f"a file was made or changed: {said}")
        expect(seconds < A_FEW_SECONDS, f"it took {seconds:.1f} s: {said}")

    def check_refused(self, number, case, code):
        """Alone and on four ranks, each time with a log that must not be written."""
        text, words, chapters = (*case, CHAPTERS)[:3]
        args = text.split(" ")
        on_ranks = [chapter for chapter in chapters if chapter in ON_RANKS]
        starts = [(0, chapters[number % len(chapters)])]
        starts += [(4, on_ranks[number % len(on_ranks)])] if on_ranks else []
        for ranks, chapter in starts:
            log = ["--log", "kept.log" if ranks else "new.log"] if "--log" not in text else []
            command = self.programs.command(ranks, chapter, *log, *args)
            self.check(f"{chapter} {text} on {ranks} ranks", self.refused, command, code, words)

    def check_plan_refused(self):
        for number, (text, words) in enumerate(BAD_DATA):
            command = self.programs.command(0, CHAPTERS[number], "--plan", *text.split())
            self.check(f"--plan {text}", self.refused, command, DATA, words)
        command = self.programs.command(0, ALONE, "--plan", "--ranks", 4)
        self.check("01 --plan --ranks", self.refused, command, USAGE, ["--ranks"])

    # ---- How ranks are started ---------------------------------------------------------------

    def check_unequal(self):
        for first, second, words in UNEQUAL:
            command = [self.programs.mpiexec]
            for text in (first, ":", second):
                chapter, *args = text.split()
                own = self.programs.command(0, chapter, *args)
                command += [":"] if text == ":" else ["-n", "1", *own]
            self.check(f"{first} : {second}", self.refused, command, USAGE, words.split(", "))

    def check_starts(self):
        """With mpirun where it has no place, and of the wrong MPI."""
        commands = self.programs.command
        self.check("01 under mpirun", self.refused, commands(4, ALONE), USAGE, ["4", "mpirun"])
        self.check("--plan under mpirun", self.refused, commands(4, "04_zero1", "--plan"), USAGE,
                   ["--plan", "mpirun", "--ranks 4"])
        of_open_mpi = "openmpi" in Path(self.programs.mpiexec).name
        self.check("another MPI's mpirun", self.another_launcher,
                   "PMI" if of_open_mpi else "OMPI_COMM_WORLD")

    def another_launcher(self, folder, prefix):
        """Each of its four ranks believes to be alone; only the first is to say so."""
        command = self.programs.command(0, "05_zero2", "--log", "new.log")
        self.refused(folder, command, USAGE, ["4 ranks", "MPI sees 1", "mpirun"],
                     **{f"{prefix}_SIZE": "4", f"{prefix}_RANK": "0"})
        before = contents(folder)
        for rank in (1, 2, 3):
            outcome = self.programs.start(command, folder, **{f"{prefix}_SIZE": "4",
                                                              f"{prefix}_RANK": str(rank)})
            # A launcher stops all ranks, and the one that speaks, at the first that is not 0.
            expect((outcome.code, outcome.out, outcome.err) == (0, "", ""),
                   f"rank {rank} is to stay silent: {outcome}")
        expect(contents(folder) == before, "a file was made or changed")

    # ---- Resources ---------------------------------------------------------------------------

    def check_resources(self):
        for number, chapter in enumerate(CHAPTERS):
            self.check(f"{chapter} too large", self.too_large, 0, chapter)
            command = self.programs.command(0, chapter, *SMALL, "--quiet", "--log", "/dev/full")
            self.check(f"{chapter} disk full", self.refused, command, RESOURCES,
                       ["/dev/full", "No space left"])
        for chapter in ("02_distributed_adam", "06_zero3"):
            self.check(f"{chapter} too large on 4 ranks", self.too_large, 4, chapter)
        command = self.programs.command(4, "06_zero3", *SMALL, "--quiet", "--log", "/dev/full")
        self.check("a path that is not UTF-8", self.not_utf8, 0, "01_adam")
        self.check("a path that is not UTF-8 on 2 ranks", self.not_utf8, 2, "06_zero3")
        self.check("disk full on 4 ranks", self.refused, command, RESOURCES, ["/dev/full"])

    def too_large(self, folder, ranks, chapter):
        """Told before anything is reserved, once, with what is needed and what there is."""
        before = contents(folder)
        outcome = self.programs.run(ranks, chapter, "--task", "mlp", "--width", 65536, "--layers",
                                    512, "--batch", 1, "--device", "cpu", "--log", "new.log",
                                    cwd=folder)
        expect(outcome.code == RESOURCES, f"exit code {RESOURCES} expected: {outcome}")
        who = f"{chapter}: " if chapter == ALONE else ""
        wanted = re.compile(rf"{who}each rank needs [\d ]{{15,}} bytes, {max(ranks, 1)} on this "
                            r"machine share [\d ]+ that are available: .*layers.*")
        lines = outcome.own_errors()
        expect(len(lines) == 1 and wanted.fullmatch(lines[0]), f"one sentence expected: {outcome}")
        expect(contents(folder) == before, "a file was made or changed")

    def not_utf8(self, folder, ranks, chapter):
        """Paths are bytes: one that is no text in any encoding works, and the log stays JSON."""
        (folder / "text.txt").rename(folder / os.fsdecode(b"caf\xe9.txt"))
        self.good(folder, ranks, chapter, *SMALL, "--data", os.fsdecode(b"caf\xe9.txt"), "--log",
                  "new.log")
        run = read_log(folder / "new.log")[0]
        expect(run["options"]["data"] == "caf\ufffd.txt", f"a replaced byte expected: {run}")

    # ---- Good command lines ------------------------------------------------------------------

    def check_help(self):
        for number, chapter in enumerate(CHAPTERS):
            self.check(f"{chapter} --help", self.help, chapter, 4 if number in (1, 5) else 0)

    def help(self, folder, chapter, ranks):
        alone = self.good(folder, 0, chapter, "--help")
        expect(all(len(line) <= 80 for line in alone.splitlines()), f"80 columns at most: {alone}")
        listed = set(re.findall(r"--[a-z][a-z0-9-]*", alone))
        expect(listed == set(options_of(chapter)) | {"--help"}, f"other options: {listed}")
        if ranks:
            together = self.good(folder, ranks, chapter, "--help")
            expect(together == alone, f"the same text once expected: {together}")

    def check_plans(self):
        for chapter in CHAPTERS:
            for ranks in (1, 3, 64) if chapter in ON_RANKS else (1,):
                for dtype in ("fp32", "bf16") if chapter in MIXED else ("fp32",):
                    for micro_batches in (1, 3):
                        self.check(f"{chapter} --plan {ranks} {dtype} {micro_batches}", self.plan,
                                   chapter, ranks, dtype, micro_batches)

    def plan(self, folder, chapter, ranks, dtype, micro_batches):
        args = ["--plan", "--task", "mlp", "--width", 7, "--layers", 3, "--batch", 5,
                "--accumulate", micro_batches]
        args += ["--ranks", ranks] if chapter in ON_RANKS else []
        args += ["--dtype", dtype] if chapter in MIXED else []
        printed = self.good(folder, 0, chapter, *args)
        rows = [" ".join(line.split()) for line in printed.splitlines()]
        for row in expected_plan(chapter, ranks, dtype, micro_batches):
            expect(row in rows, f"{row} expected: {printed}")

    def check_runs(self):
        for chapter in CHAPTERS:
            self.check(f"{chapter} --log", self.log, chapter, 0 if chapter == ALONE else 3)
        self.check("a skipped step", self.skipped)
        self.check("every tenth step alone", self.every_tenth, ALONE, 0)
        self.check("every tenth step on 4 ranks", self.every_tenth, "06_zero3", 4)
        self.check("progress", self.progress)
        self.check("nine bytes of text", self.nine_bytes)

    def finish(self):
        self.pool.shutdown()
        for done in self.checked:
            done.result()
        print(f"{len(self.checked)} checked, {len(self.failed)} failed")
        return 1 if self.failed else 0

    def log(self, folder, chapter, ranks):
        """Quiet, and over a log that is there already."""
        printed = self.good(folder, ranks, chapter, *SMALL, "--steps", 5, "--quiet", "--data",
                            "text.txt", "--log", "kept.log")
        expect(printed == "", f"silence expected: {printed}")
        run, steps, summary = read_log(folder / "kept.log")
        check_run_line(run, chapter, max(ranks, 1))
        for number, step in enumerate(steps, 1):
            expect(list(step) == ["step", "loss", "grad_norm", "skipped", "ms"], f"keys: {step}")
            expect(step["step"] == number and step["skipped"] is False and step["ms"] > 0,
                   f"step {number}: {step}")
            bits(step["loss"]), bits(step["grad_norm"])  # throw when they are no fp32 numbers
        expect(len(steps) == 5, f"5 steps expected: {steps}")
        expect(len({bits(step["loss"]) for step in steps}) > 1, f"5 times the same: {steps}")
        check_summary_line(summary)

    def skipped(self, folder):
        printed = self.good(folder, 2, "04_zero1", *SMALL, "--steps", 2, "--dtype", "fp16",
                            "--loss-scale", "1e38", "--log", "new.log")
        expect(printed.count("skipped: a gradient is not finite") == 2, f"said: {printed}")
        expect("2 steps skipped" in printed, f"counted: {printed}")
        _, steps, summary = read_log(folder / "new.log")
        for step in steps:
            expect(step["skipped"] is True and step["grad_norm"] is None, f"skipped: {step}")
            bits(step["loss"])
        expect(summary["skipped_steps"] == 2, f"2 skipped: {summary}")

    def every_tenth(self, folder, chapter, ranks):
        printed = self.good(folder, ranks, chapter, *SMALL, "--steps", 100)
        steps = [int(n) for n in re.findall(r"^ *(\d+) +\d+\.\d+ +\d+\.\d+ +\d+\.\d+$", printed,
                                            re.MULTILINE)]
        expect(steps == [1, *range(10, 101, 10)], f"every tenth expected: {printed}")
        expect(re.search(r"[\x00-\x09\x0b-\x1f]", printed) is None, f"plain: {printed!r}")
        expect(all(len(line) <= 80 for line in printed.splitlines()), printed)
        expect(re.search(r"^parameters [0-9a-f]{16} ", printed, re.MULTILINE), printed)

    def progress(self, folder):
        """A terminal also sees a line that is replaced, with the time that is left."""
        ours, terminal = pty.openpty()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(self.programs.command(0, ALONE, *SMALL, "--steps", 10**7), cwd=folder,
                           stdout=terminal, timeout=A_FEW_SECONDS / 2, check=False)
        seen = os.read(ours, 4096)
        expect(re.search(rb"\r\x1b\[K *\d+ +\d+\.\d+ .* \d+ s left", seen), f"progress: {seen!r}")

    def nine_bytes(self, folder):
        """Enough to learn from."""
        (folder / "nine.txt").write_text("123456789")
        self.good(folder, 0, ALONE, *SMALL, "--steps", 1, "--data", "nine.txt")


# ---- What is documented ------------------------------------------------------------------------

def options_of(chapter):
    names = ["task", "data", "steps", "batch", "accumulate", "width", "layers", "lr", "beta1",
             "beta2", "eps", "weight-decay", "clip", "seed", "log", "quiet", "plan", "device"]
    names += ["ranks", "comm", "reduce", "timeout"] if chapter in ON_RANKS else []
    names += ["dtype", "loss-scale"] if chapter in MIXED else []
    names += ["prefetch"] if chapter == "06_zero3" else []
    return [f"--{name}" for name in names]


def check_run_line(run, chapter, ranks):
    named = {name[2:] for name in options_of(chapter)} - {"plan", "ranks"}
    expect(set(run["options"]) == named, f"every option expected: {run}")
    options = {"width": 8, "layers": 2, "batch": 2, "steps": 5, "data": "text.txt"}
    for name, value in options.items():
        expect(run["options"][name] == value, f"{name} {value} expected: {run}")
    expect(run["options"]["lr"] == 2e-3, f"lr 2e-3 expected: {run}")
    sizes = [8 * 9, 256 * 9]
    padded = sum(rounded_up(size, 8 * ranks) for size in sizes)
    facts = {"chapter": chapter, "ranks": ranks, "dtype": "bf16" if chapter in MIXED else "fp32",
             "parameters": sum(sizes), "padded_parameters": padded, "layers": 2,
             "family": "every micro-batch" if chapter[:2] in ("05", "06") else "once a step"}
    for name, value in facts.items():
        expect(run[name] == value, f"{name} {value} expected: {run}")
    expect(bool(run["mpi"]) == (chapter != ALONE), f"the MPI in use expected: {run}")


def check_summary_line(summary):
    kinds = {"parameters", "gradients", "optimizer", "communication", "activations", "workspace",
             "data"}
    expect(set(summary["memory"]) == kinds | {"total"}, f"kinds of memory: {summary}")
    for kind in kinds:
        figures = summary["memory"][kind]
        expect(set(figures) == {"predicted", "predicted_resident", "resident", "reserved", "peak"},
               f"{kind}: {figures}")
        expect(figures["predicted"] == figures["peak"] == figures["reserved"] and
               figures["predicted_resident"] == figures["resident"], f"{kind}: {figures}")
    traffic = summary["traffic"]
    expect(set(traffic["phases"]) == {"forward", "backward", "update"}, f"phases: {traffic}")
    for row in (*traffic["phases"].values(), traffic["padding"], traffic["scalars"]):
        expect(row["predicted"] == row["counted"], f"as predicted: {traffic}")
    layers = [int(digest, 16) for digest in summary["layer_digests"]]
    expect(len(set(layers)) == 2 and sum(layers) % 2**64 == int(summary["digest"], 16),
           f"the digest is the sum of the layers': {summary}")
    expect(summary["skipped_steps"] == 0 and summary["median_ms"] > 0, f"the rest: {summary}")


def rounded_up(size, unit):
    return -(-size // unit) * unit


def expected_plan(chapter, n, dtype, micro_batches):
    """The formulas for three layers of 7 x 7 and a bias, 5 samples."""
    w, k = (4, 8) if dtype == "fp32" else (2, 12)
    layer = rounded_up(7 * 7 + 7, 8 * n)
    full = 3 * layer
    a = micro_batches
    sharded = {  # parameters, gradients, optimizer
        "04": (1, 1, n), "05": (1, n, n), "06": (n, n, n)}.get(chapter[:2], (1, 1, 1))
    params, grads, optimizer = (size // part for size, part in
                                zip((w * full, w * full, k * full), sharded))
    whole = {"05": (0, 1), "06": (2, 2)}.get(chapter[:2], (0, 0))  # prefetch 1
    sent = {"01": (0, 0, 0), "04": (0, 1, 1), "05": (0, a, 1),
            "06": (a, 2 * a, 0)}.get(chapter[:2], (0, 2, 0))
    data = 16 * (7 + 7) * 4 + 5 * 7 * 4
    rows = {
        "parameters": [params, params + whole[0] * w * layer],
        "gradients": [grads, grads + whole[1] * w * layer],
        "optimizer": [optimizer, optimizer],
        "communication": [0, w * layer // n * (n - 1)],
        "activations": [0, 5 * (4 * 7 + 2 * 7) * w],
        "workspace": [0, 2**20],
        "data": [data, data],
        "padding, all ranks": [sum(sent) * (full - 3 * 56) * (n - 1)],
        "scalars": [2 * (n - 1)],
    }
    for phase, factor in zip(("forward", "backward", "update"), sent):
        rows[phase] = [factor * full // n * (n - 1), f"{factor} x {n - 1}/{n}"]
    grouped = {name: [f"{x:,}".replace(",", " ") if isinstance(x, int) else x for x in row]
               for name, row in rows.items()}
    return [f"bytes of state a parameter: {(params + grads + optimizer) / full:g}",
            *(" ".join([name, *row]) for name, row in grouped.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", required=True, help="the folder with the six programs")
    parser.add_argument("--mpiexec", required=True, help="the launcher of their MPI")
    options = parser.parse_args()
    test = Test(Programs(options.build, options.mpiexec, patience=30))
    for number, case in enumerate(BAD_OPTIONS):
        test.check_refused(number, case, USAGE)
    for number, case in enumerate(BAD_DATA):
        test.check_refused(number, case, DATA)
    test.check_plan_refused()
    test.check_unequal()
    test.check_starts()
    test.check_resources()
    test.check_help()
    test.check_plans()
    test.check_runs()
    return test.finish()


if __name__ == "__main__":
    sys.exit(main())
