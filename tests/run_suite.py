#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds and runs the tests, pass by pass.

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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill, indent

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from runs import finish  # noqa: E402

SKIPPED = 77  # the exit code by which Meson knows it
# Meson's words for a result; whatever else it says is a failure.
KINDS = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped", "IGNORED": "skipped"}
PIPED = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
         "text": True, "errors": "replace"}


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
    counts: Counter = field(default_factory=Counter)  # of results, by KINDS' values

    def count(self, result, name, said):
        """Notes a test's result; one that was skipped says why with its last line."""
        kind = KINDS.get(result, "failed")
        self.counts[kind] += 1
        if kind == "skipped":
            lines = (said or "").strip().splitlines() or ["it gave no reason"]
            print(fill(f"skipped in {self.name}: {name}: {lines[-1].strip()}", 80,
                       subsequent_indent="  "), flush=True)

    def fail(self, why):
        self.counts["failed"] += 1
        print(f"{self.name}: {why}", flush=True)


def passes(build, everything, gpu_alone):
    first, gpu, no_gpu = Pass("default", build), Pass("gpu", build), "-Dcuda=disabled"
    if gpu_alone or not everything:
        return [gpu if gpu_alone else first]
    clang = "clang++-16"  # the first to know all of our C++20
    own_symbols = "-Db_lundef=false"  # the sanitizers' own symbols come only with the program
    quick = "-Doptimization=g"  # at 3, what the sanitizers add takes six times as long to compile
    asan = [no_gpu, "-Db_sanitize=address,undefined", own_symbols, quick]
    # A race is two lines, which only debug information tells.
    tsan = [no_gpu, "-Db_sanitize=thread", own_symbols, quick, "-Ddebug=true"]
    threads = ["tests/unit/unit_tests", "tests/ranks/test_06_zero3", "tests/ranks/test_07_offload"]
    chapters = [f"{folder.name}/{folder.name}" for folder in sorted(ROOT.glob("0?_*"))]

    def digests(name, *setup, **how):
        return Pass(name, build / name, [no_gpu, *setup], ["--suite", "digests"],
                    **{"targets": chapters} | how)

    return [first, gpu, Pass("asan", build / "asan", asan),
            Pass("tsan", build / "tsan", tsan, targets=threads),
            Pass("long", build, [], ["--suite", "long"]),
            # What must have no say in the bits: CUDA, the compiler, its zeal, the instruction set.
            digests("clang", needs=[clang], variables={"CXX": clang}),
            digests("O1", "-Doptimization=1"),
            digests("arm64", f"--cross-file={ROOT / 'tests/arm64.ini'}", targets=chapters[:1],
                    needs=["aarch64-linux-gnu-g++", "qemu-aarch64-static"])]


def compiled(run, mpi):
    """Configures the build where that is still to be done, and compiles; false when that fails."""
    environment = os.environ | run.variables
    start = time.monotonic()
    if not (run.folder / "build.ninja").exists():
        done = subprocess.run(["meson", "setup", run.folder, f"-Dmpi={mpi}", *run.setup],
                              env=environment, **PIPED)
        if done.returncode != 0:
            print(done.stdout)
            return run.fail("it cannot be configured")
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    if subprocess.run(["ninja", *quiet, "-C", run.folder, *run.targets], env=environment,
                      stdin=subprocess.DEVNULL).returncode != 0:
        return run.fail("the build failed")
    print(f"{run.name}: built in {time.monotonic() - start:.0f} s", flush=True)
    return True


def run_tests(run):
    """Runs the tests of one pass, in Meson's own words, and counts what it noted of each."""
    noted = run.folder / f"meson-logs/{run.name}-{run.name}.json"  # logbase and setup
    noted.unlink(missing_ok=True)  # never read the results of an earlier run
    start = time.monotonic()
    code = subprocess.run(["meson", "test", "-C", run.folder, "--no-rebuild", "--print-errorlogs",
                           "--setup", run.name, "--logbase", run.name,
                           # Some of them wait for most of their time: one more than cores.
                           "--num-processes", str(1 + (os.cpu_count() or 1)), *run.choice],
                          env=os.environ | run.variables, stdin=subprocess.DEVNULL).returncode
    for line in noted.read_text().splitlines() if noted.exists() else []:
        result = json.loads(line)
        run.count(result["result"], result["name"], result.get("stdout"))
    if not run.counts["passed"] or (code != 0 and not run.counts["failed"]):
        run.fail(f"meson test ended with code {code}, {run.counts['passed']} tests passed")
    print(f"{run.name}: tested in {time.monotonic() - start:.0f} s", flush=True)


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
    return sorted(entries, key=lambda entry: -entry["priority"])


def run_entry(entry, build, left):
    """A result in Meson's word, and what was printed. left: seconds of the budget; what these end
    is skipped."""
    limit = min(entry["timeout"], left)
    if limit <= 0:
        return "SKIP", "the budget was spent"
    try:  # in the build's folder, as Meson would: a command's paths may be relative to it
        done = subprocess.run(entry["cmd"], cwd=build, env=os.environ | entry["env"],
                              timeout=limit, check=False, **PIPED)
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")
        return ("SKIP", f"{said}\nthe budget was spent") if limit == left else ("TIMEOUT", said)
    except OSError as missing:
        return "FAIL", str(missing)
    return {0: "OK", SKIPPED: "SKIP"}.get(done.returncode, "FAIL"), done.stdout


def run_gpu(run, mpiexec, only, budget):
    """Runs what has `only` in its name and prints a table, and to gpu.log in the build all that was
    printed; or says why there is no GPU."""
    build = run.folder.resolve()
    entries = gpu_entries(build, mpiexec)
    probe = subprocess.run([build / "tests/gpu/test_kernels", "cuda", "--list-test-cases"],
                           stdout=subprocess.PIPE, text=True, check=False)
    if probe.returncode == SKIPPED:
        return print(fill(f"gpu: left out, {probe.stdout.strip()}; that is {len(entries)} tests "
                          "and benchmarks: kernels, chapters and NCCL on a GPU, "
                          "compute-sanitizer", 80))
    end, log = time.monotonic() + budget, (build / "gpu.log").open("w")
    for entry in (entry for entry in entries if only in entry["name"]):
        start = time.monotonic()
        result, said = run_entry(entry, build, end - start)
        seconds = time.monotonic() - start
        print(f"{entry['name'][:60]:<62}{result:<8}{seconds:>7.1f} s", flush=True)
        run.count(result, entry["name"], said)
        print(f"---- {entry['name']}\n{said}", file=log, flush=True)
        if result not in KINDS or any("benchmark" in suite for suite in entry["suite"]):
            print(indent("\n".join(said.splitlines()[-30:]), "  | "), flush=True)
    if not run.counts:
        run.fail("no test ran")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="the sanitizers and the long runs too")
    parser.add_argument("--gpu", action="store_true", help="what needs a GPU, and nothing else")
    parser.add_argument("--build", type=Path, default=Path("build"), help="Meson's build folder")
    parser.add_argument("--mpi", default="auto", help="auto, mpich or openmpi, for a new build")
    parser.add_argument("--carried", metavar="MPIEXEC", help="with --gpu: take a build made "
                        "elsewhere as it is, without Meson, with the launcher of the MPI here")
    parser.add_argument("--budget", type=float, metavar="SECONDS",
                        help="what needs a GPU and is not done by then is skipped; with --gpu 600")
    parser.add_argument("--only", default="", help="with --gpu: what has this in its name")
    options = parser.parse_args()
    if options.budget is None:
        options.budget = 600 if options.gpu else float("inf")
    total = Counter()
    for run in passes(options.build, options.all, options.gpu):
        if missing := [tool for tool in run.needs if not shutil.which(tool)]:
            run.count("SKIP", "all of it", f"it needs {', '.join(missing)}")
        elif options.carried or compiled(run, options.mpi):
            if run.name == "gpu":
                run_gpu(run, options.carried, options.only, options.budget)
            else:
                run_tests(run)
        total += run.counts
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0 if total["passed"] else SKIPPED


if __name__ == "__main__":
    finish(main, "tutorial: test: ")
