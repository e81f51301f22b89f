# SPDX-License-Identifier: MIT
"""A step that is told: all chapters, the three models, on 1 to 4 ranks.

What is told must be what is counted, and its numbers must follow from each other: the mean from the
ranks' gradients, the new weights from the old and the mean, messages and bytes as in the tables.
"""
import re

import pytest
from programs import ALONE, CHAPTERS, MIXED, own_options

SIZES = {12: [6, 6], 13: [9, 4], 2: [2]}
LR, PRINTED = 0.1, 0.0005  # the half of a printed number's last digit
# Relative, of one rounding: a number in that dtype is so much wrong at most.
ROUNDING = {"fp32": 2 ** -24, "bf16": 2 ** -8}


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
        assert (ranks - 1) * sent == counted.get(phase, 0), phase
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
            assert in_use[-1] == int(now), kind
        assert (max(in_use), in_use[-1]) == (peak, resident), kind


def check_owners(events, printed, ranks, sizes):
    """Each rank owns a part of each layer, and has it alone of a mean; with the padding."""
    parts = [-(-used // ranks) for used in sizes]
    owners = re.findall(r"(?m)^  layer \d((?: +(?:\d+|pad))+)$", printed)
    assert list(map(str.split, owners)) == [
        [str(i // part) for i in range(used)] + ["pad"] * (ranks * part - used)
        for used, part in zip(sizes, parts)]
    for event in (event for event in events if event.work == "reduce_scatter"):
        used, part = sizes[int(event.layer)], parts[int(event.layer)]
        for rank, cells in event.rows.items():
            kinds = ["\u00b7" if i // part != rank else "pad" if i >= used else "number"
                     for i in range(len(cells))]
            assert kinds == [cell if value(cell) is None else "number" for cell in cells]


def check_formulas(printed):
    """Each is right arithmetic, and its result stands in the table."""
    found = re.findall(r"(?m)^  ((?:in )?\w+(?: \S+)?) +(\d[\d x/+()]*) = ([\d ]+)$", printed)
    device, _, host = printed.partition("\non its host\n")
    for name, formula, figure in found:
        made = eval(re.sub(r"(?<=\d) (?=\d{3})", "", formula).replace("x", "*"))
        assert made == int(figure.replace(" ", "")), name
        where, row = device + host, name.removeprefix("in ")
        if row.startswith("host "):
            where, row = host, row.removeprefix("host ")
        row = re.search(rf"(?m)^  {row} +(\d+) +(\d+)", where)
        assert row and row[1] == row[2] == figure, name
    assert len(found) >= 4


def check_numbers(events, ranks, dtype):
    """The mean of the ranks' gradients, and Adam's first step: against each gradient's sign, lr
    times g / (|g| + eps), which is lr to the printed digits for a gradient that is not 0. Each side
    is printed, and was rounded to the dtype once, at the largest of its numbers."""
    wrong = 2 * PRINTED + 1e-6  # that of additions in fp32, and of eps
    grads, weights, means, checked = {}, {}, {}, 0
    for event in (event for event in events if event.rows):
        layer = event.layer
        rows = {rank: list(map(value, cells)) for rank, cells in event.rows.items()}
        if event.phase == "forward" and event.work in ("copy", "all_gather", "forward"):
            weights[layer] = rows[0]
        elif event.work == "backward":
            grads[layer] = rows
        elif event.work == "reduce_scatter":
            means[layer] = [next((x for x in column if x is not None), None)
                            for column in zip(*rows.values())]
            for mean, *terms in zip(means[layer], *grads[layer].values()):
                if mean is not None and None not in terms:
                    near = wrong + ROUNDING[dtype] * max(map(abs, terms))
                    assert abs(mean - sum(terms) / ranks) <= near, event.line
        elif event.work == "adam":
            mean = means[layer] if ranks > 1 else grads[layer][0]
            for of in rows.values():
                for old, g, new in zip(weights[layer], mean, of, strict=True):
                    if None not in (g, new) and abs(g) >= 2 * PRINTED:
                        near = wrong + ROUNDING[dtype] * abs(old)
                        assert abs(old - LR * (1 if g > 0 else -1) - new) <= near, event.line
                        checked += 1
    assert checked > 0


@pytest.mark.parametrize("ranks, size, dtype, micro_batches, prefetch", (
    (1, 12, "fp32", 2, 0), (2, 13, "bf16", 2, 1), (3, 2, "fp32", 1, 2), (3, 13, "bf16", 1, 0),
    (4, 12, "fp32", 1, 1)))
def test_a_step_is_told(programs, ranks, size, dtype, micro_batches, prefetch):
    for chapter in MIXED if dtype == "bf16" else CHAPTERS:
        n = 1 if chapter == ALONE else ranks
        outcome = programs.run(0 if chapter == ALONE else n, chapter,
                               f"--narrate={size}" if size != 12 else "--narrate", "--accumulate",
                               micro_batches, *own_options(chapter, dtype, prefetch))
        assert (outcome.code, outcome.own_errors()) == (0, []), chapter
        assert n > 3 or max(map(len, outcome.out.splitlines())) <= 80
        events = story_of(outcome.out, n)
        check_counts(events, outcome.out, n)
        check_owners(events, outcome.out, n, SIZES[size])
        check_formulas(outcome.out)
        if micro_batches == 1:
            check_numbers(events, n, dtype)
        # Dividing by one changes nothing, and is not done.
        assert any(event.work == "divide" for event in events) == (micro_batches > 1)
