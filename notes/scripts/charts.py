# SPDX-License-Identifier: MIT
"""Two kinds of pictures of the report: curves with points of runs, and rows of bars."""
from dataclasses import dataclass, field

import figures
from findings import picture, place


@dataclass
class Curve:
    """By formula over some places of an axis, and points (x, y) of runs, in a chapter's colour."""
    run: object
    label: str
    heights: list
    points: list = field(default_factory=list)
    dotted: bool = False

    def cells(self, places, form):
        """Of each place: by formula / of a run."""
        return [" / ".join(format(y, form) for y in (
            height, *(y for x, y in self.points if x == here)))
            for here, height in zip(places, self.heights)]


def curves(words, found, places, ticks, xlabel, ylabel, log=True):
    """Both axes are logarithmic, or the lower one alone. Curves that lie below others are wider."""
    fig, axes = picture(720, 400, words)
    for i, curve in enumerate(found):
        below = [other for other in found[i + 1:] if other.heights == curve.heights]
        style = {"color": figures.CHAPTER_COLOURS[place(curve.run)]}
        axes.plot(places, curve.heights, linestyle=":" if curve.dotted else "-",
                  linewidth=2 + 3 * len(below), label=curve.label, **style)
        axes.plot([x for x, _ in curve.points], [y for _, y in curve.points], linestyle="",
                  marker=figures.CHAPTER_MARKERS[place(curve.run)], markersize=8,
                  fillstyle="none" if curve.dotted else "full", **style)
    axes.set(xscale="log", xlabel=xlabel, ylabel=ylabel)
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(figures.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.legend(title="chapter")
    return fig


def bars(words, rows, unit, columns):
    """rows: {label: bars, one below the other, each of {name: (length, colour, style)}}. The legend
    stands above, in so many columns. Answers the figure and its axes."""
    height = 90 + 40 * len(rows)
    fig, axes = picture(720, height, words)
    named = set()
    for i, parts in enumerate(rows.values()):
        for k, part in enumerate(parts):
            y, left = i + (k + 0.5) / len(parts) * 0.8 - 0.4, 0
            for name, (length, colour, style) in part.items():
                axes.barh(y, length, 0.75 / len(parts), left, color=colour,
                          label=None if name in named else name, **style)
                named.add(name)
                left += length
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    axes.set_xlabel(unit)
    fig.legend(loc="upper left", ncols=columns)
    fig.set_layout_engine("constrained", rect=(0, 0, 1, 1 - (10 + 20 * -(-len(named) // columns))
                                               / height))
    return fig, axes
