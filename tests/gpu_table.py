#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs all that needs a GPU, tests and benchmarks, and prints one table.

It takes the list from what Meson noted when it configured the build, and needs no Meson to run it:
a build made elsewhere will do, with --mpiexec where MPI lies in another place here.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SKIPPED = 77
HERE = Path(__file__).resolve().parent.parent


def why_no_gpu(build):
    """Empty where the build's programs see a GPU."""
    probe = subprocess.run([str(build / "tests/gpu/test_kernels"), "--list-test-cases"], text=True,
                           capture_output=True, check=False)
    return probe.stdout.strip() if probe.returncode == SKIPPED else ""


def entries(build, mpiexec=None):
    """Tests and then benchmarks of the suite `gpu`, as Meson noted them, their paths made ours."""
    noted = build / "meson-info"
    folders = json.loads((noted / "meson-info.json").read_text())["directories"]
    listed = [entry for name in ("tests", "benchmarks")
              for entry in json.loads((noted / f"intro-{name}.json").read_text())]

    def ours(word):
        if mpiexec and Path(word).name.startswith(("mpiexec", "mpirun")):
            return mpiexec
        if Path(word).name.startswith("python"):
            return sys.executable  # which may have PyTorch where the build's has not
        return word.replace(folders["build"], str(build)).replace(folders["source"], str(HERE))

    for entry in listed:
        if any(suite.split(":")[-1] == "gpu" for suite in entry["suite"]):
            yield entry | {"cmd": [ours(word) for word in entry["cmd"]]}


def run(entry):
    """In the form in which Meson notes a result."""
    start = time.monotonic()
    environment = os.environ | entry["env"]
    try:
        done = subprocess.run(entry["cmd"], env=environment, text=True, errors="replace",
                              capture_output=True, timeout=entry["timeout"], check=False,
                              stdin=subprocess.DEVNULL)
        code, out, err = done.returncode, done.stdout, done.stderr
        result = {0: "OK", SKIPPED: "SKIP"}.get(code, "FAIL")
    except subprocess.TimeoutExpired as late:
        code, result = None, "TIMEOUT"
        out, err = ((text or b"").decode(errors="replace") for text in (late.stdout, late.stderr))
    except OSError as missing:
        code, result, out, err = None, "FAIL", "", str(missing)
    return {"name": entry["name"], "command": entry["cmd"], "result": result, "returncode": code,
            "duration": time.monotonic() - start, "stdout": out, "stderr": err}


def lines_of(entry, result):
    """A row of the table, with what a benchmark printed, or the end of what a failed test did."""
    lines = [f"{result['name'][:60]:<62}{result['result']:<8}{result['duration']:>7.1f} s"]
    benchmark = any("benchmark" in suite for suite in entry["suite"])
    if benchmark or result["result"] not in ("OK", "SKIP"):
        said = f"{result['stdout']}{result['stderr']}".rstrip()
        lines += [f"  | {line}" for line in said.splitlines()[-25:]]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=Path("build"), help="Meson's build folder")
    parser.add_argument("--mpiexec", help="the launcher of the MPI here")
    parser.add_argument("--only", default="", help="run what has this in its name")
    parser.add_argument("--log", type=Path, help="write everything that was printed there")
    options = parser.parse_args()
    build = options.build.resolve()
    if why := why_no_gpu(build):
        print(f"nothing was run: {why}")
        return SKIPPED
    counts = {"OK": 0, "SKIP": 0, "failed": 0}
    wanted = [entry for entry in entries(build, options.mpiexec) if options.only in entry["name"]]
    for entry in wanted:
        result = run(entry)
        counts[result["result"] if result["result"] in counts else "failed"] += 1
        print("\n".join(lines_of(entry, result)), flush=True)
        if options.log:
            with options.log.open("a") as log:
                log.write(f"==== {' '.join(result['command'])}\n")
                log.write(f"{result['stdout']}{result['stderr']}\n")
    print(f"{counts['OK']} passed, {counts['failed']} failed, {counts['SKIP']} skipped")
    return 1 if counts["failed"] or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
