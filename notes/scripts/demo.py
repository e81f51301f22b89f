#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the seven chapters on the same text and lays the twelve runs beside each other.

`./tutorial demo` calls this after building. It reads nothing but the programs' own logs, and it
recomputes every claim from them: exit code 0 means that each claim holds, 1 that one does not.
"""
import argparse
import json
import math
import platform
import shlex
import signal
import sys
from datetime import datetime, timezone
from pathlib import Path

sys.dont_write_bytecode = True
import compare  # noqa: E402
import figures  # noqa: E402
import offload  # noqa: E402
import report  # noqa: E402
from compare import number  # noqa: E402
from findings import Study  # noqa: E402
from plans import Plans, device_between, too_small  # noqa: E402
from runs import CHAPTERS, Failure, Programs, first_line, machine  # noqa: E402


TRACED_LINK = 10  # Gbit/s
BUSES = (1, 0.1)  # GB/s: copies take less than computing, and more; the latter is traced
SHORT = ["--steps", 8]


def data(options):
    return ["--data", options.data] if options.data else []


def prepare(programs, options):
    """The twelve runs, in the order of the tables, and short ones for the pictures."""
    def run(name, chapter, dtype, *words, ranks=options.ranks, trace=False):
        return programs.prepare(f"{name}.jsonl", chapter, ranks, *words, "--quiet", *data(options),
                                dtype=dtype, trace=trace)

    twelve = [run(f"{chapter}_{dtype}", chapter, dtype, "--steps", options.steps,
                  trace=dtype == "fp32")
              for dtype, chapters in (("fp32", CHAPTERS), ("bf16", CHAPTERS[2:]))
              for chapter in chapters]
    more = [run(f"more/{chapter}_accumulate_{count}", chapter, "fp32", "--steps", 2,
                "--accumulate", count)
            for chapter in CHAPTERS[1:] if chapter != "03_mixed_precision" for count in (4, 16)]

    def on_two(what, speed, chapter, *words, trace):
        """Ranks, so that each has a core to compute on while another one sends."""
        return run("_".join(map(str, (f"more/{chapter}_{what}", speed, *words[1:]))), chapter,
                   "fp32", *SHORT, "--batch", 256, f"--{what}", speed, *words, ranks=2, trace=trace)

    for chapter, *words in (["02_distributed_adam"], ["04_zero1"], ["05_zero2"],
                            ["06_zero3", "--prefetch", 0], ["06_zero3", "--prefetch", 1],
                            ["07_offload", "--prefetch", 1]):
        more += [on_two("link", speed, chapter, *words, trace=speed == TRACED_LINK)
                 for speed in (0, 1, TRACED_LINK)]
    more += [on_two("bus", speed, "07_offload", "--prefetch", prefetch, trace=speed == BUSES[-1])
             for speed in BUSES for prefetch in (0, 1)]
    return twelve, more


def tell(programs, options, plans, runs):
    """The story of a device on which 06 does not fit and 07 does, and the run that fits."""
    bf16 = next(run for run in runs if (run.number, run.dtype) == ("06", "bf16"))
    reserved = {chapter: plan["reserved"] for chapter, plan in plans.like(bf16).items()}
    size = device_between(*(reserved[chapter] for chapter in ("07_offload", "06_zero3")))
    refused, fits = (programs.prepare(f"more/{chapter}_device.jsonl", chapter, options.ranks,
                                      *SHORT, "--device-memory", size, *data(options))
                     for chapter in ("06_zero3", "07_offload"))
    sentence = too_small(refused)
    fits.execute()
    return offload.story(refused, sentence, fits), fits


def execute(run, ranks):
    """Runs one program with a line of progress, whose end a failure writes."""
    how = f"1 process x {ranks} micro-batches" if run.number == "01" else f"{ranks} ranks"
    print(f"  {run.dtype}  {run.chapter:<20}{how:<28}", end="", flush=True)
    run.execute()
    print(f"{run.seconds:5.1f} s   loss {number(run.losses[-1], '.4f')}", flush=True)


# ---- The record ------------------------------------------------------------------------------

def print_claims(claims, width=72):
    print()
    for text, problems in claims:
        print(f"{text + ': ':<{width}}{'NO' if problems else 'yes'}")
        for problem in problems[:5]:
            print(f"    {problem}")
        if len(problems) > 5:
            print(f"    and {len(problems) - 5} more: claims in summary.json")


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
            "matplotlib": figures.matplotlib and figures.matplotlib.__version__,
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
    programs = Programs(options.build, options.mpiexec, options.out)
    runs, more = prepare(programs, options)
    print(f"{len(runs)} runs of {options.steps} steps on {options.data or 'notes/corpus.txt'}:")
    for run in runs:
        execute(run, options.ranks)
    what = f"{len(more) + 2} short ones: other links, buses, devices, micro-batches"
    print(f"  {what:<60}", end="", flush=True)
    for run in more:
        run.execute()
    plans = Plans(options.build)
    story, fits = tell(programs, options, plans, runs)
    more.append(fits)
    print(f"{sum(run.seconds for run in more):5.1f} s")
    (options.out / "story.json").write_text(json.dumps(story, indent=2) + "\n")
    study = Study(runs, more, plans, story)
    report.print_text(study)
    claims = compare.claims(runs, options.ranks)
    print_claims(claims)
    if (unlike := compare.unlike_recorded(runs)) is not None:
        claims.append(("the same bits as the README's run", unlike))
        print_claims(claims[-1:], width=0)
    write_summary(runs, claims, options)
    print(f"\nEvery number is in {options.out / 'summary.json'}, the logs are beside it.")
    report.write(study, options.out / "report.html")
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
