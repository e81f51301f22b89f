#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sanitized.py PROBE TOOL,... PROGRAM ARGUMENT...: runs a program under compute-sanitizer's tools.
It exits with 77 without compute-sanitizer, or if PROBE, the test of the kernels, finds no GPU."""
import shutil
import subprocess
import sys

SKIPPED = 77
probe, tools, *program = sys.argv[1:]
checker = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
    "compute-sanitizer")
found = subprocess.run([probe, "cuda", "--list-test-cases"], text=True, capture_output=True)
if not checker or found.returncode == SKIPPED:
    print(found.stdout.strip() if checker else "compute-sanitizer is not installed")
    sys.exit(SKIPPED)
# racecheck looks for races in our own kernels, not in cuBLAS's.
ours = ["--kernel-name", "kns=zero"] if tools == "racecheck" else []
sys.exit(max(subprocess.run([checker, "--tool", tool, "--error-exitcode", "1", *ours, *program])
             .returncode for tool in tools.split(",")))
