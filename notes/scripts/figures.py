# SPDX-License-Identifier: MIT
"""The house style of the pictures, two ways to keep them, and those of measured runs."""
import hashlib
import html
import io
import math
import os
import re
from pathlib import Path

import compare
from runs import CHAPTERS, Failure

# Its list of fonts; without this it would be written to the reader's home.
os.environ.setdefault("MPLCONFIGDIR", str(Path(__file__).resolve().parents[2] / "build/matplotlib"))
try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    matplotlib = None

# Everything that is neither data nor background; two hexadecimal digits more make it lighter.
# `save` and `inline` put another colour in its place: no figure may use it for anything else.
INK = "#010203"
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 13, "svg.fonttype": "path", "svg.hashsalt": "zero",
    "text.color": INK, "axes.labelcolor": INK + "cc", "axes.titlesize": 13,
    "axes.titlelocation": "left", "axes.titlecolor": INK + "cc",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK + "80",
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": INK, "grid.alpha": 0.15,
    "xtick.color": INK + "80", "ytick.color": INK + "80",
    "xtick.labelcolor": INK + "cc", "ytick.labelcolor": INK + "cc",
    "legend.frameon": False, "legend.fontsize": 13, "axes.facecolor": "none", "lines.linewidth": 2,
}
# Of middle luminance, to be read on white and on nearly black, and told apart with every kind of
# colour vision (tests/pages/figures_test.py). Where curves cross, markers tell chapters apart too.
CHAPTER_COLOURS = ("#5696ed", "#ff5811", "#1c50fb", "#13a78d", "#7355be", "#c6200f", "#4b6e73")
CHAPTER_MARKERS = ("v", "^", "o", "s", "D", "X", "P")
KIND_COLOURS = ("#0669aa", "#e37713", "#277562", "#a124ff", "#0fa78c", "#d30b07", "#9788e6")


def figure(width, height, rows=1, columns=1, title="", subtitle="", **subplots):
    """A figure of so many pixels, and its axes as `Figure.subplots` answers them.

    The title is what the figure shows, in words: readers who cannot see it hear it. Units are
    pixels at the width asked for, so a font of 13 is 13 pixels high in a page that shows it so.
    """
    if matplotlib is None:
        raise Failure("no figures: matplotlib is missing (Debian's package is python3-matplotlib)")
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    fig = Figure(figsize=(width / 72, height / 72), dpi=72, label=f"{title}. {subtitle}")
    top = height - 8
    for words, size, style in ((title, 16, {"weight": "bold"}), (subtitle, 13, {"alpha": 0.75})):
        if words:
            fig.text(8 / width, top / height, words, size=size, va="top", linespacing=1.3, **style)
            top -= 1.45 * size * len(words.splitlines()) + 3
    fig.set_layout_engine("constrained", rect=(0, 0, 1, top / height), w_pad=0.1, h_pad=0.1)
    return fig, fig.subplots(rows, columns, **subplots)


def svg(fig, ink, paper):
    """The <svg> element alone: no header, no date, no name of a program; sizes in pixels."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # places are settled: another pass would move them by a little
    file = io.StringIO()
    fig.savefig(file, format="svg", facecolor=paper)
    text = re.sub(r" *<metadata>.*?</metadata>\n| *<defs>\s*<style.*?</defs>\n", "",
                  file.getvalue(), flags=re.DOTALL)
    text = re.sub(r"scale\([^)]*\)|(\d+\.\d\d)\d+", lambda found: found[1] or found[0], text)
    text = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', text[text.index("<svg"):])
    return text.replace("<svg ", '<svg style="stroke-linejoin: round" ', 1).replace(INK, ink)


def save(fig, path):
    """Writes an SVG file on white; the same figure gives the same bytes."""
    path.write_text(svg(fig, "#1f2328", "white"))


def inline(fig):
    """An <svg> element for a page: transparent, its ink the page's colour of text."""
    text = svg(fig, "currentColor", "none")
    own = "f" + hashlib.sha256(text.encode()).hexdigest()[:8] + "-"  # ids are the whole page's
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{own}", text)
    label = html.escape(" ".join(fig.get_label().split()))
    return text.replace('<svg style="', f'<svg role="img" aria-label="{label}" '
                        'style="max-width: 100%; height: auto; ', 1)


# ---- Figures of the notes --------------------------------------------------------------------

def layers(points, formula, ranks, parameters):
    """What is saved, in percent, over the number of layers.

    points: (layers, resident, peak in fp32, peak in bf16); formula: (layers, peak in fp32, peak in
    bf16), as close as a line needs them.
    """
    theory = 100 * (1 - 1 / ranks)
    counts, resident, *peaks = zip(*points)
    places, *lines = zip(*formula)
    fig, ax = figure(
        720, 420, title=f"In fp32 ZeRO-3 saves {peaks[0][0]:.0f} % with {counts[0]} layers, "
        f"{peaks[0][-1]:.0f} % with {counts[-1]}; theory: {theory:.0f} %",
        subtitle=f"Share of 16 bytes a parameter that one of {ranks} ranks does not need: the same "
        f"{parameters / 1e6:.2f} million\nparameters in {counts[0]} to {counts[-1]} layers. "
        "Lines: formula; points: measured")
    ax.axhline(theory, color=INK, alpha=0.5, linestyle="--", linewidth=1.5)
    ax.plot(counts, resident, "o", color=INK, fillstyle="none", alpha=0.6)
    ax.text(counts[0], theory + 2, f"theory, and what is resident: 1 - 1/N = {theory:.0f} %")
    for name, line, peak, (x, y), side, colour, marker in (
            ("fp32", lines[0], peaks[0], (6.4, 52), "left", CHAPTER_COLOURS[1], "s"),
            ("bf16", lines[1], peaks[1], (5.6, 66), "right", CHAPTER_COLOURS[2], "o")):
        ax.plot(places, line, color=colour)
        ax.plot(counts, peak, marker, color=colour)
        ax.text(x, y, f"peak in {name}", color=colour, ha=side)
        ax.text(1.05 * counts[0], peak[0] - 3.5, f"{peak[0]:.0f} %", color=colour)
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, counts)
    ax.set_yticks(range(0, 90, 10), [f"{share} %" for share in range(0, 90, 10)])
    ax.set(xlabel="layers", ylabel="saved", xlim=(places[0], places[-1]), ylim=(0, 85))
    return fig


def link(runs):
    """The time of a step over the speed of a link, measured with --link.

    runs: lists, one a chapter and all on the same links: first the run without a limit, then those
    with one. Formulas, in ms: with no limit t, of the bits that a rank sends b, of Gbit/s g:
    t + b / 1e6 g where all waiting is for the link, b / 1e6 g for the link alone.
    """
    def bits_sent(run):
        sent = sum(phase["counted"] for phase in run.summary["traffic"]["phases"].values())
        return 8 * (4 if run.dtype == "fp32" else 2) * sent / len(run.steps)

    speeds = [run.info["options"]["link"] for run in runs[0][1:]]
    slower = [last.summary["median_ms"] / before.summary["median_ms"]
              for last, before in zip(runs[-1], runs[-2])]
    fig, ax = figure(
        720, 440, title=f"At {speeds[0]:g} Gbit/s {runs[-1][0].number} takes {slower[1]:.2f} times "
        f"as long as {runs[-2][0].number}, at {speeds[-1]:g} Gbit/s {slower[-1]:.2f} times",
        subtitle="Points: measured, the median of "
        f"{len(runs[0][0].steps)} steps on {runs[0][0].ranks} ranks. Lines: the step without a "
        "limit and,\nafter it, all that a rank sends. Dashed: what the link takes alone")
    link_alone = {}
    for row in runs:
        i = CHAPTERS.index(row[0].chapter)
        alone = link_alone[compare.elements_sent(row[0])[1]] = [
            bits_sent(row[0]) / (1e6 * speed) for speed in speeds]
        ax.plot(speeds, [row[0].summary["median_ms"] + ms for ms in alone],
                color=CHAPTER_COLOURS[i])
        ax.plot(speeds, [run.summary["median_ms"] for run in row[1:]], CHAPTER_MARKERS[i],
                color=CHAPTER_COLOURS[i], markersize=8, label=row[0].chapter)
    for sent, alone in link_alone.items():
        ax.plot(speeds, alone, color=INK, alpha=0.6, linestyle="--", linewidth=1)
        ax.text(speeds[-2], 1.04 * alone[-2], f"{sent} elements a parameter", size=11, alpha=0.8,
                ha="center", va="bottom", rotation_mode="anchor", transform_rotates_text=True,
                rotation=math.degrees(math.atan2(-alone[-2], speeds[-2])))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(speeds, [f"{speed:g}" for speed in speeds])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="link of each rank (Gbit/s)", ylabel="a step (ms)")
    ax.legend(loc="lower left")
    return fig
