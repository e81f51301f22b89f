# SPDX-License-Identifier: MIT
"""The pictures: the house style, two ways to keep a figure, and the figures themselves."""
import hashlib
import html
import io
import os
import re
import subprocess
from pathlib import Path

from runs import CHAPTERS, KINDS, Failure, kinds_of

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
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": INK, "grid.alpha": 0.15,
    "xtick.color": INK + "80", "ytick.color": INK + "80",
    "xtick.labelcolor": INK + "cc", "ytick.labelcolor": INK + "cc",
    "legend.frameon": False, "legend.fontsize": 13, "axes.facecolor": "none", "lines.linewidth": 2,
}
# Told apart with every kind of colour vision, and readable on white as on nearly black: their
# luminance lies in the middle. Curves that cross are told apart by CHAPTER_DASHES too.
CHAPTER_COLOURS = ("#256d79", "#ff5e16", "#005cd8", "#1ea99a", "#c90208", "#6494ff")
CHAPTER_DASHES = ("-", (0, (1, 1)), (0, (5, 2)), (0, (5, 2, 1, 2)), (0, (9, 2)), "-")
KIND_COLOURS = ("#4860a8", "#f76e10", "#3aa88c", "#8625ff", "#497466", "#db000a", "#4f9ae8")


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
    for words, size, style in ((title, 17, {"weight": "bold"}), (subtitle, 13, {"alpha": 0.75})):
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
    text = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', text[text.index("<svg"):])
    text = text.replace("<svg ", f'<svg style="stroke-linejoin: round" ', 1)
    return text.replace(INK, ink)


def save(fig, path):
    """Writes an SVG file on white; the same figure gives the same bytes."""
    path.write_text(svg(fig, "#1f2328", "white"))


def inline(fig):
    """An <svg> element for a page: transparent, its ink the page's colour of text."""
    text = svg(fig, "currentColor", "none")
    own = "f" + hashlib.sha256(text.encode()).hexdigest()[:8] + "-"  # ids are the whole page's
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{own}", text)
    label = html.escape(" ".join(fig.get_label().split()))
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


CURVES_IN_TEXT = """\
set terminal dumb size 79,21 ascii mono
set xlabel 'step'
set label 1 'loss, nats a byte' at graph 0.02, graph 0.06
set xrange [0:{steps}]
set tics out nomirror
set border 3
plot {curves}
"""

# Tics point inwards: with margins of its own, gnuplot 5.4 drops the labels of outward ones.
SVG = """\
set encoding utf8
set terminal svg size {size} rounded font 'Helvetica,Arial,sans-serif,14' background '#ffffff'
set output '{output}'
set border 3 linecolor '#777777'
set tics nomirror scale 0.5 textcolor '#333333'
set grid ytics linecolor '#e4e4e4' linewidth 1 linetype 1
set label 1 '{{/:Bold {title}}}' at screen {left}, {title_y} left font ',18'
set label 2 '{subtitle}' at screen {left}, {subtitle_y} left textcolor '#555555'
"""

LOSS = """\
set multiplot
set key at graph 0.98, graph 0.98 top right title 'chapter' right Right samplen 2.5 spacing 1.3
"""

LOSS_PANEL = """\
set margins screen {left}, screen {right}, screen {bottom}, screen {top}
set title '{dtype}, {what}' offset 0, -0.5
set xlabel '{xlabel}' offset 0, 0.4
set ylabel '{ylabel}' offset 1.2, 0
set xrange [{x}]
set yrange [{y}]
set key {key}
plot {curves}
unset label
"""

MEMORY = """\
set label 3 'fp32' at {fp32}, graph -0.11 center
set label 4 'bf16' at {bf16}, graph -0.11 center
set margins screen 0.075, screen 0.78, screen 0.12, screen 0.85
set ylabel 'decimal MB'
set xtics ({names}) scale 0
set xrange [-0.6:{right}]
set yrange [0:*]
set style fill solid 1 noborder
set key at screen 0.80, graph 1 top left reverse Left samplen 2 spacing 1.4
plot {bars}, \
  $frames using 1:2:($1-0.35):($1+0.35):2:3 with boxxyerror fillstyle empty \
    linecolor '#000000' linewidth 1.3 title 'formula, by kind', \
  $totals using 1:2 with points pointtype 7 pointsize 0.7 linecolor '#000000' \
    title 'measured, all kinds'
"""

LAYERS = """\
set margins screen 0.085, screen 0.97, screen 0.135, screen 0.84
set logscale x 2
set xrange [2.7:53]
set yrange [0:85]
set ytics 0, 10, 80
set xtics ({ticks}) nomirror
set format y '%g %%'
set xlabel 'layers' offset 0, 0.3
set key off
set label 3 'theory, and what is resident: 1 - 1/N = 75 %' at 2.85, 79.2 left textcolor '#333333'
set label 4 'peak in bf16' at 5.2, 67.2 right textcolor '{bf16}'
set label 5 'peak in fp32' at 6.5, 52.5 left textcolor '{fp32}'
set label 6 '{first_bf16:.0f} %' at 3.12, {first_bf16} - 1.2 left textcolor '{bf16}'
set label 7 '{first_fp32:.0f} %' at 3.12, {first_fp32} - 1.2 left textcolor '{fp32}'
set label 8 'lines: formula; points: measured' at graph 0.985, graph 0.06 right \
  textcolor '#555555'
plot 75 with lines linewidth 1.5 dashtype 2 linecolor '#777777', \
  $formula using 1:3 with lines linewidth 2 linecolor '{bf16}', \
  $formula using 1:2 with lines linewidth 2 linecolor '{fp32}', \
  $points using 1:2 with points pointtype 6 pointsize 0.9 linewidth 1.5 linecolor '#777777', \
  $points using 1:4 with points pointtype 7 pointsize 0.9 linecolor '{bf16}', \
  $points using 1:3 with points pointtype 7 pointsize 0.9 linecolor '{fp32}'
"""

def draw(script, text):
    """Runs gnuplot on a script kept beside its output, so that a reader can change it."""
    script.write_text(text)
    done = subprocess.run(["gnuplot", str(script)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"gnuplot could not draw {script}: {done.stderr.strip()}")
    return done.stdout


def datablock(name, rows):
    """Numbers inside a script, which calls them $name."""
    lines = "".join(" ".join(map(str, row)) + "\n" for row in rows)
    return f"${name} << END\n{lines}END\n"


def write_losses(runs, path):
    """One column a run; gnuplot leaves a gap where a loss is not finite."""
    rows = zip(*([("NaN" if loss is None else repr(loss)) for loss in run.losses]
                 for run in runs))
    path.write_text("".join(f"{step} {' '.join(row)}\n" for step, row in enumerate(rows, 1)))


def curves_in_text(runs, losses, steps):
    """Four curves that lie on each other, each marked at other steps so that all are seen."""
    marks = {("fp32", "02"): "2", ("fp32", "06"): "6", ("bf16", "03"): "b", ("bf16", "06"): "B"}
    stride = max(1, steps // 48)
    curves = []
    for column, run in enumerate(runs, start=2):
        mark = marks.get((run.dtype, run.number))
        if mark:
            every = f"{4 * stride}::{len(curves) * stride}"
            curves.append(f"'{losses}' using 1:{column} every {every} with points "
                          f"pointtype '{mark}' title '{run.number} {run.dtype}'")
    return CURVES_IN_TEXT.format(steps=steps, curves=", ".join(curves))


def loss_curves(runs, losses, dtype):
    """All curves of a dtype, the thickest below: a curve that left the others would be seen."""
    return ", ".join(
        f"'{losses}' using 1:{column} with lines linewidth {13 - 2.3 * i:.1f} "
        f"linecolor '{CHAPTER_COLOURS[i]}' title '{run.number}'"
        for column, run in enumerate(runs, start=2) for i in [CHAPTERS.index(run.chapter)]
        if run.dtype == dtype)


def loss(runs, losses, output, steps):
    """Above, the whole runs; below, their last steps, wide enough to tell the curves apart."""
    first = max(1, steps - 24)
    last_losses = [v for run in runs for v in run.losses[first - 1:] if v is not None] or [0]
    space = 0.15 * (max(last_losses) - min(last_losses)) or 0.1
    above = {"what": f"all {steps} steps", "xlabel": "", "x": f"0:{1.01 * steps}", "y": "*:*",
             "key": "on", "bottom": 0.42, "top": 0.84}
    below = {"what": f"the last {steps - first + 1} steps", "xlabel": "step",
             "x": f"{first - 0.5}:{steps + 0.5}", "key": "off", "bottom": 0.09, "top": 0.31,
             "y": f"{min(last_losses) - space:.6g}:{max(last_losses) + space:.6g}"}
    text = SVG.format(
        size="960,680", output=output, left=0.075, title_y=0.96, subtitle_y=0.92,
        title="Loss of every run",
        subtitle="Thick curves lie below thin ones: a run that left the others would show") + LOSS
    for column, dtype in enumerate(("fp32", "bf16")):
        for row in (above, below):
            text += LOSS_PANEL.format(
                dtype=dtype, curves=loss_curves(runs, losses, dtype), **row,
                ylabel="" if column else "loss (nats a byte)",
                left=round(0.075 + 0.485 * column, 3), right=round(0.495 + 0.485 * column, 3))
    return text + "unset multiplot\n"


def memory(runs, ranks, output):
    """Stacked bars of each kind's peak; the formulas are the black frames around the pieces."""
    places = [i + (0.8 if run.dtype == "bf16" else 0) for i, run in enumerate(runs)]
    kinds = kinds_of(runs)
    blocks = {name: [] for name in [*kinds, "frames", "totals"]}
    for x, run in zip(places, runs):
        peak = predicted = 0
        for kind in kinds:
            lower = peak, predicted
            peak += run.memory[kind]["peak"] / 1e6
            predicted += run.memory[kind]["predicted"] / 1e6
            blocks[kind].append((x, lower[0], peak))
            blocks["frames"].append((x, lower[1], predicted))
        blocks["totals"].append((x, run.memory["total"]["peak"] / 1e6))
    bars = ", \\\n  ".join(f"${kind} using 1:2:($1-0.35):($1+0.35):2:3 with boxxyerror "
                           f"linecolor '{colour}' title '{kind}'"
                           for kind, colour in reversed(list(zip(KINDS, KIND_COLOURS)))
                           if kind in kinds)
    half = len(CHAPTERS)
    return SVG.format(
        size="960,560", output=output, left=0.075, title_y=0.95, subtitle_y=0.90,
        title="Peak bytes by kind", subtitle=f"The largest of {ranks} ranks; frames: the "
        "formulas; dots: the measured peak of all kinds together"
    ) + "".join(datablock(*block) for block in blocks.items()) + MEMORY.format(
        bars=bars, right=places[-1] + 0.6,
        names=", ".join(f"'{run.number}' {x}" for x, run in zip(places, runs)),
        fp32=sum(places[:half]) / half, bf16=sum(places[half:]) / len(places[half:]))


def layers(points, formula, ranks, parameters, output):
    """What is saved, in percent, over the number of layers.

    points: (layers, resident, peak in fp32, peak in bf16); formula: (layers, peak in fp32, peak in
    bf16), as close as a line needs them.
    """
    _, _, first_fp32, first_bf16 = points[0]
    return SVG.format(
        size="900,520", output=output, left=0.085, title_y=0.95, subtitle_y=0.895,
        title=f"What ZeRO-3 saves on {ranks} ranks",
        subtitle="Share of 16 bytes a parameter that a rank does not need: the same "
        f"{parameters / 1e6:.2f} million parameters in 3 to 48 layers"
    ) + datablock("points", points) + datablock("formula", formula) + LAYERS.format(
        ticks=", ".join(str(point[0]) for point in points), fp32="#c8661a", bf16="#2f6db3",
        first_fp32=first_fp32, first_bf16=first_bf16)
