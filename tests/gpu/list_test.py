#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""list_test.py RUN_SUITE BUILD: the list for a GPU: order, budget and length of a made-up one, the
length of BUILD's."""
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path


def entry(name, priority, script):
    return {"name": name, "cmd": ["sh", "-c", script], "env": {}, "timeout": 60,
            "suite": ["zero:gpu"], "priority": priority}


def last_lines(entries):
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "tests/gpu/test_kernels")
        probe.parent.mkdir(parents=True)
        probe.write_text("#!/bin/sh\n")  # finds a GPU
        probe.chmod(0o755)
        info = {"meson-info": {"directories": {"build": "/none", "source": "/none"}},
                "intro-tests": entries, "intro-benchmarks": []}
        for name, content in info.items():
            path = Path(folder, "meson-info", f"{name}.json")
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        done = subprocess.run([sys.argv[1], "--gpu", "--carried", "mpiexec", "--budget", "2",
                               "--build", folder], text=True, capture_output=True)
    return [line.split()[:2] for line in (done.stdout + done.stderr).splitlines() if line]


lines = last_lines([entry("never", 0, "exit 1"), entry("long", 1, "sleep 60"),
                    entry("first", 2, "exit 0")])
assert lines[:3] == [["first", "OK"], ["long", "SKIP"], ["never", "SKIP"]], lines
assert lines[-1] == ["1", "passed,"], lines
lines = last_lines([entry("one", 0, "exit 0")] * 26)
assert lines == [["the", "suite"]], lines
runpy.run_path(sys.argv[1])["gpu_entries"](Path(sys.argv[2]), None)  # exits if they are too many
