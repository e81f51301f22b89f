#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the six chapters on the same text and lays the ten runs side by side.

`./tutorial demo` calls this after building. It reads nothing but the programs' own logs, and it
recomputes every claim from them: exit code 0 means that each claim holds, 1 that one does not.
"""
import argparse
import json
import math
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path

CHAPTERS = ("01_adam", "02_distributed_adam", "03_mixed_precision",
            "04_zero1", "05_zero2", "06_zero3")
KINDS = ("parameters", "gradients", "optimizer", "communication",
         "activations", "workspace", "data")


@dataclass
class Run:
    """One program, one dtype: what was run, and what its log says."""
    chapter: str
    dtype: str
    command: list
    log: Path
    seconds: float = 0.0
    info: dict = field(default_factory=dict)
    steps: list = field(default_factory=list)
    summary: dict = field(default_factory=dict)

    @property
    def number(self):
        return self.chapter[:2]

    @property
    def losses(self):
        return [step["loss"] for step in self.steps]

    @property
    def memory(self):
        return self.summary["memory"]


# ---- Running ---------------------------------------------------------------------------------

def plan(options):
    """The ten runs, in the order of the table."""
    common = ["--steps", str(options.steps), "--quiet"]
    if options.data:
        common += ["--data", str(options.data)]
    launch = shlex.split(options.mpiexec) + ["-n", str(options.ranks)]
    pairs = [(c, "fp32") for c in CHAPTERS] + [(c, "bf16") for c in CHAPTERS[2:]]
    runs = []
    for chapter, dtype in pairs:
        program, log = str(options.build / chapter / chapter), options.out / f"{chapter}_{dtype}.jsonl"
        if chapter == "01_adam":  # one process sees the samples of all ranks as micro-batches
            command = [program, "--accumulate", str(options.ranks)]
        else:
            command = launch + [program]
        if chapter >= "03":
            command += ["--dtype", dtype]
        runs.append(Run(chapter, dtype, command + common + ["--log", str(log)], log))
    return runs


def execute(run, ranks):
    """Runs one program with a line of progress; a program that fails ends the demo."""
    how = f"1 process x {ranks} micro-batches" if run.number == "01" else f"{ranks} ranks"
    print(f"  {run.dtype}  {run.chapter:<20}{how:<28}", end="", flush=True)
    run.log.unlink(missing_ok=True)  # never read a log of an earlier demo
    start = time.monotonic()
    done = subprocess.run(run.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    run.seconds = time.monotonic() - start
    if done.returncode != 0:
        print(f"failed\n{done.stdout.rstrip()}\nthe command was: {shlex.join(run.command)}")
        sys.exit(done.returncode if done.returncode > 0 else 1)
    read_log(run)
    print(f"{run.seconds:5.1f} s   loss {number(run.losses[-1], '.4f')}", flush=True)


def read_log(run):
    for line in run.log.read_text().splitlines():
        record = json.loads(line)
        if "run" in record:
            run.info = record["run"]
        elif "summary" in record:
            run.summary = record["summary"]
        else:
            run.steps.append(record)
    if not (run.info and run.steps and run.summary):
        sys.exit(f"{run.log}: incomplete log; run again, or run the program by hand: "
                 + shlex.join(run.command))


# ---- Judging ---------------------------------------------------------------------------------

def bits(loss):
    """The fp32 bits of a logged loss; None stands for a loss that is not finite."""
    return None if loss is None else struct.pack("<f", loss)


def largest_difference(run, reference):
    """Over all steps; infinite where only one of the two losses is finite."""
    return max(0.0 if bits(a) == bits(b) else math.inf if None in (a, b) else abs(a - b)
               for a, b in zip(run.losses, reference.losses))


def differing(runs, reference):
    """A sentence for each run that does not repeat the reference to the last bit."""
    problems = []
    for run in runs:
        steps = [s for s, (a, b) in enumerate(zip(run.losses, reference.losses), start=1)
                 if bits(a) != bits(b)]
        if len(run.steps) != len(reference.steps):
            problems.append(f"{run.chapter} took {len(run.steps)} steps, "
                            f"{reference.chapter} {len(reference.steps)}")
        elif steps:
            problems.append(f"{run.chapter}: loss differs in {len(steps)} steps, first in step "
                            f"{steps[0]}, by {largest_difference(run, reference):.1e} at most")
        elif run.summary["digest"] != reference.summary["digest"]:
            problems.append(f"{run.chapter}: the same losses, but other parameters at the end")
    return problems


def wrong_bytes(runs):
    """A sentence for each kind of memory that does not equal its formula."""
    problems = []
    for run in runs:
        for kind in KINDS:
            m = run.memory[kind]
            for what, formula in (("resident", "predicted_resident"), ("peak", "predicted")):
                if m[what] != m[formula]:
                    problems.append(f"{run.chapter} {run.dtype}, {kind}: {what} {m[what]} bytes, "
                                    f"formula {m[formula]}")
    return problems


def wrong_traffic(runs):
    """A sentence for each phase that did not send the number of elements of its formula."""
    problems = []
    for run in runs:
        traffic = run.summary["traffic"]
        rows = traffic["phases"] | {k: traffic[k] for k in ("padding", "scalars")}
        problems += [f"{run.chapter} {run.dtype}, {row}: sent {t['counted']} elements, "
                     f"formula {t['predicted']}"
                     for row, t in rows.items() if t["counted"] != t["predicted"]]
    return problems


def judge(runs, ranks):
    """Each claim of the tutorial with what contradicts it: an empty list where it holds."""
    fp32 = [run for run in runs if run.dtype == "fp32"]
    bf16 = [run for run in runs if run.dtype == "bf16"]
    return [
        ("fp32: 02 to 06 are identical to the last bit", differing(fp32[2:], fp32[1])),
        (f"fp32: 01 with --accumulate {ranks} has the bits of 02 on {ranks} ranks",
         differing(fp32[:1], fp32[1])),
        ("bf16: 03 to 06 are identical to the last bit", differing(bf16[1:], bf16[0])),
        ("bytes, resident and peak, equal their formulas in every run", wrong_bytes(runs)),
        ("elements sent equal their formulas in every run", wrong_traffic(runs)),
    ]


def reference_of(run, runs):
    """Differences are taken to 02 in fp32 and to 03 in bf16."""
    first = "02" if run.dtype == "fp32" else "03"
    return next(r for r in runs if r.dtype == run.dtype and r.number == first)


def elements_sent(run):
    """What one rank sends a step and parameter: the exact number, and as multiple of (N-1)/N."""
    counted = sum(p["counted"] for p in run.summary["traffic"]["phases"].values())
    exact = Fraction(counted, len(run.steps) * run.info["padded_parameters"])
    n = run.info["ranks"]
    if exact == 0 or n == 1:
        return exact, str(exact)
    multiple = exact / Fraction(n - 1, n)  # not an integer where steps were skipped
    short = str(multiple) if multiple.denominator == 1 else f"{float(multiple):.2f}"
    return exact, f"{short} x {n - 1}/{n}"


# ---- Printing --------------------------------------------------------------------------------

def number(value, form):
    return "inf/nan" if value is None or math.isinf(value) else format(value, form)


def megabytes(count):
    """Decimal MB in at most four characters; the exact integers are in summary.json."""
    mb = count / 1e6
    if count == 0:
        return "0"
    return f"{mb:.2f}" if mb < 9.995 else f"{mb:.1f}" if mb < 99.95 else f"{mb:.0f}"


def print_training(runs):
    print(f"\n{'':<43}{'final':>8}{'largest':>11}{'elements':>11}{'ms a':>7}")
    print(f"{'chapter':<20}{'dtype':<6}{'family':<17}{'loss':>8}{'difference':>11}"
          f"{'sent':>11}{'step':>7}")
    for run in runs:
        largest = largest_difference(run, reference_of(run, runs))
        print(f"{run.chapter:<20}{run.dtype:<6}{run.info['family']:<17}"
              f"{number(run.losses[-1], '.4f'):>8}"
              f"{'0' if largest == 0 else number(largest, '.1e'):>11}"
              f"{elements_sent(run)[1]:>11}{run.summary['median_ms']:>7.1f}")
    skipped = [f"{r.chapter} {r.dtype}: {r.summary['skipped_steps']}"
               for r in runs if r.summary["skipped_steps"]]
    print("\nLargest difference: of the loss in any step, to 02 in fp32 and to 03 in bf16.\n"
          "Elements sent: by one rank, a step and parameter. Step: median, slowest rank.\n"
          f"Skipped steps: {', '.join(skipped) or 'none'}.")


def print_memory(runs):
    """Three lines a kind; the columns are the runs, so that a line shows what a chapter saves."""
    def line(kind, what, values):
        cells = "".join(f"{'  ' if i == len(CHAPTERS) else ''}{megabytes(v):>5}"
                        for i, v in enumerate(values))
        print(f"{kind:<14}{what:<9}{cells}")

    heads = [run.number for run in runs]
    half = len(CHAPTERS)
    print(f"\n{'':<23}{'fp32':>5}{'':<{5 * half - 3}}{'bf16':>5}")
    print(f"{'decimal MB':<23}{''.join(f'{h:>5}' for h in heads[:half])}  "
          f"{''.join(f'{h:>5}' for h in heads[half:])}")
    for kind in KINDS:
        line(kind, "predicted", [run.memory[kind]["predicted"] for run in runs])
        line("", "resident", [run.memory[kind]["resident"] for run in runs])
        line("", "peak", [run.memory[kind]["peak"] for run in runs])
    line("total", "resident", [run.memory["total"]["resident"] for run in runs])
    line("", "peak", [run.memory["total"]["peak"] for run in runs])
    print("\nMaximum over ranks. Resident: held all the time. Peak: with what is borrowed\n"
          "inside a step; predicted is its formula. The kinds peak at different moments, so\n"
          "the peak of the total is measured, and at most the sum of the peaks above it.")


def print_claims(claims):
    print()
    for text, problems in claims:
        print(f"{text + ': ':<72}{'NO' if problems else 'yes'}")
        for problem in problems[:5]:
            print(f"    {problem}")
        if len(problems) > 5:
            print(f"    and {len(problems) - 5} more: claims in summary.json")


# ---- Drawing ---------------------------------------------------------------------------------

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
SVG_STYLE = """\
set encoding utf8
set terminal svg size {size} rounded font 'Helvetica,Arial,sans-serif,14' background '#ffffff'
set output '{output}'
set border 3 linecolor '#777777'
set tics nomirror scale 0.5 textcolor '#333333'
set grid ytics linecolor '#e4e4e4' linewidth 1 linetype 1
"""

LOSS_FIGURE = """\
set multiplot
set label 1 '{{/:Bold Loss of every run}}' at screen 0.075, 0.96 left font ',18'
set label 2 'Thick curves lie below thin ones: a run that left the others would show' \
  at screen 0.075, 0.92 left textcolor '#555555'
set ylabel 'loss (nats a byte)' offset 1.2, 0
set key at graph 0.98, graph 0.98 top right title 'chapter' right Right samplen 2.5 spacing 1.3
"""

LOSS_ABOVE = """\
set tmargin at screen 0.84
set bmargin at screen 0.42
set title '{dtype}, all {steps} steps' offset 0, -0.5
set xrange [0:{end}]
set yrange [*:*]
unset xlabel
set key on
"""

LOSS_BELOW = """\
unset label 1
unset label 2
set tmargin at screen 0.31
set bmargin at screen 0.09
set title '{dtype}, the last {count} steps' offset 0, -0.5
set xlabel 'step' offset 0, 0.4
set xrange [{first} - 0.5:{steps} + 0.5]
set yrange [{low:.6g}:{high:.6g}]
set key off
"""

MEMORY_FIGURE = """\
set label 1 '{{/:Bold Peak bytes by kind}}' at screen 0.075, 0.95 left font ',18'
set label 2 'The largest of {ranks} ranks; frames: the formulas; dots: the measured peak of all \
kinds together' at screen 0.075, 0.90 left textcolor '#555555'
set label 3 'fp32' at {fp32}, graph -0.11 center
set label 4 'bf16' at {bf16}, graph -0.11 center
set lmargin at screen 0.075
set rmargin at screen 0.78
set tmargin at screen 0.85
set bmargin at screen 0.12
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

# Light to dark, so that the thin upper curves stand out from the thick ones below them.
CHAPTER_COLOURS = ("#f2d16b", "#f0a35e", "#dd6a6a", "#9f6bb5", "#4d8ccb", "#10233f")
KIND_COLOURS = ("#2f6db3", "#e58a2b", "#3d9a6a", "#a05fb0", "#b9b9b9", "#8a6d5b", "#d8d36a")


def write_losses(runs, path):
    """One column a run; gnuplot leaves a gap where a loss is not finite."""
    rows = zip(*([("NaN" if loss is None else repr(loss)) for loss in run.losses]
                 for run in runs))
    path.write_text("".join(f"{step} {' '.join(row)}\n" for step, row in enumerate(rows, 1)))


def draw(script, text):
    """Runs gnuplot on a script kept beside its output, so that a reader can change it."""
    script.write_text(text)
    done = subprocess.run(["gnuplot", str(script)], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"gnuplot could not draw {script}: {done.stderr.strip()}")
    return done.stdout


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
    curves = []
    for column, run in enumerate(runs, start=2):
        if run.dtype == dtype:
            i = CHAPTERS.index(run.chapter)
            curves.append(f"'{losses}' using 1:{column} with lines linewidth {13 - 2.3 * i:.1f} "
                          f"linecolor '{CHAPTER_COLOURS[i]}' title '{run.number}'")
    return "plot " + ", ".join(curves) + "\n"


def loss_figure(runs, losses, output, steps):
    """Above, the whole runs; below, their last steps, wide enough to tell the curves apart."""
    first = max(1, steps - 24)
    last_losses = [v for run in runs for v in run.losses[first - 1:] if v is not None] or [0]
    space = 0.15 * (max(last_losses) - min(last_losses)) or 0.1
    below = {"first": first, "steps": steps, "count": steps - first + 1,
             "low": min(last_losses) - space, "high": max(last_losses) + space}
    text = SVG_STYLE.format(size="960,680", output=output) + LOSS_FIGURE
    for column, dtype in enumerate(("fp32", "bf16")):
        curves = loss_curves(runs, losses, dtype)
        text += (f"set lmargin at screen {0.075 + 0.485 * column:.3f}\n"
                 f"set rmargin at screen {0.495 + 0.485 * column:.3f}\n"
                 + LOSS_ABOVE.format(dtype=dtype, steps=steps, end=1.01 * steps) + curves
                 + LOSS_BELOW.format(dtype=dtype, **below) + curves + "unset ylabel\n")
    return text + "unset multiplot\n"


def memory_figure(runs, ranks, output):
    """Stacked bars of each kind's peak; the formulas are the black frames around the pieces."""
    places = [i + (0.8 if run.dtype == "bf16" else 0) for i, run in enumerate(runs)]
    blocks = {name: [] for name in KINDS + ("frames", "totals")}
    for x, run in zip(places, runs):
        peak = predicted = 0
        for kind in KINDS:
            m = run.memory[kind]
            blocks[kind].append((x, peak, peak + m["peak"]))
            blocks["frames"].append((x, predicted, predicted + m["predicted"]))
            peak, predicted = blocks[kind][-1][2], blocks["frames"][-1][2]
        blocks["totals"].append((x, run.memory["total"]["peak"]))
    data = "".join(f"${name} << END\n"
                   + "".join(f"{x} {' '.join(str(v / 1e6) for v in values)}\n"
                             for x, *values in rows) + "END\n"
                   for name, rows in blocks.items())
    bars = ", \\\n  ".join(f"${kind} using 1:2:($1-0.35):($1+0.35):2:3 with boxxyerror "
                           f"linecolor '{colour}' title '{kind}'"
                           for kind, colour in reversed(list(zip(KINDS, KIND_COLOURS))))
    half = len(CHAPTERS)
    return SVG_STYLE.format(size="960,560", output=output) + data + MEMORY_FIGURE.format(
        ranks=ranks, bars=bars, right=places[-1] + 0.6,
        names=", ".join(f"'{run.number}' {x}" for x, run in zip(places, runs)),
        fp32=sum(places[:half]) / half, bf16=sum(places[half:]) / len(places[half:]))


def print_figures(runs, options):
    """The curves as text, and two SVG files; without gnuplot the demo goes on without them."""
    if not shutil.which("gnuplot"):
        print("\nNo curves and no figures: gnuplot is missing (Debian's package is gnuplot-nox).")
        return
    losses = options.out / "loss.dat"
    write_losses(runs, losses)
    text = draw(options.out / "curves.gp", curves_in_text(runs, losses, options.steps))
    print("\n" + "\n".join(line.rstrip() for line in text.splitlines() if line.strip()))
    for name, script in (
            ("loss", loss_figure(runs, losses, options.out / "loss.svg", options.steps)),
            ("memory", memory_figure(runs, options.ranks, options.out / "memory.svg"))):
        draw(options.out / f"{name}.gp", script)
    print(f"\nThe same as pictures: {options.out / 'loss.svg'}, {options.out / 'memory.svg'}")


# ---- The record ------------------------------------------------------------------------------

def first_line(*command):
    """The first line a tool prints about itself, or None where the tool is missing."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\n")[0].strip() or None if done.returncode == 0 else None


def machine():
    """What the numbers of this run depend on; no name of host or user."""
    cpu = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
           if line.startswith("model name")] if Path("/proc/cpuinfo").exists() else []
    return {
        "system": platform.freedesktop_os_release()["PRETTY_NAME"]
                  if Path("/etc/os-release").exists() else platform.system(),
        "kernel": platform.release(),
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def row(run, runs):
    """A run as summary.json tells it: the table's numbers, and the log's, not rounded."""
    reference = reference_of(run, runs)
    largest = largest_difference(run, reference)
    sent, sent_text = elements_sent(run)
    return {
        "chapter": run.chapter, "dtype": run.dtype, "family": run.info["family"],
        "ranks": run.info["ranks"], "command": shlex.join(run.command),
        "seconds": round(run.seconds, 3), "final_loss": run.losses[-1],
        "compared_with": f"{reference.chapter} {reference.dtype}",
        "largest_difference": None if math.isinf(largest) else largest,
        "elements_sent_a_parameter": float(sent), "elements_sent_formula": sent_text,
        **run.summary,
    }


def write_summary(runs, claims, options):
    summary = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {
            "commit": first_line("git", "describe", "--always", "--dirty"),
            "compiler": first_line("c++", "--version"),
            "mpi": runs[1].info["mpi"],
            "meson": first_line("meson", "--version"),
            "gnuplot": first_line("gnuplot", "--version"),
            "python": platform.python_version(),
        },
        "options": {"ranks": options.ranks, "steps": options.steps,
                    "data": str(options.data) if options.data else None},
        "holds": not any(problems for _, problems in claims),
        "claims": [{"claim": text, "holds": not problems, "problems": problems}
                   for text, problems in claims],
        "runs": [row(run, runs) for run in runs],
    }
    path = options.out / "summary.json"
    path.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=Path("build"), help="where the programs are")
    parser.add_argument("--mpiexec", default="mpiexec", help="the launcher of the built MPI")
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--data", type=Path, help="a text to train on, instead of notes/corpus.txt")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where results go")
    return parser.parse_args()


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = plan(options)
    print(f"{len(runs)} runs of {options.steps} steps on {options.data or 'notes/corpus.txt'}:")
    for run in runs:
        execute(run, options.ranks)
    claims = judge(runs, options.ranks)
    print_training(runs)
    print_memory(runs)
    print_figures(runs, options)
    print_claims(claims)
    write_summary(runs, claims, options)
    print(f"\nEvery number is in {options.out / 'summary.json'}, the logs are beside it.")
    return 1 if any(problems for _, problems in claims) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
