# SPDX-License-Identifier: MIT
"""Draws SVG files, 720 pixels wide on white, as that of plan --draw: a step's time over ranks."""
import math
from itertools import pairwise

from pictures import FONTS
from pictures import KIND_COLOURS as COLOURS
from pictures import ticks

BOLD, MIDDLE = {"font-weight": "bold"}, {"text-anchor": "middle"}


def element(tag, words="", **has):
    """Returns an element of SVG with its attributes `has`, in whose names _ stands for -."""
    said = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in has.items())
    return f"<{tag}{said}>{words}</{tag}>" if words else f"<{tag}{said}/>"


def text(x, y, words, size=11, **has):
    return element("text", words, x=round(x, 1), y=round(y, 1), font_size=size, **has)


def line(*points, **has):
    path = "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points)
    return element("path", d=path, **{"fill": "none", "stroke": "#1f2328"} | has)


def picture(height, title, subtitle, *parts):
    """Returns an SVG file's text. parts: the elements below the title and the lines of subtitle."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" viewBox="0 0 720 '
        f'{height}" font-family="{FONTS}" fill="#1f2328">',
        element("rect", width=720, height=height, fill="#ffffff"), text(8, 20, title, 16, **BOLD),
        *(text(8, 44 + 17 * at, words, 13, opacity=0.75)
          for at, words in enumerate(subtitle.split("\n"))), *parts, "</svg>\n"])


class Plot:
    """A rectangle of a picture, in pixels, with two axes. x, y: the numbers at the ends of an axis.
    An axis is linear in scale(number), so it is logarithmic if scale is math.log."""

    def __init__(self, left, top, right, bottom, x, y, scale_x=float, scale_y=float):
        self.left, self.top, self.right, self.bottom = left, top, right, bottom
        self.x = self.along(x, scale_x, left, right)
        self.y = self.along(y, scale_y, bottom, top)

    @staticmethod
    def along(ends, scale, first, last):
        """Returns a function that returns a number's place on an axis, in pixels."""
        low, high = map(scale, ends)
        return lambda number: first + (last - first) * (scale(number) - low) / (high - low)

    def at(self, points):
        return [(self.x(x), self.y(y)) for x, y in points]

    def curve(self, points, **has):
        return line(*self.at(points), **{"stroke_width": 2} | has)

    def marks(self, points, shape, **has):
        return "\n".join(element("path", d=shape, transform=f"translate({x:.5g} {y:.5g})", **has)
                         for x, y in self.at(points))

    def axes(self, columns, rows, below="", beside=""):
        """Yields the axes' lines and numbers. columns, rows: {number: its text}, along x and y.
        below, beside: what these numbers mean."""
        for number, said in rows.items():
            y = self.y(number)
            yield line((self.left, y), (self.right, y), opacity=0.15)
            yield text(self.left - 7, y + 4.5, str(said), 13, text_anchor="end", opacity=0.8)
        for number, said in columns.items():
            yield line((self.x(number), self.bottom), (self.x(number), self.bottom + 4),
                       opacity=0.5)
            yield text(self.x(number), self.bottom + 18, str(said), 13, opacity=0.8, **MIDDLE)
        yield line((self.left, self.top), (self.left, self.bottom), (self.right, self.bottom),
                   opacity=0.5)
        yield text((self.left + self.right) / 2, self.bottom + 35, below, 13, opacity=0.8, **MIDDLE)
        yield text(self.left, self.top - 8, beside, 13, opacity=0.8)


def steps_over_ranks(plans, what):
    """Returns the picture of `plans`, {plan: [(ranks, micro-batches, figures, whether it fits)]},
    as times.scaled() returns it. A plan is dashed where it does not fit. A plan whose name ends
    with + has messages beside computation. what: the model and the machine, in words."""
    every = [row for rows in plans.values() for row in rows]
    last, colours = max(n for n, *_ in every), {}
    for name in plans:
        colours.setdefault(name.rstrip("+"), COLOURS[len(colours) % len(COLOURS)])

    def panel(top, title, shown, scale, numbers, said):
        """Yields a plot of shown(figures). said(number): the text at each of the axis' numbers."""
        plot = Plot(62, top, 572, top + 190, (1, max(2, last)), (numbers[0], numbers[-1]),
                    math.log2, scale)
        yield text(8, top - 14, title, 16, **BOLD)
        yield from plot.axes({2 ** power: 2 ** power for power in range(0, last.bit_length(), 2)},
                             {number: said(number) for number in numbers})
        ends = []
        for name, rows in plans.items():
            colour, width = colours[name.rstrip("+")], 3 if name.endswith("+") else 1.5
            points = [(n, shown(figures)) for n, _, figures, _ in rows]
            for a, b, (*_, fits) in zip(points, points[1:], rows[1:]):
                yield plot.curve([a, b], stroke=colour, stroke_width=width,
                                 stroke_dasharray="none" if fits else "3 4")
            ends.append((plot.y(points[-1][1]), name, colour))
        for at, (_, name, colour) in enumerate(sorted(ends)):  # top to bottom, as the lines end
            yield text(585, top + 10 + 15 * at, name, 14, fill=colour)

    def step(figures):
        return figures["step"]

    def share(figures):
        return 100 * figures.get("messages exposed", 0) / figures["step"]

    ms, percent = ([shown(figures) for _, _, figures, _ in every] for shown in (step, share))
    # Round numbers for a logarithmic axis, from below the least to above the greatest time.
    steps = [step * 10 ** power for power in range(-3, 9) for step in (1, 2, 5)]
    numbers = [step for step, after in pairwise(steps) if after > min(ms)]
    numbers = numbers[:next(at for at, step in enumerate(numbers) if step >= max(ms)) + 1]
    if len(numbers) > 7:
        numbers = numbers[:1] + numbers[3::3]  # each is ten times the one before
    if numbers[-1] < max(ms) or len(numbers) < 2:
        numbers.append(10 * numbers[-1])
    shares = ticks(0, max(8, *percent))
    if shares[-1] < max(percent):
        shares.append(2 * shares[-1] - shares[-2])
    unit, size = ("s", 1e3) if numbers[-1] >= 1e4 else ("ms", 1)
    return picture(
        600, "A step over the number of ranks",
        f"{what}\nDashed: it does not fit. +, thick: messages pass beside computation",
        *panel(112, f"{unit} per step", step, math.log, numbers, lambda ms: f"{ms / size:g}"),
        *panel(362, "of it messages are exposed", share, float, shares, lambda at: f"{at:g} %"),
        text(317, 590, "ranks", 13, opacity=0.8, **MIDDLE))
