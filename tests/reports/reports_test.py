# SPDX-License-Identifier: MIT
"""Tries on our programs what others reported of programs like these: each row of cases.json is a
report.

For each row an empty folder gets its `files`, each by an expression over names_of(), and the shell
runs its line. There `L FILE` trains a Llama from the weights in FILE, `T FILE N` one on the tokens
in FILE, which are below N; both write a log. `plan` is the planner. `code` is the exit code, the
expressions of `says` match what is printed, and `loss` are the log's first losses, to the digits
that are given, or "base": each is exactly that of a run from the unchanged weights, `base`.
"""
import json
import os
import re
import shlex
import struct
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
import pytest
from programs import CHAPTERS, DATA, OURS, ROOT, read_log
from tutorial_test import Copy

ROWS = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"), parse_float=Decimal)
PT = {"format": "pt"}  # the metadata of transformers
BASE = {"files": {"m": "base", "config.json": "config()"}, "run": "L m"}
SHAPE = ("06_zero3 --task llama --width 16 --layers 1 --heads 2 --kv-heads 1 --hidden 16 "
         "--sequence 8 --batch 2 --steps 3 --dtype fp32 --quiet --log log ")
SCRIPTS = {"L": SHAPE + '--init "$@"', "T": SHAPE + '--tokens "$1" --vocab "$2"',
           "plan": 'tutorial plan "$@"'}


def names_of(folder):
    """Returns {name: value} for the rows' expressions: (name, dtype, shape, bytes) of tensors that
    a run in `folder` saved, functions that make files. `entries` override edited()'s header."""
    saved = folder / "saved/step_3"
    file, said = ((saved / name).read_bytes() for name in ("model.safetensors", "config.json"))
    start = 8 + struct.unpack("<Q", file[:8])[0]
    header, data = json.loads(file[8:start]), file[start:]
    del header["__metadata__"]  # other programs write no digests
    tensors = sorted(((name, at["dtype"], at["shape"], data[slice(*at["data_offsets"])])
                      for name, at in header.items()), key=lambda t: header[t[0]]["data_offsets"])

    def raw(header, data=b""):
        return struct.pack("<Q", len(header)) + header.encode() + data

    def edited(entries=None, metadata=PT, data=None, drop=(), append=()):
        told, body = {"__metadata__": metadata}, b""
        for name, dtype, shape, own in [*(t for t in tensors if t[0] not in drop), *append]:
            told[name] = {"dtype": dtype, "shape": shape,
                          "data_offsets": [len(body), len(body) + len(own)]}
            body += own
        told = {name: at for name, at in (told | (entries or {})).items() if at is not None}
        return raw(json.dumps(told), body if data is None else data)

    def config(**changes):  # `...` removes a key
        return json.dumps({key: value for key, value in (json.loads(said) | changes).items()
                           if value is not ...}).encode()

    return {"np": np, "json": json, "struct": struct, "header": header, "data": data, "raw": raw,
            "tensors": tensors, "edited": edited, "base": edited(), "config": config,
            "tokens": np.arange(2000) * 7919 % 50257, "deep": lambda n: "[" * n + "]" * n,
            "log": (folder / "log").read_bytes(), "trace": (folder / "trace").read_bytes()}


@pytest.fixture(scope="module")
def started(programs):
    """Runs all rows, and last BASE, on all cores. Yields a future of (folder, outcome) for each."""
    def start(line, folder):  # a line that hangs may ignore all signals but SIGKILL
        return programs.start(["timeout", "-s", "KILL", "40", "sh", "-c", line], folder,
                              PATH=f"{home}:{os.environ['PATH']}")

    def tried(row):
        folder = Path(mkdtemp(dir=home))
        for name, content in row.get("files", {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(eval(content, names))
        return folder, start(row["run"], folder)

    with TemporaryDirectory(prefix="zero_") as made, ThreadPoolExecutor(os.cpu_count()) as pool:
        home = Path(made)
        commands = {name: programs.command(0, name) for name in CHAPTERS} | {
            "mpirun": [programs.mpiexec], "tutorial": [str(Copy(home).script)]}
        for name in (*commands, *SCRIPTS):
            line = SCRIPTS.get(name) or shlex.join(commands[name]) + ' "$@"'
            (home / name).write_text(f"#!/bin/sh\nexec {line}\n")
            (home / name).chmod(0o755)
        ran = start(SHAPE + "--save saved --trace trace", home)
        assert ran.code == 0, ran
        names = names_of(home)
        yield [pool.submit(tried, row) for row in (*ROWS, BASE)]


@pytest.mark.parametrize("at", range(len(ROWS)), ids=[f"{r['source']}: {r['what']}" for r in ROWS])
def test_a_row_ends_as_it_says(started, at):
    """A refusal is one sentence that a terminal can show. If data are refused, there is no log."""
    row, (folder, came) = ROWS[at], started[at].result()
    printed = came.out + came.err
    assert came.code == row["code"], came
    assert not [words for words in row.get("says", []) if not re.search(words, printed, re.M)], came
    assert not re.search("Traceback|[^ -~\n\t\r\u00a0-\uffff]", printed), came
    said = [line for line in came.err.splitlines() if re.match(f"tutorial: |{OURS.pattern}", line)]
    assert bool(came.code) <= len(said) <= 1 and all(len(line) < 400 for line in said), came
    assert came.code != DATA or not (folder / "log").exists()
    if rights := row.get("loss"):
        losses, base = ([Decimal(step["loss"]) for step in read_log(where / "log")[1]]
                        for where in (folder, started[-1].result()[0]))
        for loss, right in zip(losses, base if rights == "base" else rights):
            assert abs(loss - right) <= Decimal(1).scaleb(right.as_tuple().exponent) / 2, losses


def test_the_page_counts_the_reports():
    reports = {report for row in ROWS for report in row["source"].split(", ")}
    assert f"**{len(reports)} reports**" in (ROOT / "notes/tested.md").read_text("utf-8")
