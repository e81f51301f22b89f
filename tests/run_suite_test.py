# SPDX-License-Identifier: MIT
"""run_suite.py on made-up builds: what it counts, what it says last, its exit code. Meson and Ninja
are scripts that leave the results which a test asks for."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("run_suite.py")
MESON = f"""#!{sys.executable}
import os, sys
from pathlib import Path
if sys.argv[1] == "setup":
    Path(sys.argv[2], "build.ninja").write_text("")
else:
    noted = Path(sys.argv[sys.argv.index("-C") + 1], "meson-logs/default-default.json")
    if os.environ["NOTED"]:
        noted.write_text(os.environ["NOTED"])
sys.exit(int(os.environ[f"{{sys.argv[1].upper()}}_CODE"]))
"""


@pytest.fixture
def suite(tmp_path):
    """Runs the suite over a build of such results, with such exit codes; returns the lines that it
    prints and its own code."""
    (tmp_path / "build/meson-logs").mkdir(parents=True)
    for name, script in (("meson", MESON), ("ninja", '#!/bin/sh\nexit "$NINJA_CODE"\n')):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    def run(results, *options, setup=0, ninja=0, test=0):
        noted = "\n".join(json.dumps({"name": f"test {i}", "result": result, "stdout": "no GPU"})
                          for i, result in enumerate(results))
        codes = {"SETUP_CODE": setup, "NINJA_CODE": ninja, "TEST_CODE": test}
        done = subprocess.run(
            [sys.executable, SUITE, "--build", tmp_path / "build", *options], text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            env=os.environ | {name: str(code) for name, code in codes.items()} |
            {"NOTED": noted, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
        return done.stdout.splitlines(), done.returncode
    run.build = tmp_path / "build"
    return run


PASSES = "2 passed, 0 failed, 1 skipped", 0
ONE_FAILS = "1 passed, 1 failed, 0 skipped", 1
NONE_RAN = "0 passed, 1 failed, 0 skipped", 1
# What Meson notes of each test, the codes with which it and Ninja end, the last line and the code.
RUNS = [
    (["OK", "EXPECTEDFAIL", "SKIP"], {}, *PASSES),
    *((["OK", result], {"test": 1}, *ONE_FAILS)
      for result in ("FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS")),
    (["OK"], {"test": 3}, *ONE_FAILS),  # a code that no result explains
    (["OK"], {"setup": 1}, *NONE_RAN), (["OK"], {"ninja": 1}, *NONE_RAN), ([], {}, *NONE_RAN),
    (["SKIP"], {}, "0 passed, 1 failed, 1 skipped", 1),
]


@pytest.mark.parametrize("results, codes, last, code", RUNS)
def test_what_is_counted(suite, results, codes, last, code):
    """And older results are not."""
    older = json.dumps({"name": "older", "result": "OK"})
    (suite.build / "meson-logs/default-default.json").write_text(older)
    lines, found = suite(results, **codes)
    assert (lines[-1], found) == (last, code)
    assert ("skipped in default: test 2: no GPU" in lines) == (results[2:] == ["SKIP"])


# ---- The list for a GPU --------------------------------------------------------------------------

def entry(name, priority, script, timeout=60):
    return {"name": name, "cmd": ["sh", "-c", script], "env": {}, "timeout": timeout,
            "suite": ["zero:gpu"], "priority": priority}


@pytest.fixture
def gpu_suite(suite):
    """The same of such entries, with a GPU or without; and each entry's result."""
    def run(entries, *options, probe=0):
        finds_a_gpu = suite.build / "tests/gpu/test_kernels"
        finds_a_gpu.parent.mkdir(parents=True)
        finds_a_gpu.write_text(f"#!/bin/sh\necho no driver\nexit {probe}\n")
        finds_a_gpu.chmod(0o755)
        (suite.build / "meson-info").mkdir()
        for name, content in {"meson-info": {"directories": {"build": "/none", "source": "/none"}},
                              "intro-tests": entries, "intro-benchmarks": []}.items():
            (suite.build / f"meson-info/{name}.json").write_text(json.dumps(content))
        lines, code = suite([], "--gpu", "--carried", "mpiexec", *options)
        results = {line[:62].strip(): line[62:].split()[0] for line in lines if "   " in line}
        return lines, list(results.items()), code
    return run


def test_entries_run_in_order_until_the_budget_is_spent(gpu_suite):
    lines, results, code = gpu_suite(
        [entry("never", 0, "exit 1"), entry("long", 1, "sleep 60"), entry("first", 2, "exit 0")],
        "--budget", "2")
    assert results == [("first", "OK"), ("long", "SKIP"), ("never", "SKIP")]
    assert (lines[-1], code) == ("1 passed, 0 failed, 2 skipped", 0)


def test_entries_that_fail_are_late_or_are_not_there(suite, gpu_suite):
    """They start in the build, wherever the suite is called."""
    gone = entry("gone", 0, "") | {"cmd": ["./none"]}
    lines, results, code = gpu_suite([
        entry("fails", 4, "echo why; exit 1"), gone, entry("late", 3, "sleep 60", 1),
        entry("none", 2, "exit 77"), entry("relative", 1, "test -d meson-info")])
    assert results == [("fails", "FAIL"), ("late", "TIMEOUT"), ("none", "SKIP"),
                       ("relative", "OK"), ("gone", "FAIL")]
    assert "  | why" in lines and (lines[-1], code) == ("1 passed, 3 failed, 1 skipped", 1)
    assert "---- fails\nwhy\n" in (suite.build / "gpu.log").read_text()


def test_without_a_gpu_nothing_is_started(gpu_suite):
    lines, results, code = gpu_suite([entry("one", 0, "exit 1")], probe=77)
    assert lines[0].startswith("gpu: left out, no driver") and not results and code == 77
