# SPDX-License-Identifier: MIT
"""Memory by phase, as it is logged and as --memory prints it; and what a whole program holds.

Each figure in the log is the formula's, by another hand; what is printed is what is logged, in 80
columns; and what the process holds adds up to its peak, which the kernel also tells this script.
"""
import os
import re

import pytest
from programs import ALONE, CHAPTERS, MIXED, ON_RANKS, WINDOW, own_options, read_log
from runs import spaced

NAMES = ["load", "forward", "backward", "update"]
MOST_OVER_RESERVED = 1.10


def expected_phases(chapter, n, layers, dtype, a, prefetch):
    """What is in use after each phase, by kind, of kinds that have bytes: layers of 7 x 7 and a
    bias, 5 samples, a micro-batches."""
    w, k = (4, 8) if dtype == "fp32" else (2, 12)  # bytes of the working type, of the optimizer
    elements = -(-(7 * 7 + 7) // (8 * n)) * 8 * n  # of a layer
    layer = w * elements
    parts = {"04": (1, 1, n), "05": (1, n, n), "06": (n, n, n),
             "07": (n, n, 0)}  # 0: it lies elsewhere
    state = zip(("parameters", "gradients", "optimizer"), (w, w, k),
                parts.get(chapter[:2], (1, 1, 1)))
    start = {kind: size * layers * elements // part for kind, size, part in state if part}
    start["data"] = 16 * (7 + 7) * 4 + 5 * 7 * 4
    batch = 5 * 7 * w  # of inputs, or of the outputs of a layer

    def plus(gathered, formed, activations):
        more = {"parameters": layer * gathered, "gradients": layer * min(2, formed)}
        more = more if chapter in WINDOW else {}
        after = {kind: bytes + more.get(kind, 0) for kind, bytes in start.items()}
        return after | ({"activations": batch * activations} if activations else {})

    formed = layers * (a - 1)  # gradients of the micro-batches before
    return {"start": start, "load": plus(min(prefetch, 2 * layers) if a > 1 else 0, formed, 1),
            "forward": plus(min(prefetch, layers), formed, layers + 1 + 2),
            "backward": plus(0, layers * a, 0), "update": start}


def cases():
    """(chapter, ranks, layers, dtype, micro-batches, prefetch)"""
    yield from ((ALONE, 0, 3, "fp32", micro_batches, 0) for micro_batches in (1, 3))
    for number, chapter in enumerate(ON_RANKS):
        windows = [(3, 0), (3, 1), (3, 2), (1, 2), (2, 2)] if chapter in WINDOW else [(3, 0)] * 2
        for layers, prefetch in windows:
            number += 1
            dtype = "bf16" if chapter in MIXED and number % 2 else "fp32"
            yield chapter, 1 + number % 3, layers, dtype, 1 + 2 * (number // 2 % 2), prefetch


@pytest.mark.parametrize("chapter, ranks, layers, dtype, micro_batches, prefetch", cases())
def test_phases(programs, folder, chapter, ranks, layers, dtype, micro_batches, prefetch):
    steps = 1 + ranks % 3
    args = ["--task", "mlp", "--width", 7, "--layers", layers, "--batch", 5, "--steps", steps]
    args += ["--accumulate", micro_batches, "--memory", "--device", "cpu", "--log", "log"]
    outcome = programs.run(ranks, chapter, *args, *own_options(chapter, dtype, prefetch),
                           cwd=folder)
    assert outcome.code == 0, outcome
    summary = read_log(folder / "log")[2]
    expected = expected_phases(chapter, max(ranks, 1), layers, dtype, micro_batches, prefetch)
    rows = summary["phases"]
    assert [row["phase"] for row in rows] == ["start"] + NAMES * min(steps, 2)
    for row in rows:
        assert {kind: n for kind, n in row["bytes"].items() if n} == expected[row["phase"]], row
    assert max(row["peak"] for row in rows) == summary["memory"]["total"]["peak"]
    check_printed(outcome.out, summary)


def check_printed(printed, summary):
    """All that is logged; by which rank, and how it adds up, is report_test.cpp's."""
    assert re.fullmatch(r"([ -~]{0,80}\n)*", printed), "plain and narrow"
    cells = [[cell.strip() for cell in line.split("  ") if cell] for line in printed.splitlines()]
    phases = summary["phases"]
    for number in range(1, phases[-1]["step"] + 1):
        shown = [row for row in phases if row["step"] in (number, number - (number == 1))]
        lines = {kind: [row["bytes"][kind] for row in shown]
                 for kind in shown[-1]["bytes"] if any(row["bytes"][kind] for row in shown)}
        lines |= {"all together": [row["in_use"] for row in shown],
                  "change": [row["change"] for row in shown],
                  "peak within": [row["peak"] for row in shown],
                  "all ranks": [row["all_ranks"]["in_use"] for row in shown]}
        start = cells.index([f"step {number}, after", *(row["phase"] for row in shown)])
        table = cells[start + 1:start + 2 + len(lines)]
        for name, figures in lines.items():
            assert [name, *map(spaced, figures)] in table
    count = sum(n > 0 for row in phases for n in row["bytes"].values())
    assert f"{count} of {count} figures equal the chapter's formulas" in printed
    for name, bytes in summary["process"]["rows"].items():
        told = bytes != 0 or "unexplained" in name
        assert (f"  {name:<48}{spaced(bytes):>15}\n" in printed) == told


def test_the_process(programs, folder):
    """The peak as the kernel tells it to who started the process, larger than this script is."""
    command = programs.command(0, ALONE, "--task", "mlp", "--width", 2040, "--layers", 2,
                               "--batch", 8, "--steps", 2, "--device", "cpu", "--quiet", "--log",
                               folder / "log")
    _, status, usage = os.wait4(os.posix_spawn(command[0], command, os.environ), 0)
    assert status == 0
    process = read_log(folder / "log")[2]["process"]
    rows, seen = process["rows"], usage.ru_maxrss * 1024
    # The kernel counts pages core by core: two looks may differ by what each has not yet told.
    assert sum(rows.values()) == process["total"] == pytest.approx(seen, rel=0.02)
    assert rows["tensors, as reserved"] > 0.9 * seen
    assert sum(map(abs, rows.values())) - rows["tensors, as reserved"] < 0.1 * seen


@pytest.mark.parametrize("ranks, prefetch, layers", ((2, 0, 2), (2, 1, 6), (2, 2, 5), (3, 1, 4)))
def test_peaks_of_a_window(programs, ranks, prefetch, layers):
    """The note's formulas: 06's peak over 05's, in layers of 512 x 512 on N ranks; and 07's, which
    is 06's without the optimizer state."""
    args = ["--task", "mlp", "--width", 512, "--layers", layers, "--batch", 2, "--steps", 2]
    args += ["--device", "cpu"]
    zero2, zero3, offload = (
        programs.logged(ranks, chapter, *args, *own_options(chapter, "bf16", prefetch))
        [2]["memory"]["total"]["peak"] for chapter in CHAPTERS[4:])
    layer = -(-512 * 513 // (8 * ranks)) * 8 * ranks
    part = layer * 2 // ranks
    assert zero3 - offload == 6 * layers * part, "12 bytes a parameter"
    assert zero3 - zero2 == part * (ranks * (prefetch + 2) - (ranks - 1) * (layers + 1))


@pytest.mark.parametrize("chapter", [*CHAPTERS[1:], "a text"])
def test_whole_programs_book_what_is_large(programs, folder, chapter):
    """The process's own peak over what the ledgers say was reserved, on the host too: within a
    tenth, where that is over 256 MB."""
    args = ["--task", "mlp", "--layers", 12, "--width", 2048]
    if chapter == "a text":  # the same for what is held as data
        (folder / "text").write_bytes(b"a large text. " * (300_000_000 // 14))
        chapter, args = CHAPTERS[1], ["--data", folder / "text", "--width", 64]
    summary = programs.logged(2, chapter, *args, "--steps", 3, "--device", "cpu")[2]
    total, host = summary["memory"]["total"], summary.get("host_memory", {})
    reserved = total["reserved"] + sum(kind["reserved"] for kind in host.values())
    assert reserved > 256e6
    assert 1 <= total["process_peak"] / reserved <= MOST_OVER_RESERVED
