#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds and runs the tests, and says in 80 columns what passed, what failed and what was skipped.

A pass is one of Meson's test setups (tests/meson.build) in a build of its own kind. `--all` takes
every pass, and where there is a GPU all that needs one, benchmarks too; `--gpu` takes that alone.
The last line is `N passed, N failed, N skipped`; a build that fails or runs no test is a failure.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill

SKIPPED = 77  # the exit code by which Meson knows it
KINDS = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped", "IGNORED": "skipped"}
PIPED = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Pass:
    """One run of tests: the setup's name, its build, how that is configured, what is chosen."""
    name: str
    folder: Path
    setup: list = field(default_factory=list)
    choice: list = field(default_factory=list)
    targets: list = field(default_factory=list)  # what is built; nothing named: all
    needs: list = field(default_factory=list)  # tools without which it is skipped
    variables: dict = field(default_factory=dict)  # of its environment
    results: list = field(default_factory=list)  # in Meson's form
    broken: str = ""  # why there are no results

    def of(self, kind):
        return [result for result in self.results if KINDS.get(result["result"], "failed") == kind]

    def counts(self):
        return [len(self.of(kind)) for kind in ("passed", "failed", "skipped")]


def passes(build, everything, gpu_alone):
    first, gpu, no_gpu = Pass("default", build), Pass("gpu", build), "-Dcuda=disabled"
    if gpu_alone or not everything:
        return [gpu if gpu_alone else first]
    clang = "clang++-16"  # the first to know all of our C++20
    own_symbols = "-Db_lundef=false"  # the sanitizers' own symbols come only with the program
    quick = "-Doptimization=g"  # at 3, what the sanitizers add takes six times as long to compile
    asan = [no_gpu, "-Db_sanitize=address,undefined", own_symbols, quick]
    tsan = [no_gpu, "-Db_sanitize=thread", own_symbols, quick]
    threads = ["tests/unit/unit_tests", *(f"tests/ranks/test_{chapter}{what}"
                                          for chapter in ("06_zero3", "07_offload")
                                          for what in ("", "_schedules"))]
    chapters = [f"{folder.name}/{folder.name}" for folder in sorted(ROOT.glob("0?_*"))]

    def digests(name, *setup, **how):
        return Pass(name, build / name, [no_gpu, "-Ddebug=false", *setup],
                    ["--suite", "digests"], **{"targets": chapters} | how)

    return [first, gpu, Pass("asan", build / "asan", asan),
            Pass("tsan", build / "tsan", tsan, targets=threads),
            Pass("long", build, [], ["--suite", "long"]),
            # What must have no say in the bits: CUDA, the compiler, its zeal, the instruction set.
            digests("clang", needs=[clang], variables={"CXX": clang}),
            digests("O1", "-Doptimization=1"),
            digests("arm64", f"--cross-file={ROOT / 'tests/arm64.ini'}", targets=chapters[:1],
                    needs=["aarch64-linux-gnu-g++", "qemu-aarch64-static"])]


def say(text, passing=False):
    """passing: the next line takes its place, and it is for somebody who watches."""
    if sys.stdout.isatty():
        print(f"\r{'':<79}\r", end=text[:79] if passing else "", flush=True)
    if not passing:
        print(text, flush=True)


def print_tail(text):
    """The last lines of a log, folded to 80 columns."""
    for line in text.rstrip().splitlines()[-30:]:
        print(fill(line, 80, initial_indent="  | ", subsequent_indent="  |   ") or "  |")


def logged(run, command, log):
    """Runs a command with its output in a file; returns its exit code."""
    unbuffered = {"PYTHONUNBUFFERED": "1"}  # Meson's lines as they come
    environment = os.environ | run.variables | unbuffered
    with log.open("w", errors="replace") as out:
        process = subprocess.Popen(command, env=environment, text=True, errors="replace", **PIPED)
        for line in process.stdout:
            out.write(line)
            say(f"{run.name}: {line.strip()}", passing=True)
        return process.wait()


def compile_pass(run, mpi):
    """Configures the build where that is still to be done, and compiles."""
    (run.folder / "log").mkdir(parents=True, exist_ok=True)
    steps = {"setup": ["meson", "setup", run.folder, f"-Dmpi={mpi}", *run.setup],
             "build": ["ninja", "-C", run.folder, *run.targets]}
    if (run.folder / "build.ninja").exists():
        del steps["setup"]
    start = time.monotonic()
    for name, command in steps.items():
        log = run.folder / f"log/{name}.log"
        if logged(run, command, log) != 0:
            run.broken = f"the {name} failed, see {log}"
            say(f"{run.name}: {run.broken}")
            return print_tail(log.read_text(errors="replace"))
    if time.monotonic() - start >= 1:
        say(f"{run.name}: built in {time.monotonic() - start:.0f} s")


def run_tests(run):
    """Runs the tests of one pass and reads what Meson noted of each."""
    noted = run.folder / f"meson-logs/{run.name}-{run.name}.json"  # logbase and setup
    noted.unlink(missing_ok=True)  # never read the results of an earlier run
    log = run.folder / f"log/{run.name}.log"
    start = time.monotonic()
    code = logged(run, ["meson", "test", "-C", run.folder, "--no-rebuild", "--print-errorlogs",
                        "--setup", run.name, "--logbase", run.name, *run.choice], log)
    if noted.exists():
        run.results = [json.loads(line) for line in noted.read_text().splitlines()]
    passed, failed, skipped = run.counts()
    if not failed and (not passed or code != 0):
        why = f"meson test ended with code {code}" if passed else "no test ran"
        run.broken = f"; {why}, see {log}"
    say(f"{run.name}: {passed} passed, {failed} failed, {skipped} skipped in "
        f"{time.monotonic() - start:.0f} s{run.broken}")


# ---- What needs a GPU: from Meson's notes alone, as the build may have been made elsewhere -------

def gpu_entries(build, mpiexec):
    """Tests and benchmarks of the suite `gpu` as Meson noted them, their paths made ours: the
    cheapest and most telling first, as their priorities say."""
    def noted(name):
        return json.loads((build / f"meson-info/{name}.json").read_text())

    def ours(word):
        if mpiexec and Path(word).name.startswith(("mpiexec", "mpirun")):
            return mpiexec
        if Path(word).name.startswith("python"):
            return sys.executable  # which may have PyTorch where the build's has not
        return word.replace(folders["build"], str(build)).replace(folders["source"], str(ROOT))

    folders = noted("meson-info")["directories"]
    entries = [entry | {"cmd": list(map(ours, entry["cmd"]))}
               for name in ("tests", "benchmarks") for entry in noted(f"intro-{name}")
               if "gpu" in [suite.split(":")[-1] for suite in entry["suite"]]]
    if len(entries) > 25:
        sys.exit(f"the suite gpu has {len(entries)} entries, more than 25: which say least?")
    return sorted(entries, key=lambda entry: -entry["priority"])


def run_entry(entry, left):
    """In the form in which Meson notes a result. left: seconds of the budget; what these end is
    skipped."""
    limit = min(entry["timeout"], left)
    start, code, result = time.monotonic(), None, "FAIL"
    try:
        if limit <= 0:
            raise subprocess.TimeoutExpired(entry["cmd"], limit)
        done = subprocess.run(entry["cmd"], env=os.environ | entry["env"], timeout=limit,
                              check=False, **PIPED)
        code, output = done.returncode, done.stdout
        result = {0: "OK", SKIPPED: "SKIP"}.get(code, "FAIL")
    except subprocess.TimeoutExpired as late:
        output, result = late.stdout or b"", "TIMEOUT"
        if limit == left:
            output, result = b"the budget was spent", "SKIP"
    except OSError as missing:
        output = str(missing).encode()
    return {"name": entry["name"], "command": entry["cmd"], "result": result, "returncode": code,
            "duration": time.monotonic() - start, "stdout": output.decode(errors="replace")}


def run_gpu(run, mpiexec, only, budget):
    """Runs what has `only` in its name and prints a table, or says why there is no GPU."""
    build = run.folder.resolve()
    entries = gpu_entries(build, mpiexec)
    probe = subprocess.run([build / "tests/gpu/test_kernels", "cuda", "--list-test-cases"],
                           stdout=subprocess.PIPE, text=True, check=False)
    if probe.returncode == SKIPPED:
        return say(fill(f"gpu: left out, {probe.stdout.strip()}; that is {len(entries)} tests and "
                        "benchmarks: kernels, chapters and NCCL on a GPU, compute-sanitizer", 80))
    end = time.monotonic() + budget
    for entry in (entry for entry in entries if only in entry["name"]):
        result = run_entry(entry, max(0, end - time.monotonic()))
        run.results.append(result)
        say(f"{entry['name'][:60]:<62}{result['result']:<8}{result['duration']:>7.1f} s")
        if result["result"] == "OK" and any("benchmark" in suite for suite in entry["suite"]):
            print_tail(result["stdout"])
    run.broken = "" if run.results else "no test ran"


# ---- Reporting -----------------------------------------------------------------------------------

def report(runs):
    """Each skip with its reason, each failure with its log, and last the sums."""
    print()
    for run, result in ((run, result) for run in runs for result in run.of("skipped")):
        said = (result.get("stdout") or "").strip().splitlines() or ["it gave no reason"]
        print(fill(f"skipped in {run.name}: {result['name']}: {said[-1].strip()}", 80,
                   subsequent_indent="  "))
    for run, result in ((run, result) for run in runs for result in run.of("failed")):
        late = result["result"] == "TIMEOUT"
        how = "ran out of time" if late else f"code {result['returncode']}"
        print(f"\nFAILED in {run.name}: {result['name']}\n  {how} after {result['duration']:.1f} s")
        print(fill(" ".join(result["command"]), 80, initial_indent="  ", subsequent_indent="    ",
                   break_long_words=False, break_on_hyphens=False))
        print_tail("\n".join(filter(None, (result.get("stdout"), result.get("stderr")))))
    passed, failed, skipped = map(sum, zip(*(run.counts() for run in runs)))
    failed += sum(1 for run in runs if run.broken)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0 if passed else SKIPPED


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="the sanitizers and the long runs too")
    parser.add_argument("--gpu", action="store_true", help="what needs a GPU, and nothing else")
    parser.add_argument("--build", type=Path, default=Path("build"), help="Meson's build folder")
    parser.add_argument("--mpi", default="auto", help="auto, mpich or openmpi, for a new build")
    parser.add_argument("--carried", metavar="MPIEXEC", help="with --gpu: take a build made "
                        "elsewhere as it is, without Meson, with the launcher of the MPI here")
    parser.add_argument("--budget", type=float, metavar="SECONDS", default=float("inf"),
                        help="with --gpu: what is not done by then is skipped")
    parser.add_argument("--only", default="", help="with --gpu: what has this in its name")
    options = parser.parse_args()
    runs = passes(options.build, options.all, options.gpu)
    for run in runs:
        if missing := [tool for tool in run.needs if not shutil.which(tool)]:
            why = f"it needs {', '.join(missing)}"
            run.results.append({"name": "all of it", "result": "SKIP", "stdout": why})
            continue
        if not options.carried:
            compile_pass(run, options.mpi)
        if not run.broken:
            gpu = run.name == "gpu"
            run_gpu(run, options.carried, options.only, options.budget) if gpu else run_tests(run)
    return report(runs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
