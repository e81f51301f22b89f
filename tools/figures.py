# SPDX-License-Identifier: MIT
"""The house style of the pictures, and two ways to keep them."""
import hashlib
import html
import io
import os
import re
from pathlib import Path

from runs import Failure

# Its list of fonts; without this it would be written to the reader's home.
os.environ.setdefault("MPLCONFIGDIR", str(Path(__file__).resolve().parents[1] / "build/matplotlib"))
try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    matplotlib = None

# Everything that is neither data nor background; two hexadecimal digits more make it lighter.
# `file` and `inline` put another colour in its place: no figure may use it for anything else.
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
FONTS = "DejaVu Sans, Verdana, sans-serif"
# What Matplotlib writes and no picture needs, and what takes its place.
SHORTER = (
    (r" *<metadata>.*?</metadata>\n| *<defs>\s*<style.*?</defs>\n", ""),
    (r' transform="rotate\(-0 [^"]*"|text-anchor: start|(?<=<g) id="[^"]*"', ""),
    (r"font: 700 (\S+) 'DejaVu Sans'", r"font-size: \1; font-weight: bold"),
    (r"font: (\S+) 'DejaVu Sans'", r"font-size: \1"),
    (r'(width|height)="([\d.]+)pt"', r'\1="\2"'),
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),  # within a tag
    (r" \n(?=[LMQCz])|\n(?=z)", " "))
# Of middle luminance, to be read on white and on nearly black, and at least 0.12 apart in Oklab
# with every kind of colour vision. Where curves cross, markers tell chapters apart too.
CHAPTER_COLOURS = ("#5696ed", "#ff5811", "#1c50fb", "#13a78d", "#7355be", "#c6200f", "#4b6e73")
CHAPTER_MARKERS = ("v", "^", "o", "s", "D", "X", "P")
KIND_COLOURS = ("#0669aa", "#e37713", "#277562", "#a124ff", "#0fa78c", "#d30b07", "#9788e6")


def figure(width, height, rows=1, columns=1, title="", subtitle=""):
    """A figure of so many pixels, and its axes as `Figure.subplots` answers them.

    The title is what the figure shows, in words: readers who cannot see it hear it. Units are
    pixels at the width asked for, so a font of 13 is 13 pixels high in a page that shows it so."""
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
    return fig, fig.subplots(rows, columns)


def svg(fig, ink, paper):
    """The <svg> element alone: no header, no date, no name of a program; sizes in pixels. Text is
    text, in a font that the reader has: a label needs room for one a bit wider."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # places are settled: another pass would move them by a little
    file = io.StringIO()
    fig.savefig(file, format="svg", facecolor=paper)
    text = file.getvalue()
    for pattern, new in SHORTER:
        text = re.sub(pattern, new, text, flags=re.DOTALL)
    text = text[text.index("<svg"):].replace(INK, ink)
    return text.replace("<svg ", f'<svg style="stroke-linejoin: round" font-family="{FONTS}" ', 1)


def file(fig):
    """An SVG file, on white; the same figure gives the same bytes."""
    return svg(fig, "#1f2328", "white")


def inline(fig):
    """An <svg> element for a page: transparent, its ink the page's colour of text."""
    text = svg(fig, "currentColor", "none")
    own = "f" + hashlib.sha256(text.encode()).hexdigest()[:8] + "-"  # ids are the whole page's
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{own}", text)
    label = html.escape(" ".join(fig.get_label().split()))
    return text.replace('<svg style="', f'<svg role="img" aria-label="{label}" '
                        'style="max-width: 100%; height: auto; ', 1)
