# SPDX-License-Identifier: MIT
"""The parts of an SVG file, 720 pixels wide and on white; the planner's picture of a step."""
import math
from itertools import pairwise

from pictures import FONTS
from pictures import KIND_COLOURS as COLOURS
from pictures import ticks

BOLD, MIDDLE = {"font-weight": "bold"}, {"text-anchor": "middle"}


def element(tag, words="", **has):
    said = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in has.items())
    return f"<{tag}{said}>{words}</{tag}>" if words else f"<{tag}{said}/>"


def text(x, y, words, size=11, **has):
    return element("text", words, x=round(x, 1), y=round(y, 1), font_size=size, **has)


def line(*points, **has):
    path = "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points)
    return element("path", d=path, **{"fill": "none", "stroke": "#1f2328"} | has)


def picture(height, title, subtitle, *parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" viewBox="0 0 720 '
        f'{height}" font-family="{FONTS}" fill="#1f2328">',
        element("rect", width=720, height=height, fill="#ffffff"), text(8, 20, title, 16, **BOLD),
        *(text(8, 44 + 17 * at, words, 13, opacity=0.75)
          for at, words in enumerate(subtitle.split("\n"))), *parts, "</svg>\n"])


def steps_over_ranks(plans):
    """Of {plan: [(ranks, micro-batches, figures, whether it fits)]}: dashed where it does not fit.
    A plan whose name ends with + is the one before it with messages beside computation."""
    every = [row for rows in plans.values() for row in rows]
    last, colours = max(n for n, *_ in every), {}
    for name in plans:
        colours.setdefault(name.rstrip("+"), COLOURS[len(colours) % len(COLOURS)])

    def panel(top, what, height_of, numbers, said):
        """numbers: on the left, from the lowest to the highest, as they are said."""
        low, high = height_of(numbers[0]), height_of(numbers[-1])

        def at(n, number):
            return (62 + 510 * math.log2(n) / (math.log2(last) or 1),
                    top + 190 - 180 * (height_of(number) - low) / (high - low))

        yield text(8, top - 8, what, 16, **BOLD)
        for number in numbers:
            yield line(at(1, number), at(last, number), opacity=0.15)
            yield text(56, at(1, number)[1] + 5, said(number), 15, text_anchor="end")
        for power in range(0, last.bit_length(), 2):
            yield text(at(1 << power, numbers[0])[0], top + 212, f"{1 << power}", 15, **MIDDLE)
        ends = {}
        for name, rows in plans.items():
            beside, colour = name.endswith("+"), colours[name.rstrip("+")]
            points = [(*at(n, shown[what](of)), fits) for n, _, of, fits in rows]
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

    shown = {"ms per step": lambda of: of["step"], "of it messages are exposed":
             lambda of: 100 * of.get("messages exposed", 0) / of["step"]}
    ms, share = ([shown[what](of) for _, _, of, _ in every] for what in shown)
    steps = [step * 10 ** power for power in range(-3, 9) for step in (1, 2, 5)]
    among = [step for step, after in pairwise(steps) if after > min(ms)]
    among = among[:next(at for at, step in enumerate(among) if step >= max(ms)) + 1]
    among = among[:1] + among[3::3] if len(among) > 7 else among
    among += [10 * among[-1]] * (among[-1] < max(ms) or len(among) < 2)
    shares = ticks(0, max(8, *share))
    shares += [2 * shares[-1] - shares[-2]] * (shares[-1] < max(share))
    return picture(
        560, "A step over the number of ranks",
        "Dashed: it does not fit. +, thick: messages pass beside computation",
        *panel(90, "ms per step", math.log, among,
               lambda ms: f"{ms:g}" if ms < 1e4 else f"{ms / 1e3:g} s"),
        *panel(340, "of it messages are exposed", float, shares, lambda share: f"{share:g} %"))
