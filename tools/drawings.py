#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Draws what chapters 01 to 04 explain, and 06 beside FSDP2, into notes/figures. Nothing is run."""
import math
from itertools import pairwise

from pictures import FONTS
from pictures import KIND_COLOURS as COLOURS
from pictures import STREAMS, ticks
from runs import ROOT

RANKS, SIZE = 3, 6  # a layer of the pages' model
BOLD, MIDDLE = {"font-weight": "bold"}, {"text-anchor": "middle"}


def element(tag, words="", **has):
    said = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in has.items())
    return f"<{tag}{said}>{words}</{tag}>" if words else f"<{tag}{said}/>"


def text(x, y, words, size=11, **has):
    return element("text", words, x=round(x, 1), y=round(y, 1), font_size=size, **has)


def line(*points, **has):
    path = "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points)
    return element("path", d=path, **{"fill": "none", "stroke": "#1f2328"} | has)


def arrow(x, y, to, stroke="#1f2328", **has):
    has |= {"stroke": stroke, "stroke_width": 1.5}
    head = has | {"stroke_dasharray": "none"}
    back = to - math.copysign(6, to - x)
    return line((x, y), (to, y), **has) + line((back, y - 4), (to, y), (back, y + 4), **head)


def picture(height, title, subtitle, *parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" viewBox="0 0 720 '
        f'{height}" font-family="{FONTS}" fill="#1f2328">',
        element("rect", width=720, height=height, fill="#ffffff"), text(8, 20, title, 16, **BOLD),
        text(8, 44, subtitle, 13, opacity=0.75), *parts, "</svg>\n"])


def tables(y, cell, held, works):
    """What each rank has of each element, and the work between one table and the next."""
    gap = (712 - 56 - len(held) * SIZE * cell) / len(works)
    yield from (text(8, y + 26 * rank + 17, f"rank {rank}") for rank in range(RANKS))
    for at, (letter, everything) in enumerate(held):
        left = 56 + at * (SIZE * cell + gap)
        for i in range(RANKS * SIZE):
            rank, part, x = i // SIZE, i % SIZE * RANKS // SIZE, left + i % SIZE * cell
            has = everything or part == rank
            shade = {"g": 0.45, "w": 1}.get(letter, 0.2) if has else 0.05
            yield element("rect", x=round(x + 1, 1), y=y + 26 * rank, width=cell - 2, height=24,
                          fill=COLOURS[part] if has else "#1f2328", opacity=shade)
            if has:
                yield text(x + cell / 2, y + 26 * rank + 16, letter.replace("r", str(rank)), 10,
                           fill="#ffffff" if letter == "w" else "#1f2328", **MIDDLE)
        for words in works[at:at + 1]:
            right = left + SIZE * cell
            yield arrow(right + 6, y + 38, right + gap - 6)
            yield from (text(right + gap / 2, y + 30 + 26 * below, words[below], 10, **MIDDLE)
                        for below in range(2))


OWN, PART, WHOLE, NEW_PART, NEW = ("gr", True), ("g", False), ("g", True), ("w", False), ("w", True)
SCATTER, GATHER = ("reduce-scatter", "each sends 4"), ("all-gather", "each sends 4")
WORDS = "A layer of 6 parameters, 3 ranks. g0: rank 0's gradient; g: the mean of all ranks"


def halves():
    return picture(156, "An all-reduce is a reduce-scatter, then an all-gather", WORDS,
                   *tables(70, 24, [OWN, PART, WHOLE], [SCATTER, GATHER]))


def zero1():
    return picture(
        296, "ZeRO-1 moves Adam between the two halves of the all-reduce",
        f"{WORDS}; w: a new parameter",
        text(8, 76, "Chapter 03: each rank updates 6 parameters", 12, **BOLD),
        *tables(90, 17, [OWN, PART, WHOLE, NEW], [SCATTER, GATHER, ("Adam", "updates 6")]),
        text(8, 196, "ZeRO-1: each rank updates 2 parameters", 12, **BOLD),
        *tables(210, 17, [OWN, PART, NEW_PART, NEW], [SCATTER, ("Adam", "updates 2"), GATHER]))


def number_line(step=0.002, apart=1 / 128):
    def jump(y, value, to, colour, words, **dashes):
        x, end = (500 + 190 * (value - 1.5) / apart for value in (value, to))
        return arrow(x, y, end, colour, **dashes) + text((x + end) / 2, y - 6, words, fill=colour,
                                                         **MIDDLE)

    def axis(y, words, colour, steps, rounded):
        yield text(8, y - 56, words, 12, **BOLD) + line((40, y), (704, y), opacity=0.5)
        for i in range(-2, 2):
            yield line((500 + 190 * i, y - 9), (500 + 190 * i, y + 9), stroke_width=2)
            yield text(500 + 190 * i, y + 24, f"{1.5 + i * apart:.5g}", **MIDDLE)
        at = [1.5 - i * step for i in range(steps + 1)]
        yield from (jump(y - 14, a, b, colour, f"\N{MINUS SIGN}{step}") for a, b in zip(at, at[1:]))
        yield jump(y - 36, at[-1], rounded, colour, "rounded", stroke_dasharray="3 3")

    return picture(
        306, f"In bf16 alone a step of {step} at 1.5 is lost; a master weight keeps it",
        "Marks: bf16 numbers, 1/128 apart. What lies between two is rounded to the nearer one",
        *axis(138, "bf16 alone: every step is rounded back", COLOURS[5], 1, 1.5),
        *axis(248, "fp32 master weight: two steps add up", COLOURS[0], 2, 1.5 - apart),
        text(8, 296, f"After two steps it is {1.5 - 2 * step:.3f}. Its nearest bf16 number, "
             f"the working copy, is {1.5 - apart:.4f}", 12))


def cleared(beta1=0.9, beta2=0.999, powers=4):
    """Of notes/adam.md's c(t), which a weight whose gradient is constant shows."""
    last = 10**powers

    def length(t):
        return (1 - beta1) / (1 - beta1**t) / math.sqrt((1 - beta2) / (1 - beta2**t))

    def at(t, value):
        return 48 + 620 * math.log10(t) / powers, 220 - 42 * value

    def point(t, words, anchor):
        x, y = at(t, length(t))
        yield element("circle", cx=round(x, 1), cy=round(y, 1), r=3, fill=COLOURS[5])
        yield text(x, y + 14, words, fill=COLOURS[5], text_anchor=anchor)

    lowest = min(range(1, last), key=length)
    back = next(t for t in range(2, last) if length(t) > 1)
    path = (at(t, length(t)) for t in (10 ** (i / 100) for i in range(100 * powers + 1)))
    return picture(
        260, "Without its moments Adam still steps in the right direction",
        "How far a step moves a weight, in learning rates, while its gradient does not change",
        *(part for value in range(math.ceil(length(last))) for part in (
            line(at(1, value), at(last, value), opacity=0.15),
            text(36, at(1, value)[1] + 4, str(value), text_anchor="end"))),
        *(text(*at(10**power, -0.5), f"step {10**power:,}".replace(",", " "), **MIDDLE)
          for power in range(powers + 1)),
        line(at(1, 1), at(last, 1), stroke=COLOURS[0], stroke_width=2),
        text(at(2, 1)[0], at(1, 1)[1] - 8, "Adam: 1", fill=COLOURS[0]),
        line(*path, stroke=COLOURS[5], stroke_width=2),
        *point(lowest, f"{length(lowest):.2f} in step {lowest}", "middle"),
        *point(back, f"above 1 from step {back}", "start"),
        text(*at(last, length(last) + 0.25), "moments cleared before each step",
             fill=COLOURS[5], text_anchor="end"))


def played(slots, layers=4, message=1.5, compute=(2, 4)):
    """A step: {(letter, use): (begin, end)}, of layers 0 .. L-1, L-1 .. 0, by the waits that 06 and
    FSDP2 queue in it; FSDP2's copies take no time. slots: of 06, else FSDP2 with its last block
    kept. Both send one message at a time, in the order in which they are queued."""
    spans, free, never = {}, {}, (0, 0)

    def run(letter, use, after):
        stream, lasts = ("c", compute[use >= layers]) if letter == "c" else ("m", message)
        begin = max(free.get(stream, 0), *after)
        spans[letter, use] = begin, begin + lasts
        free[stream] = begin + lasts

    def gather(use):
        behind = 1 if use > layers + 1 else 2
        begin, end = spans.get(("c", use - (slots or behind)), never)
        if use < 2 * layers and ("g", use) not in spans:
            run("g", use, [end if slots else begin])

    for use in range(2 * layers):
        for ahead in range(use, use + (slots or 1)):
            if slots or use < layers:
                gather(ahead)
        run("c", use, [spans.get(("g", use), never)[1], spans.get(("r", use - 2), never)[1]])
        if use >= layers:
            if not slots:
                gather(use + 1)
            run("r", use, [spans["c", use][1]])
    return spans


def fsdp2(layers=4, left=112, unit=20.5):
    def row(y, name, bars):
        yield text(left - 6, y + 17, name, 11, text_anchor="end")
        for (begin, end), words, colour in bars:
            yield element("rect", x=round(left + unit * begin, 1), y=y, rx=2, fill=colour,
                          width=round(unit * (end - begin) - 1, 1), height=24)
            yield text(left + unit * (begin + end) / 2, y + 17, words, 10, fill="#ffffff", **MIDDLE)

    def panel(y, title, slots):
        spans, rooms = played(slots), {}
        layer = [*range(layers), *range(layers)[::-1]]

        def stays(room, begin, use, end):
            rooms.setdefault(room, []).append(((begin, end), f"{layer[use]}", COLOURS[0]))

        for (letter, use), (begin, _) in spans.items():
            last = spans["c", use + (not slots and use == layers - 1)][1]
            if letter == "g" and slots:
                stays(f"slot {use % slots + 1}", begin, use, last)
            elif letter == "g":
                stays(f"buffer {use % 2 + 1}", begin, use, spans["c", use][0])
            elif letter == "c" and not slots and use != layers:
                stays("copied out", begin, use, last)
        lanes = {name: [(span, {"c": "fb"[use >= layers]}.get(letter, letter) + str(layer[use]),
                         STREAMS[name]) for (letter, use), span in spans.items() if letter in which]
                 for name, which in (("communication", "gr"), ("compute", "c"))}
        yield text(8, y, title, 12, **BOLD)
        for at, (name, bars) in enumerate([*lanes.items(), *sorted(rooms.items())]):
            yield from row(y + 10 + 28 * at + 6 * (at > 1), name, bars)

    return picture(
        396, "FSDP2 gathers two layers ahead in forward, and keeps the last",
        "By layer: g gather, f forward, b backward, r reduce-scatter. Below: layers in memory",
        *panel(76, "06 at prefetch 1: a gather waits for a free slot", 2),
        *panel(234, "FSDP2, last block kept: a gather waits until an older buffer is copied out",
               0))


def steps_over_ranks(plans, what):
    """Of {plan: [(ranks, micro-batches, figures, whether it fits)]}: dashed where it does not fit.
    A plan whose name ends with + is the one before it with messages beside computation. what: the
    model and the machine, in words."""
    every = [row for rows in plans.values() for row in rows]
    last, colours = max(n for n, *_ in every), {}
    for name in plans:
        colours.setdefault(name.rstrip("+"), COLOURS[len(colours) % len(COLOURS)])

    def panel(top, title, shown, height_of, numbers, said):
        """Curves of shown(figures), at height_of(that); numbers: on the left, from the lowest to
        the highest, as they are said."""
        low, high = height_of(numbers[0]), height_of(numbers[-1])

        def at(n, number):
            return (62 + 510 * math.log2(n) / (math.log2(last) or 1),
                    top + 190 - 180 * (height_of(number) - low) / (high - low))

        yield text(8, top - 8, title, 16, **BOLD)
        for number in numbers:
            yield line(at(1, number), at(last, number), opacity=0.15)
            yield text(56, at(1, number)[1] + 5, said(number), 15, text_anchor="end")
        for power in range(0, last.bit_length(), 2):
            yield text(at(1 << power, numbers[0])[0], top + 212, f"{1 << power}", 15, **MIDDLE)
        ends = {}
        for name, rows in plans.items():
            beside, colour = name.endswith("+"), colours[name.rstrip("+")]
            points = [(*at(n, shown(of)), fits) for n, _, of, fits in rows]
            for (*a, _), (*b, fits) in pairwise(points):
                yield line(a, b, stroke=colour, stroke_width=3 if beside else 1.5,
                           stroke_dasharray="none" if fits else "3 4")
            ends.setdefault(round(points[-1][1] / 3), []).append((name, points[-1][1]))
        y = top + 212
        for _, named in sorted(ends.items(), reverse=True):  # names of one height, three a line
            for at_most in range(3 * ((len(named) - 1) // 3), -1, -3):
                of_line = named[at_most:at_most + 3]
                y = min(of_line[0][1] + 5, y - 18)
                x = 580
                for name, _ in of_line:
                    yield text(x, y, name, 15, fill=colours[name.rstrip("+")])
                    x += 9 * len(name) + 14

    def step(of):
        return of["step"]

    def share(of):
        return 100 * of.get("messages exposed", 0) / of["step"]

    ms, percent = ([shown(of) for _, _, of, _ in every] for shown in (step, share))
    steps = [step * 10 ** power for power in range(-3, 9) for step in (1, 2, 5)]
    among = [step for step, after in pairwise(steps) if after > min(ms)]
    among = among[:next(at for at, step in enumerate(among) if step >= max(ms)) + 1]
    among = among[:1] + among[3::3] if len(among) > 7 else among
    among += [10 * among[-1]] * (among[-1] < max(ms) or len(among) < 2)
    shares = ticks(0, max(8, *percent))
    shares += [2 * shares[-1] - shares[-2]] * (shares[-1] < max(percent))
    unit, size = ("s", 1e3) if among[-1] >= 1e4 else ("ms", 1)
    return picture(
        612, "A step over the number of ranks", what,
        text(8, 66, "Dashed: it does not fit. +, thick: messages pass beside computation", 13,
             opacity=0.75),
        *panel(112, f"{unit} per step", step, math.log, among, lambda ms: f"{ms / size:g}"),
        *panel(362, "of it messages are exposed", share, float, shares, lambda of: f"{of:g} %"),
        text(317, 598, "ranks", 15, **MIDDLE))


DRAWINGS = {"cleared": cleared, "fsdp2": fsdp2, "halves": halves, "number_line": number_line,
            "zero1": zero1}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (ROOT / f"notes/figures/{name}.svg").write_text(draw(), "utf-8")
