# SPDX-License-Identifier: MIT
"""The house style of the figures in notes/figures, and how they are kept."""
import io
import os
import re
from pathlib import Path

# Its list of fonts; without this it would be written to the reader's home.
os.environ.setdefault("MPLCONFIGDIR", str(Path(__file__).resolve().parents[1] / "build/matplotlib"))
import matplotlib
from matplotlib.figure import Figure

from pictures import FONTS

# Everything that is neither data nor background; two hexadecimal digits more make it lighter.
# `file` puts another colour in its place: no figure may use it for anything else.
INK = "#010203"
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 13, "svg.fonttype": "none", "svg.hashsalt": "zero",
    "text.color": INK, "axes.labelcolor": INK + "cc",
    "axes.titlesize": 13, "axes.titlelocation": "left", "axes.titlecolor": INK + "cc",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK + "80",
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": INK, "grid.alpha": 0.15, "xtick.color": INK + "80", "ytick.color": INK + "80",
    "xtick.labelcolor": INK + "cc", "ytick.labelcolor": INK + "cc",
    "legend.frameon": False, "legend.fontsize": 13, "axes.facecolor": "none", "lines.linewidth": 2}
# What Matplotlib writes and no picture needs, and what takes its place.
SHORTER = (
    (r" *<metadata>.*?</metadata>\n| *<defs>\s*<style.*?</defs>\n", ""),
    (r' transform="rotate\(-0 [^"]*"|text-anchor: start|(?<=<g) id="[^"]*"', ""),
    (r"font: 700 (\S+) 'DejaVu Sans'", r"font-size: \1; font-weight: bold"),
    (r"font: (\S+) 'DejaVu Sans'", r"font-size: \1"),
    (r'(width|height)="([\d.]+)pt"', r'\1="\2"'),
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),  # within a tag
    (r" \n(?=[LMQCz])|\n(?=z)", " "))


def figure(width, height, rows=1, columns=1, title="", subtitle=""):
    """A figure of so many pixels, and its axes as `Figure.subplots` answers them.

    Units are pixels at the width asked for, so a font of 13 is 13 pixels high in a page that shows
    it so."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    fig = Figure(figsize=(width / 72, height / 72), dpi=72)
    top = height - 8
    for words, size, style in ((title, 16, {"weight": "bold"}), (subtitle, 13, {"alpha": 0.75})):
        if words:
            fig.text(8 / width, top / height, words, size=size, va="top", linespacing=1.3, **style)
            top -= 1.45 * size * len(words.splitlines()) + 3
    fig.set_layout_engine("constrained", rect=(0, 0, 1, top / height), w_pad=0.1, h_pad=0.1)
    return fig, fig.subplots(rows, columns)


def file(fig):
    """An SVG file, on white; the same figure gives the same bytes: no header, no date, no name of a
    program; sizes in pixels. Text is text, in a font that the reader has: a label needs room for
    one a bit wider."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # places are settled: another pass would move them by a little
    written = io.StringIO()
    fig.savefig(written, format="svg", facecolor="white")
    text = written.getvalue()
    for pattern, new in SHORTER:
        text = re.sub(pattern, new, text, flags=re.DOTALL)
    text = text[text.index("<svg"):].replace(INK, "#1f2328")
    return text.replace("<svg ", f'<svg style="stroke-linejoin: round" font-family="{FONTS}" ', 1)
