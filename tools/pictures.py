# SPDX-License-Identifier: MIT
"""Draws pictures for an HTML page, as SVG: as wide as the page, with text that keeps its size. The
colours of curves, kinds of memory and streams are here, too."""
import itertools
import math
from html import escape

# These colours have a middle luminance, so that they can be read on white and on nearly
# black. Colour-blind readers mix some up, so curves also have marks or dashes, slices have letters.
CHAPTER_COLOURS = ("#5696ed", "#ff5811", "#1c50fb", "#13a78d", "#7355be", "#c6200f", "#4b6e73")
KIND_COLOURS = ("#0669aa", "#e37713", "#277562", "#a124ff", "#0fa78c", "#d30b07", "#9788e6")
# The streams' colours, in the order of their lanes. 07 has one stream of copies, 08 one each way.
STREAMS = {"communication": "#5696ed", "compute": "#13a78d", "copies": "#4b6e73",
           "copies up": "#4b6e73", "copies down": "#ff5811", "host cores": "#7355be",
           "reads": "#1c50fb", "writes": "#a124ff"}
FONTS = "DejaVu Sans, Verdana, sans-serif"
WEAK = "66"  # appended to a colour: its opacity, 40 %


def text(share, y, words, anchor="start", kind=""):
    """Returns a text at `share` of the width, 0 to 1, and at y pixels. kind: a class of the CSS."""
    return (f'<text x="{100 * share:.2f}%" y="{y}" text-anchor="{anchor}" class="{kind}">'
            f"{escape(words)}</text>")


def rect(begin, end, y, height, colour):
    """Returns a rectangle: begin and end are shares of the width, y and height are pixels."""
    return (f'<rect x="{100 * begin:.3f}%" width="{100 * (end - begin):.3f}%" y="{y}" '
            f'height="{height}" fill="{colour}"/>')


def svg(height, label, parts):
    return (f'<svg width="100%" height="{height}" role="img" aria-label="{escape(label)}">\n'
            + "\n".join(parts) + "\n</svg>\n")


def legend(colours):
    return '<p class="legend">' + " ".join(
        f'<span><span aria-hidden="true" style="color: {colour}">■</span> {escape(name)}</span>'
        for name, colour in colours.items()) + "</p>\n"


def figure(caption, colours, drawn, layout=""):
    """Returns a figure of pairs (heading, picture). colours: the legend's {name: colour}; if it is
    empty, there is no legend. layout: a class of the page's CSS."""
    parts = (f"<div>\n<h3>{heading}</h3>\n{picture}</div>\n" for heading, picture in drawn)
    return (f"<figure>\n<figcaption>{caption}\n{legend(colours) if colours else ''}</figcaption>\n"
            f'<div class="{layout}">\n{"".join(parts)}</div>\n</figure>')


def ticks(low, high):
    """Returns two to five round numbers between low and high; at most one if these are equal."""
    power = 10 ** math.floor(math.log10(high - low)) if high > low else 1
    step = next(step for step in (power / 5, power / 2, power, 2 * power, 5 * power)
                if (high - low) / step < 5)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def axis(low, high, y, unit):
    """Returns an axis' texts, at y pixels: round numbers from low to high, at the end a unit."""
    at = ((tick, (tick - low) / ((high - low) or 1)) for tick in ticks(low, high))
    return [text(share, y, f"{tick:.9g}", "middle" if share else "start", "tick")
            for tick, share in at if share < 0.85] + [text(1, y, unit, "end", "tick")]


def bars(label, rows, most, size=1, unit=""):
    """Draws a bar for each row: (name, words on the right, [(length, colour)]). A bar of length
    `most` is as wide as the page. unit: the axis' unit, which is `size` long; "": no axis."""
    parts = []
    for y, (name, said, lengths) in zip(itertools.count(0, 40), rows):
        parts += [text(0, y + 14, name), text(1, y + 14, said, "end", "said")]
        left = 0
        for length, colour in lengths:
            if length > 0:
                parts.append(rect(left, left + length / most, y + 19, 13, colour))
            left += length / most
    height = 40 * len(rows)
    if unit:
        parts += axis(0, most / size, height + 10, unit)
        height += 16
    words = "; ".join(f"{name.strip()}: {said}" for name, said, _ in rows)
    return svg(height, f"{label}. {words}", parts)


def curves(label, lines):
    """Draws each line, [(step, height)], in its own colour and dashes. None interrupts a line."""
    steps = [step for line in lines for step, _ in line]
    heights = [height for line in lines for _, height in line if height is not None] or [0]
    first, last, low, high = min(steps), max(steps), min(heights), max(heights)
    parts = []
    for tick in ticks(low, high):
        y = 8 + 150 * (high - tick) / ((high - low) or 1)
        parts += [rect(0, 1, f"{y:.1f}", 1, "#8884"),
                  text(1, f"{y - 3:.1f}", f"{tick:g}", "end", "tick")]
    # This part is stretched to the page's width, but its lines keep their thickness.
    parts.append('<svg y="8" width="100%" height="150" viewBox="0 0 1000 1000" overflow="visible" '
                 'preserveAspectRatio="none">')
    for i, line in enumerate(lines):
        path, pen = "", "M"
        for step, height in line[::max(1, len(line) // 1000)]:
            if height is not None:
                path += (f"{pen}{1000 * (step - first) / ((last - first) or 1):.1f} "
                         f"{1000 * (high - height) / ((high - low) or 1):.1f}")
            pen = "M" if height is None else "L"
        dashes = f"{12 - i % 7} {2 * i}" if i else "none"
        parts.append(f'<path class="curve" d="{path}" stroke="{CHAPTER_COLOURS[i % 7]}" '
                     f'stroke-dasharray="{dashes}"/>')
    return svg(182, label, [*parts, "</svg>", *axis(first, last, 176, "step")])


def timeline(label, begin, end, slices, waits):
    """Draws a lane for each stream that has slices, (begin, end, stream, letters, whether pale). In
    red are the waits, (begin, end), beside which nothing is computed. Times are in microseconds."""
    def within(start, stop):
        return [min(1, max(0, (at - begin) / (end - begin))) for at in (start, stop)]

    lanes, parts = [name for name in STREAMS if name in {one[2] for one in slices}], []
    for start, stop, name, letters, pale in slices:
        left, right = within(start, stop)
        y = 30 * lanes.index(name)
        if right > left:
            parts.append(rect(left, right, y, 26, STREAMS[name] + (WEAK if pale else "")))
        # A slice has letters if they fit on a page 330 pixels wide, or else only on a wide page.
        kinds = [kind for width, kind in ((330, ""), (900, " wide"))
                 if (right - left) * width > 8 * len(letters)]
        if kinds:
            parts.append(text((left + right) / 2, y + 17, letters, "middle",
                              ("" if pale else "on") + kinds[0]))
    below = 30 * len(lanes)
    parts += [rect(*within(*piece), below, 6, CHAPTER_COLOURS[5]) for piece in waits]
    return svg(below + 26, label, [*parts, *axis(0, (end - begin) / 1e3, below + 22, "ms")])
