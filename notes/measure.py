#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the programs and rewrites every measured table and every figure of the pages.

A table stands in a page between the comments `measured: NAME` and `end`; figures go to
notes/figures. Nothing is built, and nothing is written when a run fails or when a count of bytes
or elements differs from its formula. The logs of the runs are kept in build/measure.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path

sys.dont_write_bytecode = True
import demo  # noqa: E402 (the demo's way of running, reading logs and drawing)

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "notes" / "figures"
CHAPTERS = demo.CHAPTERS
STATE = ("parameters", "gradients", "optimizer")
COUNTED = STATE + ("communication",)  # what the layer-count curve adds up
LAUNCHERS = ("mpiexec.mpich", "mpiexec.hydra", "mpiexec.openmpi", "mpirun.openmpi", "mpiexec")
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Failure(Exception):
    """A sentence for the user: what could not be measured."""


# ---- Running ---------------------------------------------------------------------------------

@dataclass
class Run(demo.Run):
    """One run: the demo's, and what the program printed."""
    ranks: int = 1
    printed: str = ""

    @property
    def shown(self):
        """The command as a reader types it."""
        words = self.command[self.command.index("-n") + 2:] if self.ranks > 1 else self.command
        words = [word for word in words[1:] if word not in ("--quiet", "--log", str(self.log))]
        launch = ["mpirun", "-n", str(self.ranks)] if self.ranks > 1 else []
        return shlex.join([*launch, f"build/{self.chapter}/{self.chapter}", *words])

    def check(self):
        """Every count must equal its formula: a page that says otherwise is not written."""
        problems = demo.wrong_bytes([self]) + demo.wrong_traffic([self])
        if problems:
            raise Failure(f"{problems[0]}; the command was: {shlex.join(self.command)}")


class Programs:
    """The built programs, each command run once."""

    def __init__(self, build, mpiexec):
        self.build = build
        self.mpiexec = mpiexec
        self.logs = build / "measure"
        self.done = {}

    def execute(self, command):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                                  env=os.environ | ENVIRONMENT)
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}; build first: ninja -C build")
        if done.returncode != 0:
            raise Failure(f"{shlex.join(command)}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def run(self, chapter, ranks, *arguments):
        """01 sees the samples of all ranks as micro-batches of its one process."""
        words = [str(argument) for argument in arguments]
        if chapter == "01_adam":
            words, ranks = ["--accumulate", str(ranks), *words], 1
        key = (chapter, ranks, *words)
        if not (self.build / chapter / chapter).exists():
            raise Failure(f"{self.build / chapter / chapter} is missing; build first: ninja -C build")
        if key not in self.done:
            self.logs.mkdir(parents=True, exist_ok=True)
            log = self.logs / f"{len(self.done):02}_{chapter}.jsonl"
            log.unlink(missing_ok=True)
            launch = [*self.mpiexec, "-n", str(ranks)] if ranks > 1 else []
            command = [*launch, str(self.build / chapter / chapter), *words, "--log", str(log)]
            run = Run(chapter, "", command, log, ranks=ranks)
            print(f"  {run.shown}", flush=True)
            run.printed = self.execute(command)
            demo.read_log(run)
            run.dtype = run.info["dtype"]
            run.check()
            self.done[key] = run
        return self.done[key]

    def plan(self, chapter, ranks, *arguments):
        ranks_option = [] if chapter == "01_adam" else ["--ranks", str(ranks)]
        command = [self.build / chapter / chapter, "--plan", *ranks_option, *arguments]
        return self.execute([str(word) for word in command])


def dtype_option(chapter, dtype):
    """01 and 02 are fp32 and have no such option."""
    return ["--dtype", dtype] if chapter >= "03" else []


# ---- Writing tables --------------------------------------------------------------------------

def table(head, rows, left=1):
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [head, rule, *rows])


def mb(count):
    return f"{count / 1e6:.2f}"


def percent(share):
    return f"{float(100 * share):.1f} %"


def spaced(count):
    return f"{count:,}".replace(",", " ")


def fenced(text):
    wide = [line for line in text.splitlines() if len(line) > 80]
    if wide:
        raise Failure(f"wider than 80 columns: {wide[0]}")
    return f"```text\n{text.strip()}\n```"


def commit():
    """The commit of the code that was measured, and whether the code has been changed since."""
    git = ["git", "-C", str(ROOT)]
    name = demo.first_line(*git, "rev-parse", "--short", "HEAD") or "unknown"
    code = ["common", "meson.build", *(f"{chapter}/*.[ch]pp" for chapter in CHAPTERS)]
    changed = demo.first_line(*git, "status", "--porcelain", "--", *code)
    return f"{name} with changes" if changed else name


def stamp(*runs):
    """Where and when: below every table that was measured."""
    machine = demo.machine()
    mpi = {run.info["mpi"] for run in runs} - {None}
    ranks = sorted({run.ranks for run in runs if run.ranks > 1})
    where = [f"{machine['cpu']}, {machine['cores']} cores"]
    if ranks:
        where.append(f"{' and '.join(map(str, ranks))} ranks, {', '.join(sorted(mpi))}")
    return f"*{'; '.join(where)}; {date.today().isoformat()}, commit {commit()}.*"


# ---- What the chapters' own formulas say -----------------------------------------------------

def planned(text, pattern):
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise Failure(f"--plan prints no line like {pattern!r}")
    return found.group(1)


def state_formula(programs, chapter, dtype):
    """a + b/N through the values at 1 and 2 ranks; a third value must lie on it."""
    def value(ranks):
        text = programs.plan(chapter, ranks, *dtype_option(chapter, dtype))
        return Fraction(planned(text, r"^bytes of state a parameter: (\S+)$"))

    if chapter == "01_adam":
        return str(value(1))
    shared = 2 * (value(1) - value(2))
    whole = value(1) - shared
    if value(4) != whole + shared / 4:
        raise Failure(f"{chapter}: bytes a parameter are not of the form a + b/N")
    return " + ".join([str(whole)] * (whole > 0) + [f"{shared}/N"] * (shared > 0))


def traffic_formula(programs, chapter):
    """Each phase's a + b A through the values at 1 and 2 micro-batches."""
    def factors(micro_batches):
        text = programs.plan(chapter, 2, "--accumulate", micro_batches)
        return [int(planned(text, rf"^  {phase} .* (\S+) x \d+/\d+$"))
                for phase in ("forward", "backward", "update")]

    def term(one, two):
        slope, rest = two - one, 2 * one - two
        terms = [str(rest)] * (rest > 0) + [f"{slope if slope > 1 else ''}A"] * (slope > 0)
        return " + ".join(terms) or "0"

    return ", ".join(map(term, factors(1), factors(2)))


def sharded(programs, chapter):
    """The kinds of which two ranks hold less each than one rank alone."""
    if chapter == "01_adam":
        return []
    one, two = programs.plan(chapter, 1), programs.plan(chapter, 2)

    def resident(text, kind):
        return int(planned(text, rf"^  {kind} +(\d[\d ]*\d)  ").replace(" ", ""))

    return [kind for kind in STATE if resident(two, kind) < resident(one, kind)]


def changed_lines(before, chapter):
    """As `./tutorial lesson` counts them: removed and added lines of the trainer."""
    if before is None:
        return "–"
    files = [ROOT / name / "trainer.hpp" for name in (before, chapter)]
    done = subprocess.run(["diff", *map(str, files)], capture_output=True, text=True)
    lines = sum(line[:1] in "<>" for line in done.stdout.splitlines() if line)
    new = sorted(path for path in (ROOT / chapter).glob("*.hpp")
                 if not (ROOT / before / path.name).exists())
    return " + ".join([str(lines), *(f"{len(path.read_text().splitlines())} new" for path in new)])


def table_map(programs):
    rows, before, shards_before = [], None, []
    for chapter in CHAPTERS:
        shards = sharded(programs, chapter)
        new = [kind for kind in shards if kind not in shards_before]
        mixed = state_formula(programs, chapter, "bf16") if chapter >= "03" else "–"
        rows.append([f"[{chapter}]({chapter}/)",
                     ", ".join(new).replace("optimizer", "optimizer state") or "–",
                     mixed, state_formula(programs, chapter, "fp32"),
                     "–" if chapter == "01_adam" else traffic_formula(programs, chapter),
                     changed_lines(before, chapter)])
        before, shards_before = chapter, shards
    head = ["chapter", "becomes a shard", "bytes a parameter, mixed", "in fp32",
            "sent a parameter: forward, backward, update", "lines changed"]
    return (table(head, rows, left=2) + "\n\nOn N ranks. Sent: elements by one rank in a step of A "
            "micro-batches, times (N - 1)/N.\nLines changed: in `trainer.hpp`, removed and added, "
            "against the chapter above; new: in a file that it adds.")


# ---- Runs of the README ----------------------------------------------------------------------

def table_results(programs):
    steps, ranks = 200, 4
    runs = [programs.run(chapter, ranks, "--steps", steps, *dtype_option(chapter, dtype))
            for dtype, chapters in (("fp32", CHAPTERS), ("bf16", CHAPTERS[2:]))
            for chapter in chapters]
    rows = []
    for run in runs:
        largest = demo.largest_difference(run, demo.reference_of(run, runs))
        total = run.memory["total"]
        rows.append([run.chapter, run.dtype, demo.number(run.losses[-1], ".4f"),
                     "0" if largest == 0 else f"{largest:.1e}",
                     mb(total["resident"]), mb(total["peak"]),
                     demo.elements_sent(run)[1], f"{run.summary['median_ms']:.0f}"])
    head = ["chapter", "dtype", "final loss", "difference", "resident, MB", "peak, MB",
            "sent a parameter", "ms a step"]
    return (table(head, rows, left=2)
            + f"\n\n{steps} steps of the default task on {ranks} ranks (01: one process, the same "
            "samples). Difference: the largest of\nthe loss in any step, to 02 in fp32 and to 03 "
            "in bf16. Bytes: of the rank that has most, in decimal MB.\nSent: elements by one "
            "rank in a step. Time: the median, of the slowest rank; the ranks share "
            f"the cores.\n\n{stamp(*runs)}")


def table_output(programs):
    run = programs.run("05_zero2", 4, "--dtype", "fp32", "--steps", 100)
    return fenced(f"$ {run.shown}\n{run.printed}") + "\n\n" + stamp(run)


def table_check(programs, chapter):
    """What a chapter prints about bytes and traffic: the part that no clock enters."""
    run = programs.run(chapter, 4, "--steps", 20)
    report = run.printed[run.printed.index("bytes of a rank"):]
    report = report[:report.index("\nparameters ")]
    return fenced(f"$ {run.shown}\n\n{report}") + "\n\n" + stamp(run)


# ---- The layer-count curve -------------------------------------------------------------------

CURVE_RANKS = 4
# layers x width x (width + 1), 3.15 million parameters in each
CURVE = ((3, 1024), (4, 887), (6, 724), (8, 627), (12, 512), (16, 443), (24, 362), (32, 313),
         (48, 256))


def curve_formula(layers_of_one, dtype):
    """The share saved, when the largest layer is 1/layers_of_one of the parameters."""
    n, w, k = CURVE_RANKS, *{"fp32": (4, 8), "bf16": (2, 12)}[dtype]
    whole_layers = 2 + 2 + Fraction(n - 1, n)  # of parameters, of gradients, received
    return 1 - (Fraction(2 * w + k, n) + w * whole_layers / Fraction(layers_of_one)) / 16


def curve(programs):
    """(layers, width, run in fp32, run in bf16) for each point."""
    return [(layers, width, *(programs.run(
        "06_zero3", CURVE_RANKS, "--task", "mlp", "--layers", layers, "--width", width,
        "--batch", 2, "--steps", 2, "--dtype", dtype) for dtype in ("fp32", "bf16")))
        for layers, width in CURVE]


def summed(run, what, kinds=COUNTED):
    return sum(run.memory[kind][what] for kind in kinds)


def saved(run, what):
    return 1 - summed(run, what) / (16 * run.info["parameters"])


def table_layers(programs):
    points, rows = curve(programs), []
    for layers, width, *runs in points:
        row = [f"{layers} x {width}", mb(16 * runs[0].info["parameters"])]
        for run in runs:
            row += [f"{mb(summed(run, 'resident'))} / {mb(summed(run, 'peak'))}",
                    percent(saved(run, "peak")), percent(curve_formula(layers, run.dtype))]
        rows.append(row)
    head = ["layers x width", "16 bytes a parameter"]
    for dtype in ("fp32", "bf16"):
        head += [f"{dtype}: resident / peak", "saved", "formula"]
    return (table(head, rows) + "\n\nDecimal MB on each rank. Peak: the sum of the peaks of "
            f"{', '.join(COUNTED[:-1])} and {COUNTED[-1]}.\n\n"
            + stamp(*(run for point in points for run in point[2:])))


LAYERS_FIGURE = """\
set label 1 '{{/:Bold What ZeRO-3 saves on {ranks} ranks}}' at screen 0.085, 0.95 left font ',18'
set label 2 'Share of 16 bytes a parameter that a rank does not need: the same {millions} million \
parameters in 3 to 48 layers' at screen 0.085, 0.895 left textcolor '#555555'
set lmargin at screen 0.085
set rmargin at screen 0.97
set tmargin at screen 0.84
set bmargin at screen 0.135
set logscale x 2
set xrange [2.7:53]
set yrange [0:85]
set ytics 0, 10, 80
set xtics ({ticks}) nomirror
set format y '%g %%'
set xlabel 'layers' offset 0, 0.3
set key off
set samples 400
set label 3 'theory, and what is resident: 1 - 1/N = 75 %' at 2.85, 79.2 left textcolor '#333333'
set label 4 'peak in bf16' at 5.2, 67.2 right textcolor '{bf16}'
set label 5 'peak in fp32' at 6.5, 52.5 left textcolor '{fp32}'
set label 6 '{first_bf16:.0f} %' at 3.12, {first_bf16} - 1.2 left textcolor '{bf16}'
set label 7 '{first_fp32:.0f} %' at 3.12, {first_fp32} - 1.2 left textcolor '{fp32}'
set label 8 'lines: formula; points: measured' at graph 0.985, graph 0.06 right \
  textcolor '#555555'
plot 75 with lines linewidth 1.5 dashtype 2 linecolor '#777777', \
  75 - {slope_bf16}/x with lines linewidth 2 linecolor '{bf16}', \
  75 - {slope_fp32}/x with lines linewidth 2 linecolor '{fp32}', \
  $points using 1:2 with points pointtype 6 pointsize 0.9 linewidth 1.5 linecolor '#777777', \
  $points using 1:4 with points pointtype 7 pointsize 0.9 linecolor '{bf16}', \
  $points using 1:3 with points pointtype 7 pointsize 0.9 linecolor '{fp32}'
"""


def figure_layers(programs, path):
    points = curve(programs)
    data = "".join(f"{layers} {100 * saved(fp32, 'resident')} {100 * saved(fp32, 'peak')} "
                   f"{100 * saved(bf16, 'peak')}\n" for layers, _, fp32, bf16 in points)
    slopes = {f"slope_{dtype}": float(100 * (Fraction(3, 4) - curve_formula(1, dtype)))
              for dtype in ("fp32", "bf16")}
    _, _, fp32, bf16 = points[0]
    script = demo.SVG_STYLE.format(size="900,520", output=path)
    script += f"$points << END\n{data}END\n" + LAYERS_FIGURE.format(
        ranks=CURVE_RANKS, millions=f"{fp32.info['parameters'] / 1e6:.2f}",
        ticks=", ".join(str(layers) for layers, *_ in points),
        first_fp32=100 * saved(fp32, "peak"), first_bf16=100 * saved(bf16, "peak"),
        fp32="#c8661a", bf16="#2f6db3", **slopes)
    kept = programs.logs / "layers.gp"
    kept.write_text(script)
    done = subprocess.run(["gnuplot", str(kept)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"gnuplot could not draw {kept}: {done.stderr.strip()}")


# ---- Tables of the notes ---------------------------------------------------------------------

def table_ledger(programs):
    """Every kind in 03 to 06, on a model of many equal layers."""
    runs = [programs.run(chapter, 4, "--task", "mlp", "--layers", 16, "--width", 512,
                         "--batch", 32, "--steps", 2) for chapter in CHAPTERS[2:]]
    rows = []
    for kind in (*demo.KINDS, "total"):
        rows.append([kind, *(f"{mb(run.memory[kind]['resident'])} / {mb(run.memory[kind]['peak'])}"
                             for run in runs)])
    rows[-1][0] = "all together"
    rows.append(["reserved", *(mb(run.memory["total"]["reserved"]) for run in runs)])
    rows.append(["state, bytes a parameter",
                 *(state_formula(programs, run.chapter, "bf16") for run in runs)])
    head = ["MB: resident / peak", *(run.chapter for run in runs)]
    count = runs[0].info["parameters"]
    return (table(head, rows) + f"\n\n`{runs[-1].shown}`: {spaced(count)} parameters in bf16, "
            f"16 bytes each are {mb(16 * count)} MB.\n\n{stamp(*runs)}")


def table_notebook(programs):
    """The notebook's model on this repository's chapters."""
    runs = [programs.run(chapter, 4, "--task", "mlp", "--layers", 3, "--width", 2048,
                         "--batch", 2, "--steps", 2, *dtype_option(chapter, "fp32"))
            for chapter in ("02_distributed_adam", *CHAPTERS[3:])]
    rows = [[run.chapter, state_formula(programs, run.chapter, "fp32"),
             mb(summed(run, "resident", STATE)), mb(summed(run, "peak")),
             percent(saved(run, "resident")), percent(saved(run, "peak"))] for run in runs]
    head = ["fp32, 4 ranks", "bytes a parameter", "resident, MB", "peak, MB",
            "saved, resident", "saved, peak"]
    return table(head, rows) + "\n\n" + stamp(*runs)


def table_traffic(programs):
    """Elements counted at the send, as multiples of (N - 1)/N of the padded parameters."""
    micro_batches, steps, rows, runs = (1, 4), 5, [], []
    for chapter in CHAPTERS[1:]:
        row = [chapter]
        for count in micro_batches:
            run = programs.run(chapter, 4, "--steps", steps, "--accumulate", count)
            runs.append(run)
            unit = Fraction(run.info["padded_parameters"] * steps * (run.ranks - 1), run.ranks)
            sent = [Fraction(phase["counted"]) / unit
                    for phase in run.summary["traffic"]["phases"].values()]
            row.append(f"{' + '.join(map(str, sent))} = {sum(sent)}")
        rows.append([*row, traffic_formula(programs, chapter)])
    head = ["chapter", *(f"counted, A = {count}" for count in micro_batches), "its formula"]
    return table(head, rows, left=4) + "\n\n" + stamp(*runs)


def table_padding(programs):
    """One step of a model whose layers do not divide."""
    runs = [programs.run(chapter, 4, "--task", "mlp", "--layers", 3, "--width", 10, "--steps", 1)
            for chapter in ("02_distributed_adam", "05_zero2", "06_zero3")]
    rows = []
    for run in runs:
        traffic = run.summary["traffic"]
        rows.append([run.chapter, sum(p["counted"] for p in traffic["phases"].values()),
                     traffic["padding"]["counted"], traffic["scalars"]["counted"]])
    head = ["one step", "elements, a rank", "padding among them, all ranks", "scalars, a rank"]
    info = runs[0].info
    return (table(head, rows) + f"\n\n{info['layers']} layers of "
            f"{info['parameters'] // info['layers']} parameters, padded to "
            f"{info['padded_parameters'] // info['layers']}.\n\n{stamp(*runs)}")


def table_families(programs):
    """Digests of the final parameters: equal digests, equal bits."""
    ranks, steps = 3, 20
    cases = (("fp32", 1), ("bf16", 1), ("fp32", 4))
    rows, runs = [], []
    for chapter in CHAPTERS:
        row = [chapter]
        for dtype, micro_batches in cases:
            if chapter < "03" and dtype == "bf16" or chapter == "01_adam" and micro_batches > 1:
                row.append("–")
                continue
            accumulate = [] if micro_batches == 1 else ["--accumulate", micro_batches]
            run = programs.run(chapter, ranks, "--width", 40, "--layers", 4, "--steps", steps,
                               *accumulate, *dtype_option(chapter, dtype))
            runs.append(run)
            row.append(f"`{run.summary['digest']}`")
        rows.append(row)
    head = ["digest of the parameters", *(f"{dtype}, A = {count}" for dtype, count in cases)]
    return (table(head, rows, left=4) + f"\n\nAfter {steps} steps of `--width 40 --layers 4` on "
            f"{ranks} ranks (01: one process, `--accumulate {ranks}`).\n\n{stamp(*runs)}")


def table_skips(programs):
    """The first steps in fp16: when the scale is too large, and what it is then."""
    run = programs.run("03_mixed_precision", 4, "--dtype", "fp16", "--steps", 20)
    exponent, rows = 16, []
    for step in run.steps[:8]:
        norm = "not finite: skipped" if step["skipped"] else f"{step['grad_norm']:.4f}"
        rows.append([step["step"], f"2^{exponent}", f"{step['loss']:.4f}", norm])
        exponent -= step["skipped"]
    return (table(["step", "loss scale", "loss", "gradient norm"], rows, left=0)
            + f"\n\n`{run.shown}`: {run.summary['skipped_steps']} of {len(run.steps)} steps are "
            f"skipped.\n\n{stamp(run)}")


# ---- The figure of who holds what ------------------------------------------------------------

SVG_PAGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" font-family="Helvetica,Arial,sans-serif" font-size="14" \
fill="#333333">
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}
</svg>
"""
COLOURS = {"parameters": "#2f6db3", "gradients": "#e58a2b", "optimizer": "#3d9a6a"}
TINTS = {"parameters": "#c3d7ec", "gradients": "#f8ddc0", "optimizer": "#c6e3d5"}
COLUMNS = (("parameters", "parameters"), ("gradients", "gradients"),
           ("optimizer", "master weights"), ("optimizer", "momentum"), ("optimizer", "variance"))
CELL, GAP, LEFT, ROW, TOP = 9, 22, 236, 17, 136


def text(x, y, words, size=14, anchor="start", colour="#333333", weight="normal"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{words}</text>')


def box(x, y, width, height, fill, stroke="none"):
    return (f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" '
            f'stroke="{stroke}"/>')


def column_x(column, count):
    return LEFT + column * (count * CELL + GAP)


def strip(x, y, count, held, size, colour):
    """The cells of one kind on one rank; a cell is as high as its element has bytes."""
    height = 3 * size
    cells = [box(x, y, count * CELL, 12, "#f4f4f4")]
    for first, last in held:
        for i in range(first, last):
            cells.append(box(x + i * CELL, y + 12 - height, CELL - 1, height, colour))
    return "".join(cells)


def ownership_rows(programs, chapter, count, ranks, y):
    """A chapter's rows, one a rank, and the bytes that each rank holds."""
    mixed, alone = chapter >= "03", chapter == "01_adam"
    shards = sharded(programs, chapter)
    words = 2 if mixed else 4
    lines = [text(24, y + 12, chapter, 15, weight="bold")]
    for rank in range(1 if alone else ranks):
        top, total = y + rank * ROW, 0
        lines.append(text(LEFT - 16, top + 11, "one process" if alone else f"rank {rank}", 12,
                          "end", "#777777"))
        for column, (kind, name) in enumerate(COLUMNS):
            x = column_x(column, count)
            if name == "master weights" and not mixed:
                if rank == 0:
                    lines.append(text(x, top + 11, "the parameters", 12, colour="#777777"))
                continue
            size = 4 if kind == "optimizer" else words
            part = count // ranks
            cut = kind in shards
            held = [(rank * part, rank * part + part)] if cut else [(0, count)]
            colour = (COLOURS if cut or alone else TINTS)[kind]
            lines.append(strip(x, top, count, held, size, colour))
            total += size * (part if cut else count)
        lines.append(text(column_x(5, count) + 72, top + 11, total, 14, "end"))
    return lines


def figure_ownership(programs, path):
    count, ranks = 12, 3
    right = column_x(5, count)
    width = right + 96
    optimizer = column_x(2, count)
    body = [text(24, 36, "Who holds what", 20, weight="bold"),
            text(24, 60, f"A layer of {count} parameters on {ranks} ranks, between two steps. "
                 "A cell is a parameter, its height the bytes it takes: 2 or 4.",
                 colour="#555555"),
            text((optimizer + right - GAP) / 2, 92, "optimizer state", anchor="middle"),
            f'<path d="M{optimizer} 103v-5H{right - GAP}v5" fill="none" stroke="#999999"/>',
            text(right + 72, 118, "bytes a rank", anchor="end")]
    for column, (_, name) in enumerate(COLUMNS):
        x = column_x(column, count)
        body.append(text(x + count * CELL / 2, 118, name, anchor="middle"))
    y = TOP
    for chapter in CHAPTERS:
        body.append(f'<path d="M24 {y - 5}H{width - 24}" stroke="#dddddd"/>')
        body += ownership_rows(programs, chapter, count, ranks, y + 2)
        y += (1 if chapter == "01_adam" else ranks) * ROW + 13
    body.append(f'<path d="M24 {y - 5}H{width - 24}" stroke="#dddddd"/>')
    for i, kind in enumerate(STATE):
        body += [box(24 + i * 14, y + 12, 12, 12, COLOURS[kind]),
                 box(290 + i * 14, y + 12, 12, 12, TINTS[kind])]
    body += [text(74, y + 23, "held by one rank alone", colour="#555555"),
             text(340, y + 23, "held whole by every rank", colour="#555555")]
    path.write_text(SVG_PAGE.format(width=width, height=y + 44, body="\n".join(body)))


# ---- The pages -------------------------------------------------------------------------------

TABLES = {
    "map": table_map, "results": table_results, "output": table_output, "check": table_check,
    "layers": table_layers, "ledger": table_ledger, "notebook": table_notebook,
    "traffic": table_traffic, "padding": table_padding, "families": table_families,
    "skips": table_skips,
}
DRAWN = {"layers": figure_layers, "ownership": figure_ownership}
OPENING = re.compile(r"^<!-- measured: (.*?) -->$", re.MULTILINE)
BLOCK = re.compile(r"^<!-- measured: (.*?) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def pages():
    found = [*(ROOT / "notes").glob("*.md"), ROOT / "README.md", *ROOT.glob("0*/README.md")]
    return sorted(page for page in found if page.exists())


def wanted(name, only):
    return only is None or only in (name, name.split()[0])


def rewrite(page, only, programs):
    """The page with its measured blocks renewed, and their names."""
    old = page.read_text()
    where = page.relative_to(ROOT)
    if len(OPENING.findall(old)) != len(BLOCK.findall(old)):
        raise Failure(f"{where}: a `measured` comment has no `end` of its own")
    names = []

    def renew(block):
        name = block.group(1)
        maker, *arguments = name.split()
        if maker not in TABLES:
            raise Failure(f"{where}: there is no table {maker!r}; there are {', '.join(TABLES)}")
        if not wanted(name, only):
            return block.group(0)
        names.append(name)
        print(f"{where}: {name}", flush=True)
        content = TABLES[maker](programs, *arguments)
        return f"<!-- measured: {name} -->\n\n{content}\n\n<!-- end -->"

    return BLOCK.sub(renew, old), names


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="this table or figure alone, as in: "
                        f"{', '.join(TABLES)}, ownership, 'check 04_zero1'")
    parser.add_argument("--build", type=Path, default=ROOT / "build",
                        help="where the programs are")
    parser.add_argument("--mpiexec", help="the launcher of the built MPI")
    return parser.parse_args()


def main():
    options = parse()
    launcher = options.mpiexec or next(filter(shutil.which, LAUNCHERS), "mpiexec")
    programs = Programs(options.build.resolve(), shlex.split(launcher))
    try:
        renewed = [(page, *rewrite(page, options.only, programs)) for page in pages()]
        FIGURES.mkdir(exist_ok=True)
        drawn = [name for name in DRAWN if wanted(name, options.only)]
        for name in drawn:
            print(f"notes/figures/{name}.svg", flush=True)
            DRAWN[name](programs, FIGURES / f"{name}.svg")
    except Failure as failure:
        print(f"measure.py: {failure}\nNo page was changed.", file=sys.stderr)
        return 1
    if not drawn and not any(names for _, _, names in renewed):
        print(f"measure.py: no page has a table {options.only!r}", file=sys.stderr)
        return 2
    print()
    for page, content, names in renewed:
        if names:
            page.write_text(content)
            print(f"rewrote in {page.relative_to(ROOT)}: {', '.join(names)}")
    for name in drawn:
        print(f"drew notes/figures/{name}.svg")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
