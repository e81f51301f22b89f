#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Runs the programs, rewrites every measured table of the pages, and draws what was measured.

A table stands in a page between the comments `measured: NAME` and `end`; figures go to
notes/figures. Nothing is built but the copy that the table overlap needs, and nothing is written
when a run fails or when a count of bytes or elements differs from its formula. The logs of the runs
are kept in build/measure."""
import argparse
import math
import re
import shlex
from datetime import date
from pathlib import Path

import tables
from figures import INK, figure, file
from overlap import slices_of
from pictures import CHAPTER_COLOURS, CHAPTER_MARKERS, KIND_COLOURS, STREAMS
from planner import plan
from planner.question import question
from recording import Trace
from runs import (CHAPTERS, KINDS, Failure, Programs, elements_sent, finish, first_line, machine,
                  sent, spaced, wrong_bytes, wrong_traffic)
from tables import TABLES, saved
from trainers import ROOT

PHASES = ("forward", "backward", "update")
LINKS = (0.25, 0.5, 1, 2, 5, 10, 20)  # Gbit/s
BLOCK = re.compile(r"^<!-- measured: (.*?) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


class Measured(Programs):
    """The built programs, each command run once."""

    def __init__(self, build, mpiexec, torch):
        super().__init__(build, mpiexec, build / "measure")
        self.torch = torch  # the Python that has PyTorch, or None
        self.done = {}  # by the command that is shown
        self.used = []  # runs that the table at hand has asked for

    def of(self, build):
        """Those of another build, whose runs count among the same."""
        other = Measured(build, shlex.join(self.mpiexec), self.torch)
        other.used = self.used
        return other

    def run(self, chapter, ranks, *arguments, dtype=None):
        """Every count must equal its formula: a page that says otherwise is not written."""
        log = f"{len(self.done):02}_{chapter}.jsonl"
        run = self.prepare(log, chapter, ranks, *arguments, dtype=dtype)
        if run.shown not in self.done:
            print(f"  {run.shown}", flush=True)
            run.execute()
            for problem in wrong_bytes([run]) + wrong_traffic([run]):
                raise Failure(f"{problem}; the command was: {shlex.join(run.command)}")
        self.used.append(self.done.setdefault(run.shown, run))
        return self.used[-1]


def stamp(runs):
    """Below every measured table: where, when, the commit, whether the code has changed since."""
    where = f"{machine()['cpu']}, {machine()['cores']} cores"
    if ranks := sorted({run.ranks for run in runs if run.ranks > 1}):
        mpi = sorted({run.info["mpi"] for run in runs} - {None})
        where += f"; {' and '.join(map(str, ranks))} ranks, {', '.join(mpi)}"
    git = ["git", "-C", str(ROOT)]
    commit = first_line(*git, "rev-parse", "--short", "HEAD") or "unknown"
    code = ["common", "meson.build", *(f"{chapter}/*.[ch]pp" for chapter in CHAPTERS)]
    if first_line(*git, "status", "--porcelain", "--", *code):
        commit += " with changes"
    return f"\n\n*{where}; {date.today().isoformat()}, commit {commit}.*"


# Each figure of measured runs is one function. Of the others in notes/figures drawings.py draws
# some; the rest show ideas, or a step that was measured once: they are edited by hand.

def layers(programs):
    """What is saved, in percent, over the number of layers."""
    counts, _, *runs = zip(*tables.curve(programs))  # runs: in fp32, in bf16
    parameters, ranks = runs[0][0].info["parameters"], runs[0][0].ranks
    peaks = [[100 * saved(run, "peak") for run in of_dtype] for of_dtype in runs]
    places = [2.7 * 20 ** (i / 200) for i in range(201)]  # layers, evenly on a logarithmic axis
    theory = 100 * (1 - 1 / ranks)
    fig, ax = figure(
        720, 420, title=f"In fp32 ZeRO-3 saves {peaks[0][0]:.0f} % with {counts[0]} layers, "
        f"{peaks[0][-1]:.0f} % with {counts[-1]}; theory: {theory:.0f} %",
        subtitle=f"Share of 16 bytes per parameter that one of {ranks} ranks does not need: the "
        f"same {parameters / 1e6:.2f} million\nparameters in {counts[0]} to {counts[-1]} layers. "
        "Lines: formula; points: measured")
    ax.axhline(theory, color=INK, alpha=0.5, linestyle="--", linewidth=1.5)
    ax.plot(counts, [100 * saved(run, "resident") for run in runs[0]], "o", color=INK,
            fillstyle="none", alpha=0.6)
    ax.text(counts[0], theory + 2, f"theory, and what is resident: 1 - 1/N = {theory:.0f} %")
    for dtype, peak, (x, y), side, colour, marker in (
            ("fp32", peaks[0], (6.4, 52), "left", CHAPTER_COLOURS[1], "s"),
            ("bf16", peaks[1], (5.6, 66), "right", CHAPTER_COLOURS[2], "o")):
        formula = [100 * tables.curve_formula(at, dtype) for at in places]
        ax.plot(places, formula, color=colour)
        ax.plot(counts, peak, marker, color=colour)
        ax.text(x, y, f"peak in {dtype}", color=colour, ha=side)
        ax.text(1.05 * counts[0], peak[0] - 3.5, f"{peak[0]:.0f} %", color=colour)
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, counts)
    ax.set_yticks(range(0, 90, 10), [f"{share} %" for share in range(0, 90, 10)])
    ax.set(xlabel="layers", ylabel="saved", xlim=(places[0], places[-1]), ylim=(0, 85))
    return fig


def step_of(path):
    """Rank 0's second step: (phase, bytes in use by kind on entering and at each change)."""
    in_use, courses = None, {}
    for event in Trace(path).program(0, 1, 2):
        args = event["args"]
        phase = "forward" if args["during"] == "load" else args["during"]
        if args["step"] == 2 and phase in PHASES:
            course = courses.setdefault(phase, [in_use])
            course += [args["in_use"]] if event["ph"] == "i" else []
        in_use = args["in_use"]
    return courses.items()


def draw_step(ax, step, borrowed=False):
    """A band for each phase, equally wide, whose takes and returns lie equally far apart.
    borrowed: without what is held all through the step."""
    every = [(band + i / len(course), in_use) for band, (_, course) in enumerate(step)
             for i, in_use in enumerate(course)]
    above = [0] * len(every)
    for order, (kind, colour) in enumerate(zip(KINDS, KIND_COLOURS)):
        held = min(in_use[kind] for _, in_use in every) if borrowed else 0
        heights = [(in_use[kind] - held) / 1e6 for _, in_use in every]
        if any(heights):
            above = [a + b for a, b in zip(above, heights)]
            # From the ground, behind the kinds before it; with points where something changes.
            tops = [top if own else None for top, own in zip(above, heights)]
            changes = [i for i, top in enumerate(tops) if i == 0 or top != tops[i - 1]]
            ax.stairs([math.nan if tops[i] is None else tops[i] for i in changes],
                      [*(every[i][0] for i in changes), len(step)], fill=True, color=colour,
                      linewidth=0, label=kind, zorder=1 - order / 100)
    ax.vlines(range(1, len(step)), 0, max(above), color=INK, alpha=0.6, linewidth=1,
              linestyle=(0, (2, 2)))
    ax.set_xticks([band + 0.5 for band in range(len(step))], [name for name, _ in step], size=11)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(0, len(step))
    ax.set_ylim(bottom=0)


def bytes_in_use(programs):
    """What is in use through one step of each chapter. MB are decimal."""
    runs, steps = [], []
    for chapter in CHAPTERS[1:]:
        path = programs.logs / f"{chapter}.trace.json"
        runs.append(programs.run(chapter, 4, *tables.EQUAL_LAYERS, "--steps", 2, "--trace", path))
        steps.append([*step_of(path)])
        traced = max(sum(in_use.values()) for _, course in steps[-1] for in_use in course)
        counted = runs[-1].memory["total"]["peak"]
        if traced != counted:
            raise Failure(f"{chapter}: the trace peaks at {traced} bytes, the ledger at {counted}")
    peaks, count = [run.memory["total"]["peak"] / 1e6 for run in runs], runs[0].info["layers"]
    fig, axes = figure(
        720, 720, 3, 3, title=f"Through a whole step memory is a plateau: {peaks[1]:.0f} MB in "
        f"{runs[1].number}, {peaks[-1]:.0f} MB in {runs[-1].number}",
        subtitle=f"Rank 0 of 4, {count} layers of {spaced(runs[0].info['parameters'] // count)} "
        "parameters. Left to right: every take and return of memory in\none step, in their order; "
        "the phases are drawn equally wide")
    for ax, run, step, most in zip(axes.flat, runs, steps, peaks):
        draw_step(ax, step)
        ax.set_title(f"{run.number}, {run.dtype}: peak {most:.1f} MB")
        others = (f"its {place} {there['total']['peak'] / 1e6:.1f} MB"
                  for place, there in [*run.places.items()][1:])
        ax.text(0.5, 0.97, "\n".join(others), size=11, ha="center", va="top",
                transform=ax.transAxes)
        ax.set_ylim(0, 1.05 * max(peaks))
        ax.tick_params(labelleft=ax in axes[:, 0])
    handles, names = axes[0, 0].get_legend_handles_labels()
    axes.flat[len(runs) - 1].legend(handles[::-1], names[::-1], loc="center", fontsize=11,
                                    frameon=True, facecolor="white", edgecolor="none")
    for ax in axes.flat[len(runs):]:
        ax.remove()
    below = fig.add_subplot(axes[2, 0].get_gridspec()[2, 1:])
    draw_step(below, steps[-1], borrowed=True)
    below.set_title(f"{runs[-1].number} alone: what is borrowed, on a scale of its own")
    for ax in axes[:, 0]:
        ax.set_ylabel("in use (MB)")
    return fig


def link(programs):
    """The time of a step over the speed of a link. Formulas, in ms: with no limit t, of the bits
    that a rank sends b, of Gbit/s g: t + b / 1e6 g where all waiting is for the link, b / 1e6 g
    for the link alone. Two ranks: with a core each, a rank's sleep on the link helps no other."""
    free, *on_link = ([programs.run(chapter, 2, *tables.SIXTEEN, *speed, dtype="fp32")
                       for chapter in (CHAPTERS[1], *CHAPTERS[3:6])]
                      for speed in ((), *(("--link", speed) for speed in LINKS)))
    slow, fast = ([run.summary["median_ms"] for run in on_link[at]] for at in (0, -1))
    fig, ax = figure(
        720, 440, title=f"At {LINKS[0]:g} Gbit/s {free[-1].number} takes {slow[-1] / slow[-2]:.2f} "
        f"times as long as {free[-2].number}, at {LINKS[-1]:g} Gbit/s {fast[-1] / fast[-2]:.2f} "
        "times",
        subtitle=f"Points: measured, the median of {len(free[0].steps)} steps on {free[0].ranks} "
        "ranks. Lines: the step without a limit and,\nafter it, all that a rank sends. Dashed: "
        "what the link takes alone")
    link_alone = {}
    for alone, *runs in zip(free, *on_link):
        i = CHAPTERS.index(alone.chapter)
        marker, colour = CHAPTER_MARKERS[i], CHAPTER_COLOURS[i]
        messages = [32 * float(sent(alone)) / (1e6 * speed) for speed in LINKS]
        link_alone[elements_sent(alone)[1]] = messages
        ax.plot(LINKS, [alone.summary["median_ms"] + ms for ms in messages], color=colour)
        ax.plot(LINKS, [run.summary["median_ms"] for run in runs], marker, color=colour,
                markersize=8, label=alone.chapter)
    for elements, messages in link_alone.items():
        ax.plot(LINKS, messages, color=INK, alpha=0.6, linestyle="--", linewidth=1)
        ax.text(LINKS[-2], 1.04 * messages[-2], f"{elements} elements per parameter", size=11,
                alpha=0.8, ha="center", va="bottom", rotation_mode="anchor",
                transform_rotates_text=True,
                rotation=math.degrees(math.atan2(-messages[-2], LINKS[-2])))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(LINKS, [f"{speed:g}" for speed in LINKS])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="link of each rank (Gbit/s)", ylabel="a step (ms)")
    ax.legend(loc="lower left")
    return fig


def offload(programs):
    """A step of 07, up to its last copy: that runs beside the next step's forward."""
    path = programs.logs / "07_offload.streams.json"
    programs.run("07_offload", 2, "--task", "mlp", "--layers", 4, "--width", 2048, "--batch", 96,
                 "--steps", 4, "--trace", path, "--bus", 0.4, "--link", 5)
    every = [*slices_of(Trace(path))]
    zero = min(begin for begin, *_, step in every if step == 3)
    slices = [(name, (begin - zero) / 1e3, (end - zero) / 1e3, label, step != 3)
              for begin, end, name, label, step in every]
    copies = [times for name, *times, _, pale in slices if name == "copies" and not pale]
    hidden = sum(max(0, min(end, stop) - max(begin, start)) for begin, end in copies
                 for name, start, stop, *_ in slices if name == "compute")
    last = max(end for _, end in copies)
    moved = sum(end - begin for begin, end in copies)
    fig, ax = figure(
        720, 288, title=f"Of {moved:.0f} ms of copies this step of 07 hides {hidden:.0f} beside "
        "computation",
        subtitle="One of 2 ranks, 4 layers of 2048 x 2048, bf16, 5 Gbit/s, bus 0.4 GB/s. By layer: "
        "g gather,\nf forward, b backward, r reduce-scatter of its gradient, d the shard of it "
        "down to the host,\na Adam there, u the new parameters up. Pale: another step's")
    rows = [name for name in STREAMS if name in {one[0] for one in slices}]
    for name, begin, end, label, pale in slices:
        row, begin, end = rows.index(name), max(begin, 0), min(end, last)
        if begin >= end:
            continue
        ax.barh(row, end - begin, 0.8, begin, color=STREAMS[name], edgecolor="white",
                linewidth=0.5, alpha=0.35 if pale else 1)
        if end - begin > last / 40:
            ax.text((begin + end) / 2, row, label, size=10, ha="center", va="center",
                    color=INK if pale else "white")
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.set(xlabel="ms since the first gather began", xlim=(0, last), xticks=range(0, int(last), 50))
    ax.grid(visible=False)
    return fig


def states(_):
    """The first figure of the ZeRO paper, by the planner: what a rank holds, stage by stage."""
    q = question(["--params", "7.5B", "--ranks", "64"])
    fig, ax = figure(
        720, 270, title="7.5 billion parameters: what each of 64 ranks holds, in GB",
        subtitle="Mixed precision, Adam; what lasts through a step, by the formulas")
    for row, stage in enumerate(q.cards[:4]):
        end, rank = 0, plan.Rank(q, stage, 64)
        for kind, colour in zip(KINDS[:3], KIND_COLOURS):
            held = rank.resident[kind] / 1e9
            ax.barh(row, held, 0.6, end, color=colour, label=None if row else kind)
            end += held
        ax.text(end + 1, row, f"{end:.1f}", va="center", weight="bold")
    ax.set_yticks(range(4), [f"{stage.name.replace('_', ' ', 1)}\n"
                             + plan.state_formula(plan.terms(q, stage)) for stage in q.cards[:4]])
    ax.invert_yaxis()
    ax.set_xlim(0, 130)
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="lower right")
    return fig


def traffic(_):
    """Of 04 and 05, by their cards: elements that a rank sends, over micro-batches of a step."""
    names, counts = CHAPTERS[3:5], (1, 4, 16)
    sent = {name: [[a_step + a_micro_batch * count for a_step, a_micro_batch in
                    map(plan.PLANS[name].sent.get, PHASES[1:])] for count in counts]
            for name in names}
    fig, ax = figure(
        720, 250, title=f"With {counts[-1]} micro-batches per step 04 sends "
        f"{sum(sent[names[0]][-1]):g} elements, 05 sends {sum(sent[names[1]][-1]):g}",
        subtitle="Per parameter, as multiples of (N - 1)/N")
    for below, name in enumerate(names):
        rows = [3 * at + below for at in range(len(counts))]
        backward, update = zip(*sent[name])
        colour = CHAPTER_COLOURS[3 + below]
        ax.barh(rows, backward, 0.8, color=colour, label=f"{name[:2]}, backward")
        ax.barh(rows, update, 0.8, backward, color=colour, alpha=0.45, label=f"{name[:2]}, update")
        for row, phases in zip(rows, sent[name]):
            ax.text(sum(phases) + 0.15, row, f"{sum(phases):g}", va="center", weight="bold")
    ax.set_yticks([3 * at + 0.5 for at in range(len(counts))],
                  [f"A = {count}" for count in counts])
    ax.invert_yaxis()
    ax.set(xlim=(0, 19), xticks=range(0, 19, 2))
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper right")
    return fig


FIGURES = {"states": states, "traffic": traffic, "layers": layers, "mountain": bytes_in_use,
           "link": link, "offload": offload}


def renewed(page, chosen, programs):
    """The page's text with its chosen blocks measured anew."""
    text, where = page.read_text("utf-8"), page.relative_to(ROOT)
    if text.count("<!-- measured: ") != len(BLOCK.findall(text)):
        raise Failure(f"{where}: a `measured` comment has no `end` of its own")

    def renew(block):
        name, programs.used = block[1], []
        maker, *arguments = name.split()
        if maker not in TABLES:
            raise Failure(f"{where}: there is no table {maker!r}; there are {', '.join(TABLES)}")
        if not chosen(name):
            return block[0]
        print(f"{where}: {name}", flush=True)
        content = TABLES[maker](programs, *arguments)
        content += stamp(programs.used) if programs.used or name in ("speed", "ring") else ""
        return f"<!-- measured: {name} -->\n\n{content}\n\n<!-- end -->"

    return BLOCK.sub(renew, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="the figures alone, or this table or "
                        "figure: figures, 'check 04_zero1', "
                        f"{', '.join(dict.fromkeys([*TABLES, *FIGURES]))}")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="that of the programs")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    parser.add_argument("--torch", metavar="PYTHON", help="one that has PyTorch; without it the "
                        "table speed is left as it is")
    parser.add_argument("--gpu", metavar="RESULTS", type=Path,
                        help="makes the table gpu alone, of what tests/gpu/fifteen_minutes.sh left")
    options = parser.parse_args()
    options.only = "gpu" if options.gpu else options.only
    tables_here = {*TABLES} - ({"gpu"} if not options.gpu else set())
    if options.only and options.only.split()[0] not in ("figures", *tables_here, *FIGURES):
        raise Failure(f"there is no table or figure {options.only!r}", 2)

    def chosen(name, *groups):
        if options.only is None:
            return name != "gpu" and (name != "speed" or options.torch)
        return options.only in (name, name.split()[0], *groups)

    pages = sorted([ROOT / "README.md", *ROOT.glob("notes/**/*.md"), *ROOT.glob("0*/README.md")])
    try:
        programs = Measured(options.build.resolve(), options.mpiexec, options.torch)
        programs.gpu = options.gpu
        texts = {page: renewed(page, chosen, programs) for page in pages}
        for name, draw in FIGURES.items():
            if chosen(name, "figures"):
                print(f"notes/figures/{name}.svg", flush=True)
                texts[ROOT / f"notes/figures/{name}.svg"] = file(draw(programs))
    except Failure as failure:
        raise Failure(f"{failure}\nNo page was changed.") from None
    for path, text in texts.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"rewrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    finish(main, "measure.py: ")
