# SPDX-License-Identifier: MIT
"""`style.py TOOL BUILD` runs one of clang-format, ruff and clang-tidy over the sources.

It ends with 0 if the tool has nothing to say, and with 77, which Meson knows as skipped, if the
tool is missing. It uses only version 14 of clang-format, which Debian 12 has, because each version
formats a little differently. clang-tidy reads the eight chapters with the headers that they
include, and common/memory, because that takes only a minute on a quiet core; `ninja clang-tidy`
reads all files."""
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = 77
# {tool: (names it may be installed under, major versions that may be used, its name in messages)}.
TOOLS = {"clang-format": (["clang-format-14", "clang-format"], [14], "clang-format 14"),
         "clang-tidy": ([*(f"clang-tidy-{n}" for n in range(16, 30)), "clang-tidy"], range(16, 99),
                        "clang-tidy 16 or later"),
         "ruff": (["ruff"], [0], "ruff")}  # e.g. 0.17


def found(tool):
    """Returns the path of the tool, or None."""
    names, versions, _ = TOOLS[tool]
    for path in filter(None, map(shutil.which, names)):
        said = subprocess.run([path, "--version"], text=True, stdout=subprocess.PIPE).stdout
        version = re.search(r"(\d+)\.\d+\.\d+", said)
        if version and int(version[1]) in versions:
            return path
    return None


def sources(*patterns):
    """Returns the names of git's files of these patterns."""
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, text=True, check=True,
                          stdout=subprocess.PIPE).stdout.split()


def tidy(path, build):
    """Runs clang-tidy, one process per core, each with one file. Returns the exit codes."""
    def check(name):
        done = subprocess.run([path, "--quiet", "-p", build, name], cwd=ROOT, text=True,
                              capture_output=True)
        print(done.stdout, done.stderr if done.returncode else "", end="", flush=True)
        return done.returncode

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [*pool.map(check, sources("0*/main.cpp", "common/memory/*.cpp"))]


def main(tool, build):
    if not (ROOT / ".git").exists():
        print("only git says which files are sources")
        return SKIPPED
    if not (path := found(tool)):
        print(f"there is no {TOOLS[tool][2]} here")
        return SKIPPED
    if tool == "clang-tidy":
        return max(tidy(path, build))
    command = [path, "check", "--no-cache", "."] if tool == "ruff" else [
        path, "--dry-run", "--Werror", *sources("*.cpp", "*.hpp", "*.h", "*.cu", "*.cuh")]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
