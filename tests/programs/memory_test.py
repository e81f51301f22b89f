# SPDX-License-Identifier: MIT
"""Memory by phase, as it is logged and as --memory prints it; and what a whole program holds.

What is printed is what is logged, in 80 columns; what the process holds adds up to its peak, which
the kernel also tells this script; and the peaks of a window are the formula's, by another hand.
"""
import os
import re

import pytest
from programs import ALONE, CHAPTERS, own_options, read_log
from runs import spaced

NAMES = ["load", "forward", "backward", "update"]
# Ranks (0: without mpirun), chapter, steps, own options.
RUNS = [
    (0, ALONE, 1, []), (0, ALONE, 2, ["--accumulate", 3]), (1, "03_mixed_precision", 2, []),
    (2, "05_zero2", 3, ["--accumulate", 3, "--dtype", "fp32"]),
    (3, "06_zero3", 1, ["--accumulate", 3, "--prefetch", 2]), (3, "07_offload", 2, [])]


@pytest.mark.parametrize("ranks, chapter, steps, own", RUNS)
def test_phases(programs, folder, ranks, chapter, steps, own):
    """All that is logged is printed. That it is what the chapter's formulas say, accounts_test.cpp
    sees; by which rank, and how it adds up, report_test.cpp."""
    outcome = programs.run(ranks, chapter, "--task", "mlp", "--width", 7, "--layers", 3, "--batch",
                           5, "--steps", steps, "--memory", "--device", "cpu", "--log", "log", *own,
                           cwd=folder)
    assert outcome.code == 0, outcome
    printed, summary = outcome.out, read_log(folder / "log")[2]
    phases = summary["phases"]
    assert [row["phase"] for row in phases] == ["start"] + NAMES * min(steps, 2)
    assert max(row["peak"] for row in phases) == summary["memory"]["total"]["peak"]
    assert re.fullmatch(r"([ -~]{0,80}\n)*", printed), "plain and narrow"
    cells = [[cell.strip() for cell in line.split("  ") if cell] for line in printed.splitlines()]
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
    count = sum(bytes > 0 for row in phases for bytes in row["bytes"].values())
    assert f"{count} of {count} figures equal the chapter's formulas" in printed
    for name, bytes in summary["process"]["rows"].items():
        told = bytes != 0 or "unexplained" in name
        assert bytes >= 0 and (f"  {name:<48}{spaced(bytes):>15}\n" in printed) == told


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


def test_a_long_run_holds_no_more(programs):
    """Of each step its times are kept, but no more than a few thousand steps'."""
    args = ["--task", "mlp", "--layers", 1, "--width", 1, "--batch", 1, "--device", "cpu"]
    short, long = (programs.logged(0, ALONE, *args, "--steps", steps)[2]["process"]["rows"]
                   ["taken in the steps"] for steps in (5000, 50000))
    assert long - short < 1e6


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
    assert 1 <= total["process_peak"] / reserved <= 1.1
