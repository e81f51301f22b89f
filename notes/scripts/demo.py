#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the six chapters on the same text and lays the ten runs side by side.

`./tutorial demo` calls this after building. It reads nothing but the programs' own logs, and it
recomputes every claim from them: exit code 0 means that each claim holds, 1 that one does not.
"""
import argparse
import json
import math
import platform
import shlex
import shutil
import signal
import sys
from datetime import datetime, timezone
from pathlib import Path

sys.dont_write_bytecode = True
import compare  # noqa: E402
import figures  # noqa: E402
from compare import number  # noqa: E402
from runs import CHAPTERS, Failure, Programs, first_line, kinds_of, machine  # noqa: E402


def prepare(options):
    """The ten runs, in the order of the table."""
    programs = Programs(options.build, options.mpiexec, options.out)
    words = ["--steps", options.steps, "--quiet"]
    words += ["--data", options.data] if options.data else []
    return [programs.prepare(f"{chapter}_{dtype}.jsonl", chapter, options.ranks, *words,
                             dtype=dtype)
            for dtype, chapters in (("fp32", CHAPTERS), ("bf16", CHAPTERS[2:]))
            for chapter in chapters]


def execute(run, ranks):
    """Runs one program with a line of progress, whose end a failure writes."""
    how = f"1 process x {ranks} micro-batches" if run.number == "01" else f"{ranks} ranks"
    print(f"  {run.dtype}  {run.chapter:<20}{how:<28}", end="", flush=True)
    run.execute()
    print(f"{run.seconds:5.1f} s   loss {number(run.losses[-1], '.4f')}", flush=True)


# ---- Printing --------------------------------------------------------------------------------

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
        print(f"{run.chapter:<20}{run.dtype:<6}{run.info['family']:<17}"
              f"{number(run.losses[-1], '.4f'):>8}"
              f"{compare.small(compare.difference(run, runs)):>11}"
              f"{compare.elements_sent(run)[1]:>11}{run.summary['median_ms']:>7.1f}")
    skipped = [f"{r.chapter} {r.dtype}: {r.summary['skipped_steps']}"
               for r in runs if r.summary["skipped_steps"]]
    print("\nLargest difference: of the loss in any step, to 02 in fp32 and to 03 in bf16.\n"
          "Elements sent: by one rank, a step and parameter. Step: median, slowest rank.\n"
          f"Skipped steps: {', '.join(skipped) or 'none'}.")


def print_memory(runs):
    """Three lines a kind; the columns are the runs, so that a line shows what a chapter saves."""
    half = len(CHAPTERS)

    def line(name, cells):
        cells = [f"{cell:>5}" for cell in cells]
        print(f"{name:<23}{''.join(cells[:half])}  {''.join(cells[half:])}")

    print(f"\n{'':<23}{'fp32':>5}{'':<{5 * half - 3}}{'bf16':>5}")
    line("decimal MB", [run.number for run in runs])
    for kind in [*kinds_of(runs), "total"]:
        shown = [what for what in ("predicted", "resident", "peak")
                 if what in runs[0].memory[kind]]
        for what in shown:
            line(f"{kind if what == shown[0] else '':<14}{what}",
                 [megabytes(run.memory[kind][what]) for run in runs])
    print("\nMaximum over ranks. Resident: held all the time. Peak: with what is borrowed\n"
          "inside a step; predicted is its formula. The kinds peak at different moments, so\n"
          "the peak of the total is measured, and at most the sum of the peaks above it.")


def print_figures(runs, options):
    """The curves as text, and two SVG files; without gnuplot the demo goes on without them."""
    if not shutil.which("gnuplot"):
        print("\nNo curves and no figures: gnuplot is missing (Debian's package is gnuplot-nox).")
        return
    out, losses = options.out, options.out / "loss.dat"
    loss, memory = out / "loss.svg", out / "memory.svg"
    figures.write_losses(runs, losses)
    try:
        text = figures.draw(out / "curves.gp",
                            figures.curves_in_text(runs, losses, options.steps))
        print("\n" + "\n".join(line.rstrip() for line in text.splitlines() if line.strip()))
        figures.draw(out / "loss.gp", figures.loss(runs, losses, loss, options.steps))
        figures.draw(out / "memory.gp", figures.memory(runs, options.ranks, memory))
        print(f"\nThe same as pictures: {loss}, {memory}")
    except Failure as failure:
        print(failure)


def print_claims(claims, width=72):
    print()
    for text, problems in claims:
        print(f"{text + ': ':<{width}}{'NO' if problems else 'yes'}")
        for problem in problems[:5]:
            print(f"    {problem}")
        if len(problems) > 5:
            print(f"    and {len(problems) - 5} more: claims in summary.json")


# ---- The record ------------------------------------------------------------------------------

def row(run, runs):
    """A run as summary.json tells it: the table's numbers, and the log's, not rounded."""
    reference = compare.reference_of(run, runs)
    largest = compare.difference(run, runs)
    sent, sent_text = compare.elements_sent(run)
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
    runs = prepare(options)
    print(f"{len(runs)} runs of {options.steps} steps on {options.data or 'notes/corpus.txt'}:")
    for run in runs:
        execute(run, options.ranks)
    claims = compare.claims(runs, options.ranks)
    print_training(runs)
    print_memory(runs)
    print_figures(runs, options)
    print_claims(claims)
    print(f"\nEvery number is in {options.out / 'summary.json'}, the logs are beside it.")
    if (unlike := compare.unlike_recorded(runs)) is not None:
        claims.append(("the same bits as the README's run", unlike))
        print_claims(claims[-1:], width=0)
    write_summary(runs, claims, options)
    return 1 if any(problems for _, problems in claims) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"failed\n{failure}")
        sys.exit(failure.code)
    except KeyboardInterrupt:
        sys.exit(130)
