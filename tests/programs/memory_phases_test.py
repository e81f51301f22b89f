#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Memory by phase, as it is logged and as --memory prints it: all chapters, on 1 to 3 ranks.

Each figure in the log is the formula's, by another hand; what is printed is what is logged, in 80
columns; and what the process holds adds up to its peak, which the kernel also tells this script.
"""
import itertools
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
from expected import MIXED, WINDOW, expect, expected_phases  # noqa: E402
from programs import ALONE, ON_RANKS, Programs, options_of, read_log  # noqa: E402

NAMES = ["load", "forward", "backward", "update"]


def cases():
    """(chapter, ranks, layers, dtype, micro-batches, prefetch, steps); no ranks: not launched."""
    yield from ((ALONE, 0, 3, "fp32", micro_batches, 0, 2) for micro_batches in (1, 3))
    for ranks, chapter, micro_batches in itertools.product((1, 2, 3), ON_RANKS, (1, 3)):
        window = [(3, p) for p in (0, 1, 2)] + [(1, 1), (1, 2), (2, 2)]
        for dtype in ("fp32", "bf16") if chapter in MIXED else ("fp32",):
            for layers, prefetch in window if chapter in WINDOW else [(3, 0)]:
                yield chapter, ranks, layers, dtype, micro_batches, prefetch, 1 + ranks % 3


def check_log(summary, ranks, steps, expected):
    rows, before = summary["phases"], 0
    names = ["start"] + NAMES * min(steps, 2)
    expect([row["phase"] for row in rows] == names, f"{names} expected: {rows}")
    for number, row in enumerate(rows):
        held = {kind: bytes for kind, bytes in row["bytes"].items() if bytes}
        expect(held == expected[row["phase"]], f"{expected[row['phase']]} expected: {row}")
        expect(row["bytes"] == row["predicted"], f"as predicted: {row}")
        in_use = sum(held.values())
        expect(row["step"] == (number + 3) // 4 and row["in_use"] == in_use and
               row["change"] == in_use - before, f"{before} before: {row}")
        expect(row["peak"] >= max(in_use, before), f"not above its peak: {row}")
        expect(row["all_ranks"] == {"in_use": ranks * in_use, "peak": ranks * row["peak"]},
               f"{ranks} alike: {row}")
        before = in_use
    total = summary["memory"]["total"]
    expect(rows[0]["peak"] == rows[0]["in_use"] == total["resident"], f"nothing more: {rows[0]}")
    expect(max(row["peak"] for row in rows) == total["peak"], f"{total} expected: {rows}")


def check_printed(printed, summary, expected):
    expect(re.fullmatch(r"([ -~]{0,80}\n)*", printed), f"plain and narrow: {printed!r}")
    rows = [line.split("  ") for line in printed.splitlines()]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
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
            line = [name, *(f"{figure:,}".replace(",", " ") for figure in figures)]
            expect(line in table, f"{line} expected in {table}")
    count = sum(len(expected[row["phase"]]) for row in phases)
    expect(f"{count} of {count} figures equal the chapter's formulas" in printed, printed)
    for name, bytes in summary["process"]["rows"].items():
        line = f"  {name:<48}{f'{bytes:,}'.replace(',', ' '):>15}\n"
        told = bytes != 0 or "unexplained" in name
        expect((line in printed) == told, f"{line!r} expected: {printed}")


def check(programs, chapter, ranks, layers, dtype, micro_batches, prefetch, steps):
    args = ["--task", "mlp", "--width", 7, "--layers", layers, "--batch", 5, "--steps", steps]
    args += ["--accumulate", micro_batches, "--memory", "--device", "cpu"]
    args += ["--dtype", dtype] if chapter in MIXED else []
    args += ["--prefetch", prefetch] if chapter in WINDOW else []
    with tempfile.TemporaryDirectory(prefix="memory_") as folder:
        log = Path(folder) / "log"
        outcome = programs.run(ranks, chapter, *args, "--log", log)
        expect(outcome.code == 0, f"{args}: {outcome}")
        summary = read_log(log)[2]
    n = max(ranks, 1)
    expected = expected_phases(chapter, n, layers, dtype, micro_batches, prefetch)
    check_log(summary, n, steps, expected)
    check_printed(outcome.out, summary, expected)
    process = summary["process"]
    expect(sum(process["rows"].values()) == process["total"], f"rows add up: {process}")


def check_kernel(programs):
    """The peak as the kernel tells it to who started the process, larger than this script is."""
    with tempfile.TemporaryDirectory(prefix="memory_") as folder:
        log = Path(folder) / "log"
        command = programs.command(0, ALONE, "--task", "mlp", "--width", 2040, "--layers", 2,
                                   "--steps", 2, "--device", "cpu", "--quiet", "--log", log)
        _, status, usage = os.wait4(os.posix_spawn(command[0], command, os.environ), 0)
        expect(status == 0, f"exit code 0 expected: {status}")
        process = read_log(log)[2]["process"]
    rows, seen = process["rows"], usage.ru_maxrss * 1024
    # The kernel counts pages core by core: two looks may differ by what each has not yet told.
    expect(sum(rows.values()) == process["total"] and abs(process["total"] - seen) < 0.02 * seen,
           f"{seen} seen: {process}")
    small = sum(map(abs, rows.values())) - rows["tensors, as reserved"]
    expect(rows["tensors, as reserved"] > 0.9 * seen and small < 0.1 * seen, f"itemised: {process}")
    print(f"{seen} bytes seen from outside, {process['total']} from inside, "
          f"{rows['tensors, as reserved']} of them tensors")


def check_window(programs):
    """The note's formulas: 06's peak over 05's, in layers of 512 x 512 on N ranks; and 07's, which
    is 06's without the optimizer state."""
    for ranks, prefetch in itertools.product((2, 4), (0, 1, 2)):
        for layers in range(prefetch + 2, prefetch + 6):
            args = ["--task", "mlp", "--width", 512, "--layers", layers, "--batch", 2, "--steps", 2,
                    "--device", "cpu"]
            peaks = [programs.logged(ranks, *program, *args)[2]["memory"]["total"]["peak"]
                     for program in (["05_zero2"], ["06_zero3", "--prefetch", prefetch],
                                     ["07_offload", "--prefetch", prefetch])]
            part = 512 * 513 * 2 // ranks
            expect(peaks[1] - peaks[2] == 6 * layers * part, f"12 bytes a parameter of: {peaks}")
            more = part * (ranks * (prefetch + 2) - (ranks - 1) * (layers + 1))
            expect(peaks[1] - peaks[0] == more,
                   f"{layers} layers on {ranks} ranks, prefetch {prefetch}: {peaks}, {more}")


def main():
    options = options_of(__doc__)
    programs = Programs(options.build, options.mpiexec)
    chosen = list(cases())
    with ThreadPoolExecutor(2) as pool:  # a launcher spends half of its time waiting
        for case, done in [(case, pool.submit(check, programs, *case)) for case in chosen]:
            if error := done.exception():
                print(f"FAILED {case}: {error}")
                return 1
    check_kernel(programs)
    check_window(programs)
    print(f"{len(chosen)} runs: phases equal their formulas")
    return 0


if __name__ == "__main__":
    sys.exit(main())
