# SPDX-License-Identifier: MIT
"""run_suite.py on made-up builds: what it counts, what it says last, its exit code."""
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import run_suite


@pytest.fixture
def suite(tmp_path, monkeypatch, capsys):
    """Runs the suite over a build; returns the lines that it prints and its own code."""
    def run(*options):
        monkeypatch.setattr(sys, "argv", ["run_suite.py", "--build", str(tmp_path), *options])
        code = run_suite.main()
        return capsys.readouterr().out.splitlines(), code
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
    (["SKIP"], {}, "0 passed, 1 failed, 1 skipped", 1)]


@pytest.mark.parametrize("results, codes, last, code", RUNS)
def test_what_is_counted(suite, tmp_path, monkeypatch, results, codes, last, code):
    """And older results are not."""
    def note(*names_and_results):
        (tmp_path / "meson-logs/default-default.json").write_text("\n".join(
            json.dumps({"name": name, "result": result, "stdout": "no GPU"})
            for name, result in names_and_results))

    def start(command, **_):
        what = command[1] if command[0] == "meson" else command[0]
        if what == "test" and results:
            note(*((f"test {i}", result) for i, result in enumerate(results)))
        return SimpleNamespace(returncode=codes.get(what, 0), stdout="")

    (tmp_path / "meson-logs").mkdir()
    note(("older", "OK"))
    monkeypatch.setattr(subprocess, "run", start)
    lines, found = suite()
    assert (lines[-1], found) == (last, code)
    assert ("skipped in default: test 2: no GPU" in lines) == (results[2:] == ["SKIP"])


def entry(name, priority, script, timeout=60):
    return {"name": name, "cmd": ["sh", "-c", script], "env": {"WORD": "1"}, "timeout": timeout,
            "suite": ["zero:gpu"], "priority": priority}


@pytest.fixture
def gpu_suite(suite, tmp_path):
    """The same of such entries, with a GPU or without; and each entry's result."""
    def run(entries, *options, probe=0):
        finds_a_gpu = tmp_path / "tests/gpu/test_kernels"
        finds_a_gpu.parent.mkdir(parents=True)
        finds_a_gpu.write_text(f"#!/bin/sh\necho no driver\nexit {probe}\n")
        finds_a_gpu.chmod(0o755)
        (tmp_path / "meson-info").mkdir()
        for name, content in {"meson-info": {"directories": {"build": "/none", "source": "/none"}},
                              "intro-tests": entries[:1], "intro-benchmarks": entries[1:]}.items():
            (tmp_path / f"meson-info/{name}.json").write_text(json.dumps(content))
        lines, code = suite("--gpu", "--carried", "mpiexec", *options)
        results = {line[:62].strip(): line[62:].split()[0] for line in lines if "   " in line}
        return lines, list(results.items()), code
    return run


def test_entries_run_in_order_until_the_budget_is_spent(gpu_suite):
    lines, results, code = gpu_suite(
        [entry("never", 0, "exit 1"), entry("long", 1, "sleep 60"), entry("first", 2, "exit 0")],
        "--budget", "2")
    assert results == [("first", "OK"), ("long", "SKIP"), ("never", "SKIP")]
    assert (lines[-1], code) == ("1 passed, 0 failed, 2 skipped", 0)


def test_entries_that_fail_are_late_or_are_not_there(gpu_suite, tmp_path):
    """They start in the build, wherever the suite is called."""
    gone = entry("gone", 0, "") | {"cmd": ["./none"]}
    lines, results, code = gpu_suite([
        entry("fails", 4, "echo why; exit 1"), gone, entry("late", 3, "sleep 60", 1),
        entry("none", 2, "exit 77"),
        entry("relative", 1, 'test -d /none/meson-info -a "$WORD" = 1')])
    assert results == [("fails", "FAIL"), ("late", "TIMEOUT"), ("none", "SKIP"),
                       ("relative", "OK"), ("gone", "FAIL")]
    assert "  | why" in lines and (lines[-1], code) == ("1 passed, 3 failed, 1 skipped", 1)
    assert "---- fails\nwhy\n" in (tmp_path / "gpu.log").read_text()


def test_without_a_gpu_nothing_is_started(gpu_suite):
    lines, results, code = gpu_suite([entry("one", 0, "exit 1")], probe=77)
    assert lines[0].startswith("gpu: left out, no driver") and not results and code == 77


def test_without_a_gpu_each_entry_says_so(programs):
    if not programs.why_no_gpu():
        pytest.skip("there is a GPU")
    entries = run_suite.gpu_entries(programs.build, programs.mpiexec)
    assert entries
    for each in entries:
        result, said = run_suite.run_entry(each, programs.build, float("inf"))
        assert result == "SKIP", f"{each['name']}: {said}"
