# SPDX-License-Identifier: MIT
"""Tests the page of ./tutorial watch. notes/step.html is what today's programs make. In a browser
the page shows, event by event, what they recorded, and for a model what ./tutorial plan says."""
import html
import json
import re
import shutil
import subprocess
import sys

import pytest
from page_reader import ROOT

import watch
from recording import recording
from runs import CHAPTERS, KINDS, PLACES, memory_of, output_of

MADE = watch.MADE.read_text()
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
# Where the page's sliders stand: params is a power of ten, ranks and accumulate are powers of two.
SLIDERS = [{"params": 9.845, "layers": 32, "ranks": 3, "accumulate": 0, "plan-dtype": "bf16"},
           {"params": 8.18, "layers": 7, "ranks": 2, "accumulate": 2, "plan-dtype": "fp32"},
           {"params": 6, "layers": 1, "ranks": 0, "accumulate": 1, "plan-dtype": "bf16"}]


def test_the_made_page_is_of_today(programs):
    """Its broken runs are tested below, because programs have to be built for them."""
    broken = watch.data_of(MADE)["broken"]
    same = watch.page(watch.data(programs.build, programs.mpiexec, broken)) == MADE
    assert same, "notes/step.html is stale: ./tutorial watch --renew"
    assert len(MADE.encode()) < 400_000


def test_the_made_broken_runs_are_of_today(programs):
    """Builds each broken program. Two do not wait for a message. Each message takes 50 ms, so that
    they are always too early: 80 such runs beside six busy loops were alike."""
    mpi = "openmpi" if "openmpi" in programs.mpiexec else "mpich"
    same = json.loads(json.dumps(watch.broken(mpi, programs.mpiexec))) == \
        watch.data_of(MADE)["broken"]
    assert same, "notes/step.html is stale: ./tutorial watch --renew"


def recorded(programs, chapter, dtype, micro):
    """Yields what a program wrote of each event that the page shows."""
    options = ["--accumulate", str(3 * micro if chapter == "01_adam" else micro)]
    if chapter > "03":
        options += ["--dtype", dtype]
    trace, run = recording(["--run", str(programs.build), programs.mpiexec, chapter, *options], 3,
                           watch.MODEL)
    sent = [0] * run.ranks
    away = {place: [memory_of(run.summary, place).get(kind, {"resident": 0})["resident"]
                    for kind in KINDS[:5]] for place in PLACES[1:]}
    for events in trace.moments(1):
        args = events[0]["args"]
        if not watch.told_of(events[0]):
            continue
        writes = [[watch.row(view), view["layer"], rank, view["start"], view["values"]]
                  for rank, event in enumerate(events) for view in event["args"].get("writes", [])]
        arrows = sum(len(write[-1]) for write in writes) * (events[0]["cat"] in ("copy", "bus"))
        for rank, event in enumerate(events):
            now = sum(event["args"].get("sent", {"": sent[rank]}).values())
            arrows, sent[rank] = arrows + now - sent[rank], now
        yield {"sent": args.get("sent", {}),
               "in_use": [[*event["args"]["in_use"].values()][:5] for event in events],
               "line": args["at"][0].rpartition(":")[2] if args["at"] else "", "arrows": arrows,
               "writes": writes, "away": away}


def plans():
    """Yields settings of the page's sliders, and what ./tutorial plan says of them."""
    for fields in SLIDERS:
        words = {"params": f"{10 ** fields['params']:.1e}", "layers": fields["layers"],
                 "dtype": fields["plan-dtype"], "ranks": 2 ** fields["ranks"],
                 "accumulate": 2 ** fields["accumulate"], "json": "true"}
        printed = output_of([sys.executable, str(ROOT / "tools/plan.py"),
                             *(str(word) for name in words for word in (f"--{name}", words[name]))])
        yield {"fields": fields, "figures": json.loads(printed)}


def walk(programs, folder, widths, runs):
    """Runs walk.js in a browser, prints how much it looked at, and fails with what is wrong."""
    if not BROWSER:
        pytest.skip("there is no Chromium to look at the page with")
    told = {" ".join(map(str, run)): [*recorded(programs, *run)] for run in runs}
    listens = ("<head><script>window.said = []; onerror = text => said.push(text); console.log = "
               "console.warn = console.error = (...text) => said.push(text.join());</script>")
    (folder / "page.html").write_text(MADE.replace("<head>", listens, 1))
    (folder / "test.html").write_text(
        "<meta charset=utf-8><iframe height=900></iframe><pre></pre><script>"
        f"const RUNS = {json.dumps(told)}, PLANS = {json.dumps([*plans()])},"
        f"WIDTHS = {widths}, ALL = {json.dumps(len(runs) > 1)};"
        + (ROOT / "tests/pages/walk.js").read_text() + "</script>")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
               "--virtual-time-budget=5000", "--dump-dom", (folder / "test.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    text = re.search("<pre>(.+)</pre>", done.stdout)
    assert text, done.stderr[-2000:]
    found = json.loads(html.unescape(text[1]))
    for what, count in found["counts"].items():
        print(f"{count:8} {what}")
    assert not found["wrong"] and not found["left"], "\n".join(found["wrong"][:30])


def test_a_browser_shows_a_step(programs, folder):
    walk(programs, folder, [1280], [("06_zero3", "bf16", 1)])


def test_a_browser_shows_every_step(programs, folder):
    walk(programs, folder, [1280, 768, 390], [
        (chapter, dtype, micro) for chapter in CHAPTERS for micro in (1, 2)
        for dtype in (("bf16", "fp32") if chapter > "03" else ("fp32",))])
