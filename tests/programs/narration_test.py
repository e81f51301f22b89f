#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A step that is told: all chapters, the three models, on 1 to 4 ranks.

What is told must be what is counted, and its numbers must follow from each other: the mean from the
ranks' gradients, the new weights from the old and the mean, messages and bytes as in the tables.
"""
import itertools
import re
import sys
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
from expected import MIXED, WINDOW, expect  # noqa: E402
from programs import ALONE, ON_RANKS, Programs, options_of  # noqa: E402

SIZES = {12: [6, 6], 13: [9, 4], 2: [2]}
LR, PRINTED = 0.1, 0.0005  # the half of a printed number's last digit
# Relative, of one rounding: a number in that dtype is so much wrong at most.
ROUNDING = {"fp32": 2 ** -24, "bf16": 2 ** -8}


def cases():
    """(chapter, ranks, parameters, dtype, micro-batches, prefetch)"""
    yield from ((ALONE, 0, size, "fp32", micro_batches, 0)
                for size, micro_batches in itertools.product(SIZES, (1, 2)))
    for chapter, ranks, size in itertools.product(ON_RANKS, (1, 2, 3, 4), SIZES):
        for prefetch in (0, 1, 2) if chapter in WINDOW else (0,):
            yield chapter, ranks, size, "fp32", 1 + (ranks == 2), prefetch
            if chapter in MIXED:
                yield chapter, ranks, size, "bf16", 1 + (ranks == 4), prefetch


class Event:
    """A line of the story with what it says, and the rows below it: rank to cells, or None."""
    def __init__(self, phase, line):
        self.phase, self.line, self.rows = phase, line, {}
        work = re.fullmatch(
            r"(?:layer (\d+) )?(\w+)(?: for (\w+))?: (?:(\d+) to each other rank)?.*", line)
        self.layer, self.work, ahead, sent = work.groups() if work else (None,) * 4
        self.sent_for = ahead or phase
        self.sent = int(sent or 0)


def story_of(printed, ranks):
    """The told events, in their order."""
    events, phase = [], None
    for line in printed.splitlines():
        if line in ("forward", "backward", "update"):
            phase = line
        elif phase and line.startswith("  ") and not re.match(r"  (all|rank \d)  ", line):
            events.append(Event(phase, line.strip()))
        elif phase and line.startswith("  "):
            cells = re.split(r"\s+", line.strip())
            whose = range(ranks) if cells[0] == "all" else [int(cells[1])]
            for rank in whose:
                events[-1].rows[rank] = cells[1 if cells[0] == "all" else 2:]
        elif phase and not line:
            return events
    raise AssertionError(f"no story: {printed}")


def value(cell):
    return None if cell in ("\u00b7", "pad") else float(cell)


def check_counts(events, printed, ranks):
    """Messages by phase, and bytes in use, are those of the tables below the story."""
    counted = {phase: int(figure) for phase, figure in
               re.findall(r"(?m)^  (forward|backward|update) +\d+ +(\d+) ", printed)}
    for phase in ("forward", "backward", "update"):
        sent = sum(event.sent for event in events
                   if event.sent_for == phase and event.work != "sums")
        expect((ranks - 1) * sent == counted.get(phase, 0), f"{phase}: {sent} in {printed}")
    table = {kind: (int(peak), int(resident)) for kind, peak, resident in
             re.findall(r"(?m)^  (\w+) +\d+ +(\d+) +(\d+) +\d+$",
                        printed.partition("\non its host\n")[0])}
    moves = [re.fullmatch(r"(borrow|give back) (\d+) bytes of (\w+): (\d+) in use", event.line)
             for event in events]
    for kind in ("parameters", "gradients", "communication"):
        peak, resident = table[kind]
        in_use = [resident]
        for does, bytes, _, now in (move.groups() for move in moves if move and move[3] == kind):
            in_use.append(in_use[-1] + (1 if does == "borrow" else -1) * int(bytes))
            expect(in_use[-1] == int(now), f"{kind}: {in_use} in {printed}")
        expect((max(in_use), in_use[-1]) == (peak, resident), f"{kind}: {in_use} in {printed}")


def check_owners(events, ranks, sizes):
    """Of a mean a rank has its own part alone, with the padding that belongs to it."""
    for event in events:
        if event.work != "reduce_scatter":
            continue
        used, part = sizes[int(event.layer)], -(-sizes[int(event.layer)] // ranks)
        for rank, cells in event.rows.items():
            for i, cell in enumerate(cells):
                kind = "\u00b7" if i // part != rank else "pad" if i >= used else "number"
                expect(cell == kind or kind == "number" and value(cell) is not None,
                       f"{event.line}: {kind} expected at {i} of rank {rank}: {cells}")


def check_formulas(printed):
    """Each is right arithmetic, and its result stands in the table."""
    found = re.findall(r"(?m)^  ((?:in )?\w+(?: \S+)?) +(\d[\d x/+()]*) = ([\d ]+)$", printed)
    for name, formula, figure in found:
        made = eval(re.sub(r"(?<=\d) (?=\d{3})", "", formula).replace("x", "*"))
        expect(made == int(figure.replace(" ", "")), f"{name}: {formula} = {figure}")
        device, _, host = printed.partition("\non its host\n")
        where, row = device + host, name.removeprefix("in ")
        if row.startswith("host "):
            where, row = host, row.removeprefix("host ")
        row = re.search(rf"(?m)^  {row} +(\d+) +(\d+)", where)
        expect(row and row[1] == row[2] == figure, f"{name}: {figure} in {printed}")
    expect(len(found) >= 4, f"formulas expected: {printed}")


def check_numbers(events, ranks, dtype, micro_batches):
    """The mean of the ranks' gradients, and Adam's first step: against each gradient's sign, lr
    times g / (|g| + eps), which is lr to the printed digits for a gradient that is not 0. Each side
    is printed, and was rounded to the dtype once, at the largest of its numbers."""
    wrong = 2 * PRINTED + 1e-6  # that of additions in fp32, and of eps
    grads, weights, means, checked = {}, {}, {}, 0
    for event in events:
        layer = event.layer
        rows = {rank: list(map(value, cells)) for rank, cells in event.rows.items()}
        if not rows:
            continue  # as above
        if event.phase == "forward" and event.work in ("copy", "all_gather", "forward"):
            weights[layer] = rows[0]
        elif event.work == "backward":
            grads[layer] = rows
            if ranks == 1:
                means[layer] = rows[0]
        elif event.work == "reduce_scatter" and micro_batches == 1:
            mean = [next(of[i] for of in rows.values() if of[i] is not None) if any(
                of[i] is not None for of in rows.values()) else None for i in range(len(rows[0]))]
            for i, got in enumerate(mean):
                terms = [of[i] for of in grads[layer].values()]
                if got is None or None in terms:
                    continue
                near = wrong + ROUNDING[dtype] * max(map(abs, terms))
                expect(abs(got - sum(terms) / ranks) <= near, f"{event.line}: {terms}, {got}")
                checked += 1
            means[layer] = mean
        elif event.work == "adam" and layer in means:
            for of in rows.values():
                for old, g, new in zip(weights[layer], means[layer], of, strict=True):
                    if new is None or g is None or abs(g) < 2 * PRINTED:
                        continue
                    near = wrong + ROUNDING[dtype] * abs(old)
                    expect(abs(old - LR * (1 if g > 0 else -1) - new) <= near,
                           f"{event.line}: {old}, {g}, {new}")
                    checked += 1
    return checked


def check(programs, chapter, ranks, size, dtype, micro_batches, prefetch):
    args = [f"--narrate={size}" if size != 12 else "--narrate", "--accumulate", micro_batches]
    args += ["--dtype", dtype] if chapter in MIXED else []
    args += ["--prefetch", prefetch] if chapter in WINDOW else []
    outcome = programs.run(ranks, chapter, *args)
    expect((outcome.code, outcome.err) == (0, ""), f"{outcome}")
    printed, n = outcome.out, max(ranks, 1)
    if n <= 3:
        wide = [line for line in printed.splitlines() if len(line) > 80]
        expect(not wide, f"80 columns at most: {wide}")
    owners = re.findall(r"(?m)^  layer \d((?: +(?:\d+|pad))+)$", printed)
    for used, row in zip(SIZES[size], map(str.split, owners), strict=True):
        part = -(-used // n)
        expect(row == [str(i // part) for i in range(used)] + ["pad"] * (n * part - used), f"{row}")
    events = story_of(printed, n)
    check_counts(events, printed, n)
    check_owners(events, n, SIZES[size])
    check_formulas(printed)
    checked = check_numbers(events, n, dtype, micro_batches)
    expect(micro_batches > 1 or checked > 0, f"numbers expected: {printed}")
    told = re.sub(r"median .*|(?m: +\d+\.\d+ +\d+\.\d+$)", "", printed.partition("\nwhich")[2])
    return told, re.search(r"(?m)^parameters (\w+)", printed)[1]


def main():
    options = options_of(__doc__)
    programs = Programs(options.build, options.mpiexec)
    chosen, digests, failed = list(cases()), {}, 0
    with ThreadPoolExecutor(2) as pool:  # a launcher spends half of its time waiting
        for case, done in [(case, pool.submit(check, programs, *case)) for case in chosen]:
            if error := done.exception():
                failed += 1
                print(f"FAILED {case}: {error}")
                continue
            chapter, ranks, size, dtype, micro_batches, prefetch = case
            family = "every" if chapter >= "05" and micro_batches > 1 else "once"
            same = digests.setdefault((max(ranks, 1), size, dtype, micro_batches, family),
                                      (done.result()[1], case))
            if same[0] != done.result()[1]:
                failed += 1
                print(f"FAILED {case}: other parameters than {same[1]}")
    again = [check(programs, "06_zero3", 3, 12, "bf16", 1, 1)[0] for _ in range(2)]
    expect(again[0] == again[1], f"twice the same: {again}")
    print(f"{len(chosen) - failed} of {len(chosen)} runs hold")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
