# SPDX-License-Identifier: MIT
"""Tests `./tutorial demo`: each of its claims fails on recorded runs of which one is wrong; a demo
that is stopped leaves no program behind; a demo takes a model of the reader's size."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from recorded import LOGS, changed, recorded, text_of

import demo
import llama_text
import trial
from runs import CHAPTERS, ROOT, Run

CLAIMS = FP32, ALONE, CHAIN, BF16, BYTES, PLACES, SENT = [
    "fp32: 02 to 08 are identical to the last bit",
    "fp32: 01 with --accumulate 2 has the bits of 02 on 2 ranks",
    "fp32: 02, 05 to 08 resume one another's checkpoints with 01's bits",
    "bf16: 03 to 08 are identical to the last bit",
    "bytes held all the time, and at the peak, equal their formulas",
    "07 and 08 hold 06's bytes elsewhere, and add only room for copies",
    "elements sent and bytes copied equal their formulas"]
RECORDED = "the same bits as the recorded runs"
NAMES = sorted((name for name in LOGS if name[-4:] in ("fp32", "bf16")),
               key=lambda name: (name[-4:] == "bf16", name))


@pytest.fixture
def judged(folder):
    """Returns a function that changes one run's log, or all, and returns the demo's claims and
    those of them that then do not hold."""
    def of(name=None, change=lambda lines: None):
        runs = []
        for other in NAMES:
            lines = recorded(other)
            if name in (other, "all"):
                change(lines)
            (folder / other).write_text(text_of(lines))
            runs.append(Run(folder / other, words=["--own", "--quiet"], label=other))
            runs[-1].read()
        found = dict(demo.claims(runs, 2, [(runs[NAMES.index("05_zero2_fp32")], runs[0])]))
        return list(found), [claim for claim, problems in found.items() if problems]

    return of


def test_all_holds(judged):
    assert judged() == (CLAIMS, [])


@pytest.mark.parametrize("name, names, wrong", [
    ("05_zero2_fp32", ["layer_digests", 0], [FP32, CHAIN]),
    ("01_adam_fp32", ["layer_digests", 7], [ALONE, CHAIN]),
    ("08_infinity_bf16", ["layer_digests", 0], [BF16]),
    ("04_zero1_bf16", ["memory", "gradients", "peak"], [BYTES]),
    ("07_offload_bf16", ["host_memory", "optimizer", "resident"], [BYTES, PLACES]),
    ("08_infinity_fp32", ["disk", "write", "counted"], [SENT])])
def test_one_run_is_wrong(judged, name, names, wrong):
    assert judged(name, lambda lines: changed(lines, *names)) == (CLAIMS, wrong)


@pytest.mark.parametrize("name, gpu, digest, found", [
    ("all", None, "ab", ([*CLAIMS, RECORDED], [])),
    ("all", None, "ef", ([*CLAIMS, RECORDED], [RECORDED])),
    ("all", "a GPU", "ab", (CLAIMS, []))])
def test_recorded_digests(judged, monkeypatch, folder, name, gpu, digest, found):
    """Digests are recorded of runs on a CPU: runs on a GPU are not compared with them."""
    rows = [{"program": lines[0]["run"]["chapter"], "ranks": lines[0]["run"]["ranks"],
             "options": "--own", "digest": "ab"} for lines in map(recorded, NAMES)]
    (folder / "notes").mkdir()
    (folder / "notes/digests.json").write_text(json.dumps(rows))
    monkeypatch.setattr(demo, "ROOT", folder)

    def change(lines):
        lines[0]["run"]["gpu"] = gpu
        lines[-1]["summary"]["digest"] = digest

    assert judged(name, change) == found


def test_nothing_outlives_a_demo_that_is_told_to_stop(folder):
    """The program that the demo waits for is a shell script."""
    for chapter in CHAPTERS:
        program, told = folder / chapter / chapter, folder / "pid"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho $$ >{told}.new\nmv {told}.new {told}\nexec sleep 60\n")
        program.chmod(0o755)
    with subprocess.Popen([sys.executable, "-B", ROOT / "tools/demo.py", "--build", folder,
                           "--mpiexec", "sh", "--out", folder]) as job:
        while not told.exists():
            assert job.poll() is None, "it has ended before"
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
    assert job.returncode == 128 + signal.SIGTERM
    late = time.monotonic() + 10
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < late:
            os.kill(int(told.read_text()), 0)
            time.sleep(0.05)
        raise AssertionError("the program lives on")


@pytest.mark.parametrize("then", ("", "\n"))
@pytest.mark.parametrize("terminal", (True, False))
def test_what_lasts_is_told(monkeypatch, capsys, terminal, then):
    """A terminal shows the seconds, the count and the time left; a file gets one line."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with trial.progress("a", lambda: (1, 4), then):
        time.sleep(1.1 * terminal)
    *lines, last = capsys.readouterr().out.split("\r")
    if not terminal:
        assert (lines, last) == ([], "a" + then)
        return
    assert [line.removesuffix("\033[K") for line in lines[:3]] == [
        "", "a: 0 s, 1 of 4", "a: 1 s, 1 of 4, about 3 s left"]
    assert last == "\033[K" + "a" * (not then)


def test_a_model_of_the_readers_size_on_as_many_ranks_as_gpus(programs, folder):
    """A script in place of nvidia-smi lists two GPUs. The programs of this build use the CPU."""
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: one\necho GPU 1: other\n")
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "out/saved/step_3").mkdir(parents=True)  # of an earlier demo
    done = programs.start([sys.executable, ROOT / "tools/demo.py", "--build", programs.build,
                           "--mpiexec", programs.mpiexec, "--task", "llama", "--layers", "3",
                           "--width", "16", "--batch", "4", "--steps", "3", "--out",
                           folder / "out"], PATH=f"{folder}:{os.environ['PATH']}")
    assert done.code == 0, done.out + done.err
    assert "What all chapters' equal fp32 weights write after 3 steps:\n  The " in done.out
    run = Run(folder / "out/06_zero3_bf16.jsonl")
    run.read()
    assert (run.ranks, len(run.steps)) == (2, 3)
    assert {name: run.options[name] for name in ("task", "layers", "width", "batch")} == {
        "task": "llama", "layers": 3, "width": 16, "batch": 4}


def test_on_a_simulated_gpu_that_the_ranks_share(programs, folder):
    for chapter in CHAPTERS:
        (folder / chapter).mkdir()
        (folder / chapter / chapter).symlink_to(
            programs.build / f"tests/programs/simulated_gpu_{chapter}")
    done = programs.start([sys.executable, ROOT / "tools/demo.py", "--build", folder,
                           "--mpiexec", programs.mpiexec, "--ranks", "2", "--steps", "5", "--out",
                           folder / "out"], SIMULATED_GPUS="1")
    assert done.code == 0, done.out
    assert '"gpu":"simulated GPU"' in (folder / "out/06_zero3_bf16.jsonl").read_text()


def test_a_saved_llama_writes(programs, folder):
    """Without a learning rate it saves the first weights, which NumPy makes too: equal texts."""
    text = {}
    for lr in ("0", "0.01"):
        done = programs.run(2, "06_zero3", "--task", "llama", "--width", "8", "--heads", "2",
                            "--sequence", "8", "--seed", "3", "--steps", "1", "--batch", "1",
                            "--dtype", "fp32", "--lr", lr, "--save", folder / lr)
        assert done.code == 0, done.err
        lines = [*llama_text.before_and_after(folder / lr / "step_1/model.safetensors", "its", 1)]
        before, after = (lines.index(f"What its weights write {when}:")
                         for when in ("before training", "after 1 steps"))
        text[lr] = lines[before + 1:after - 1], lines[after + 1:]
    assert text["0"][0] == text["0"][1] == text["0.01"][0] != text["0.01"][1]
    assert len(" ".join(map(str.strip, text["0"][0]))) > 180  # the prompt has 4, the model adds 200
