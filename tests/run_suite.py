#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds and runs the tests, and says in 80 columns what passed, what failed and what was skipped.

`./tutorial test` calls this. The tests themselves are Meson's: `meson test -C build` runs the same
ones. `--all` adds the long runs, all that needs a GPU where there is one, a build without CUDA in
build/cpu where this one has it, and builds with sanitizers in build/asan and build/tsan. `--gpu`
runs what needs a GPU and nothing else. The last line is always `N passed, N failed, N skipped`; a
build that fails, or runs no test, is a failure.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True
import gpu_table  # noqa: E402

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP", "IGNORED"}  # everything else, a timeout too, has failed


@dataclass
class Pass:
    """One run of tests: where its build lies, how that is configured, which tests are taken."""
    name: str
    folder: Path
    setup: list
    tests: list
    results: list = field(default_factory=list)
    broken: str = ""  # why there are no results

    def of(self, *kinds):
        return [result for result in self.results if kind(result) in kinds]


def kind(result):
    value = result["result"]
    return "passed" if value in PASSED else "skipped" if value in SKIPPED else "failed"


# Tests that need a GPU are run by gpu_table.py, with its benchmarks.
NO_GPU = ["--no-suite", "gpu"]


def passes(build, options):
    plain = Pass("tests", build, [], ["--no-suite", "long", *NO_GPU])
    gpu = Pass("gpu", build, [], [])
    if options.gpu:
        return [gpu]
    if not options.all:
        return [plain]
    cpu = Pass("cpu", build / "cpu", ["-Dcuda=disabled"],
               ["--no-suite", "long", "--no-suite", "simulated", *NO_GPU])
    # b_lundef=false: the sanitizers' own symbols come only with the program
    asan = ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled"]
    tsan = ["-Db_sanitize=thread", "-Db_lundef=false", "-Dcuda=disabled"]
    patient = ["--timeout-multiplier", "3"]  # what a sanitizer slows down is not stuck
    return [
        plain,
        gpu,
        cpu,
        Pass("asan", build / "asan", asan,
             ["--no-suite", "long", "--no-suite", "nosan", *NO_GPU, *patient]),
        Pass("tsan", build / "tsan", tsan,
             ["--suite", "06_zero3", "--suite", "stream", "--no-suite", "long", "--no-suite",
              "simulated", *NO_GPU, *patient]),
        Pass("long", build, [], ["--suite", "long", *NO_GPU]),
    ]


def logged(command, log, progress=None):
    """Runs a command with its output in a file; returns its exit code."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # Meson's lines as they come
    with log.open("w", errors="replace") as out:
        process = subprocess.Popen(command, env=environment, text=True, errors="replace",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        for line in process.stdout:
            out.write(line)
            if progress:
                progress(line)
        return process.wait()


def show(text):
    """A line that the next one replaces: only where somebody watches."""
    if sys.stdout.isatty():
        print(f"\r{text[:79]:<79}\r", end="", flush=True)


def say(text):
    show("")
    print(text, flush=True)


def compile_pass(run, mpi):
    """Configures the build where that is still to be done, and compiles; False if it fails."""
    logs = run.folder / "log"
    logs.mkdir(parents=True, exist_ok=True)
    steps = [("build", ["ninja", "-C", str(run.folder)])]
    if not (run.folder / "build.ninja").exists():
        setup = ["meson", "setup", str(run.folder), f"-Dmpi={mpi}", *run.setup]
        steps.insert(0, ("setup", setup))
    start = time.monotonic()
    for name, command in steps:
        log = logs / f"{name}.log"
        if logged(command, log, lambda line: show(f"{run.name}: {line.strip()}")) != 0:
            run.broken = f"the {name} failed, see {log}"
            say(f"{run.name}: {run.broken}")
            print_tail(log.read_text(errors="replace"))
            return False
    if time.monotonic() - start >= 1:
        say(f"{run.name}: built in {time.monotonic() - start:.0f} s")
    return True


def run_gpu(run):
    """Runs what needs a GPU, or says why not."""
    entries = list(gpu_table.entries(run.folder.resolve()))
    if why := gpu_table.why_no_gpu(run.folder.resolve()):
        say(textwrap.fill(f"gpu: left out, {why}; that is {len(entries)} tests and benchmarks: "
                          "kernels, chapters and NCCL on a GPU, compute-sanitizer", 80))
        return
    for entry in entries:
        run.results.append(gpu_table.run(entry))
        print("\n".join(gpu_table.lines_of(entry, run.results[-1])), flush=True)


def run_tests(run):
    """Runs the tests of one pass and reads what Meson noted of each."""
    noted = run.folder / "meson-logs" / f"{run.name}.json"
    noted.unlink(missing_ok=True)  # never read the results of an earlier run
    log = run.folder / "log" / f"{run.name}.log"
    start = time.monotonic()

    def progress(line):
        done = re.match(r"\s*(\d+)/(\d+) ", line)
        if done:
            show(f"{run.name}: {done[1]} of {done[2]}")

    code = logged(["meson", "test", "-C", str(run.folder), "--no-rebuild", "--print-errorlogs",
                   "--logbase", run.name, *run.tests], log, progress)
    if noted.exists():
        run.results = [json.loads(line) for line in noted.read_text().splitlines()]
    if not run.of("passed", "failed"):
        run.broken = f"no test ran, see {log}"
    elif code != 0 and not run.of("failed"):
        run.broken = f"meson test ended with code {code}, see {log}"
    counts = ", ".join(f"{len(run.of(k))} {k}" for k in ("passed", "failed", "skipped"))
    say(f"{run.name}: {counts} in {time.monotonic() - start:.0f} s"
        + (f"; {run.broken}" if run.broken else ""))


# ---- Reporting -------------------------------------------------------------------------------

def print_tail(text, lines=30):
    """The last lines of a log, folded to 80 columns."""
    for line in text.rstrip().splitlines()[-lines:]:
        print(textwrap.fill(line, 80, initial_indent="  | ", subsequent_indent="  |   ") or "  |")


def print_failure(run, result):
    print(f"\nFAILED in {run.name}: {result['name']}")
    how = "ran out of time" if result["result"] == "TIMEOUT" else f"code {result['returncode']}"
    print(f"  {how} after {result['duration']:.1f} s")
    print(textwrap.fill(" ".join(result["command"]), 80, initial_indent="  ",
                        subsequent_indent="    ", break_long_words=False,
                        break_on_hyphens=False))
    print_tail("\n".join(filter(None, (result.get("stdout"), result.get("stderr")))))


def print_skip(run, result):
    said = [line.strip() for line in (result.get("stdout") or "").splitlines() if line.strip()]
    print(textwrap.fill(f"skipped in {run.name}: {result['name']}: "
                        f"{said[-1] if said else 'it gave no reason'}", 80,
                        subsequent_indent="  "))


def report(runs):
    """Each skip with its reason, each failure with its log, and last the sums."""
    print()
    for run in runs:
        for result in run.of("skipped"):
            print_skip(run, result)
    for run in runs:
        for result in run.of("failed"):
            print_failure(run, result)
    sums = {k: sum(len(run.of(k)) for run in runs) for k in ("passed", "failed", "skipped")}
    sums["failed"] += sum(1 for run in runs if run.broken)
    print(", ".join(f"{n} {k}" for k, n in sums.items()))
    return 1 if sums["failed"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="the sanitizers and the long runs too")
    parser.add_argument("--gpu", action="store_true", help="what needs a GPU, and nothing else")
    parser.add_argument("--build", type=Path, default=Path("build"), help="Meson's build folder")
    parser.add_argument("--mpi", default="auto", help="auto, mpich or openmpi, for a new build")
    options = parser.parse_args()
    runs = passes(options.build, options)
    for run in runs:
        if run.name == "cpu" and not (options.build / "tests/benchmarks/gpu_adam_benchmark").exists():
            continue  # the first build had no CUDA either
        if compile_pass(run, options.mpi):
            run_gpu(run) if run.name == "gpu" else run_tests(run)
    if options.gpu and not runs[0].results:
        return gpu_table.SKIPPED
    return report(runs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
