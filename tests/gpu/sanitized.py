#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sanitized.py PROBE TOOLS PROGRAM ARGUMENTS...: a program under compute-sanitizer, where that is
installed and PROBE, the kernels' test, finds a GPU."""
import shutil
import subprocess
import sys

SKIPPED = 77


def main():
    probe, tools, program, *arguments = sys.argv[1:]
    checker = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
        "compute-sanitizer")
    if not checker:
        print("compute-sanitizer is not installed")
        return SKIPPED
    found = subprocess.run([probe, "cuda", "--list-test-cases"], text=True, capture_output=True,
                           check=False)
    if found.returncode == SKIPPED:
        print(found.stdout.strip())
        return SKIPPED
    # Races are looked for in our own kernels, not in cuBLAS's.
    ours = ["--kernel-name", "kns=zero"] if tools == "racecheck" else []
    return max(subprocess.run([checker, "--tool", tool, "--error-exitcode", "1", *ours, program,
                               *arguments], check=False).returncode for tool in tools.split(","))


if __name__ == "__main__":
    sys.exit(main())
