#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sanitized.py TOOLS PROGRAM ARGUMENTS...: under compute-sanitizer, where it and a GPU are here."""
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77


def main():
    tools, program, *arguments = sys.argv[1:]
    checker = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
        "compute-sanitizer")
    if not checker:
        print("compute-sanitizer is not installed")
        return SKIPPED
    probe = subprocess.run([Path(program).with_name("test_kernels"), "cuda", "--list-test-cases"],
                           text=True, capture_output=True, check=False)
    if probe.returncode == SKIPPED:
        print(probe.stdout.strip())
        return SKIPPED
    # Races are looked for in our own kernels, not in cuBLAS's.
    ours = ["--kernel-regex", "kns=zero"] if tools == "racecheck" else []
    return max(subprocess.run([checker, "--tool", tool, "--error-exitcode", "1", *ours, program,
                               *arguments], check=False).returncode for tool in tools.split(","))


if __name__ == "__main__":
    sys.exit(main())
