# SPDX-License-Identifier: MIT
"""`./tutorial demo`: its verdicts on made-up runs, of which one is wrong, and how it is stopped."""
import contextlib
import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from compare_test import change
from made_up import made, text_of
from programs import CHAPTERS, ROOT
import demo
import report
import runs

FP32, BF16 = "fp32: 02 to 07 are identical to the last bit", \
    "bf16: 03 to 07 are identical to the last bit"
ALONE = "fp32: 01 with --accumulate 4 has the bits of 02 on 4 ranks"
BYTES = "bytes, resident and peak, equal their formulas in every run"
PLACES = "07 holds what 06 does, in two places, and its staging"
CHAIN = "fp32: 01 going the same way has the bits of the chain of checkpoints"
SENT = "elements sent and bytes copied equal their formulas"
RECORDED = "the same bits as the recorded runs"
TOO_SMALL = runs.Failure("--device-memory allows fewer", 6)


@pytest.fixture
def verdicts(folder, monkeypatch, capsys):
    """Runs the demo on logs that are made up instead of programs that are started, all of them
    changed by `alter`. Returns its exit code, {claim: yes or NO}, and its summary."""
    def of(alter, refusal=TOO_SMALL):
        def output_of(command):
            given = dict(pairwise(command))
            chapter = next(path.name for path in map(Path, command) if path.name in CHAPTERS)
            if chapter == "06_zero3" and "--device-memory" in given and refusal:
                raise refusal
            log = Path(given["--log"])
            lines = made(chapter, int(given.get("-n", 1)), given.get("--dtype", "fp32"),
                         accumulate=int(given.get("--accumulate", 1)))
            number = lines[0]["run"]["ranks"] * lines[0]["run"]["options"]["accumulate"]
            lines[-1]["summary"]["layer_digests"] = [f"{number} from {given.get('--resume')}"]
            alter(log.stem, lines)
            log.write_text(text_of(lines))

        for chapter in CHAPTERS:
            (folder / chapter).mkdir()
            (folder / chapter / chapter).touch()
        monkeypatch.setattr(runs, "output_of", output_of)
        monkeypatch.setattr(report, "write", lambda *_: None)
        monkeypatch.setattr(demo, "first_line", lambda *_: None)
        monkeypatch.setattr(sys, "argv", ["demo.py", "--mpiexec", "sh", "--steps", "4", "--build",
                                          str(folder), "--out", str(folder / "out")])
        code = demo.main()
        lines = capsys.readouterr().out.splitlines()
        # With what ./tutorial and the page say, 60 lines of a terminal, but for what is wrong.
        assert len(lines) <= 55 + code and (code or all(
            len(line) <= 80 or str(folder) in line for line in lines))
        said = [line.rpartition(":") for line in lines]
        return code, {claim: word.strip() for claim, _, word in said
                      if word.strip() in ("yes", "NO")}, \
            json.loads((folder / "out/summary.json").read_text())

    return of


CLAIMS = [FP32, ALONE, CHAIN, BF16, BYTES, PLACES, SENT]


@pytest.mark.parametrize("digest, code, word", [(None, 0, None), ("ab", 0, "yes"), ("cd", 1, "NO")])
def test_all_holds(verdicts, digest, code, word):
    """And where all runs have a recorded digest, it is compared."""
    def as_recorded(log, lines):
        lines[-1]["summary"] |= {"recorded": digest if log == "05_zero2_bf16" else digest and "ab"}

    found, said, summary = verdicts(as_recorded)
    assert said == dict.fromkeys(CLAIMS, "yes") | ({RECORDED: word} if word else {})
    assert found == code and summary["holds"] == (code == 0) and len(summary["runs"]) == 12


def fewer_on_the_host(lines):
    held = lines[-1]["summary"]["host_memory"]["optimizer"]
    held |= {what: bytes - 8 for what, bytes in held.items()}


def other_loss(lines):
    lines[2]["loss"] = 3.0


@pytest.mark.parametrize("name, alter, claim", [
    *((f"{chapter}_fp32", ["digest"], FP32) for chapter in CHAPTERS[2:]),
    *((f"{chapter}_bf16", ["digest"], BF16) for chapter in CHAPTERS[3:]),
    ("01_adam_fp32", ["digest"], ALONE), ("01_adam_5", ["digest"], CHAIN),
    ("05_zero2_10", ["layer_digests", 0], CHAIN), ("07_offload_20", other_loss, CHAIN),
    ("06_zero3_fp32", other_loss, FP32),
    ("04_zero1_bf16", ["memory", "gradients", "resident"], BYTES),
    ("07_offload_bf16", fewer_on_the_host, PLACES),
    ("05_zero2_bf16", ["traffic", "phases", "backward", "counted"], SENT),
    ("07_offload_fp32", ["bus", "to_host", "counted"], SENT)])
def test_one_run_is_wrong(verdicts, name, alter, claim):
    def altered(log, lines):
        if log == name:
            alter(lines) if callable(alter) else change(lines, alter)

    code, said, summary = verdicts(altered)
    assert code == 1 and not summary["holds"]
    assert [text for text, word in said.items() if word == "NO"] == [claim]
    assert list(said) == CLAIMS


@pytest.mark.parametrize("refusal, words", [
    (runs.Failure("--device-memory: a rank is lost", 5), "a rank is lost"),
    (runs.Failure("no room", 6), "no room"), (None, "should not have fitted: mpirun -n 4")])
def test_a_device_that_is_not_too_small(verdicts, refusal, words):
    with pytest.raises(runs.Failure, match=words):
        verdicts(lambda *_: None, refusal=refusal)


def ranks_of(folder):
    """How many processes write logs there, a launcher among them."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            count += f"--log\0{folder}".encode() in path.read_bytes()
    return count


# The chapters backwards, so that the first run is on ranks.
BACKWARDS = "import runpy, runs; runs.CHAPTERS.reverse(); runpy.run_module('demo', {}, '__main__')"


def test_no_rank_outlives_a_demo_that_is_told_to_stop(programs, folder):
    started = subprocess.Popen([sys.executable, "-c", BACKWARDS, "--ranks", "2", "--steps", "20000",
                                "--build", programs.build, "--mpiexec", programs.mpiexec, "--out",
                                folder], cwd=ROOT / "tools", stdout=subprocess.DEVNULL)
    while ranks_of(folder) < 3:
        assert started.poll() is None, "it has ended before"
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=30) == 128 + signal.SIGTERM
    late = time.monotonic() + 10
    while ranks_of(folder):
        assert time.monotonic() < late, "a rank lives on"
        time.sleep(0.05)


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
