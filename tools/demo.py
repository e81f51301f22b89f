#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Trains the eight chapters on the same text and lays the fourteen runs beside each other.
`./tutorial demo` calls this after building. It recomputes every claim from the programs' own logs
and notes/digests.json: exit code 0 means that each claim holds, 1 that one does not."""
import argparse
import contextlib
import itertools
import json
import shutil
import signal
import sys
from pathlib import Path

import findings
import report
from runs import (CHAPTERS, RESOURCES, ROOT, Failure, Programs, finish, folded, number, ran,
                  wrong_bytes, wrong_traffic)
from trial import progress

SHORT = ["--steps", 8]  # options of the runs for the timeline
# By task: options that hold unless the reader gives them; --batch (0: the program's default);
# --batch of the timeline's runs, so large that computation can hide messages; --steps.
TASKS = {"text": ({}, 0, 256, 200),
         "llama": ({"task": "llama", "heads": 4, "sequence": 64, "width": 128}, 4, 16, 200),
         "mlp": ({"task": "mlp"}, 0, 64, 20)}
# Runs of (chapter, ranks, last step). Each run but the first resumes the checkpoint of the run
# before it. 0 ranks: as many as --ranks says.
CHAIN = ((CHAPTERS[1], 0, 5), (CHAPTERS[4], 2, 10), (CHAPTERS[5], 3, 15), (CHAPTERS[6], 0, 20),
         (CHAPTERS[7], 2, 25))


def prepare(programs, options):
    """Returns (the fourteen runs in the order of the tables, short ones for the timeline)."""
    of_all, batch = ["--quiet", *options.of_data], options.batch
    runs = [programs.prepare(f"{chapter}_{dtype}.jsonl", chapter, options.ranks, "--steps",
                             options.steps, *of_all, *batch, dtype=dtype)
            for dtype, chapters in (("fp32", CHAPTERS), ("bf16", CHAPTERS[2:]))
            for chapter in chapters]
    if options.task == "llama":  # the demo ends with text that the saved weights write
        run_06 = next(run for run in runs if run.number == "06")
        run_06.command += ["--save", str(options.out / "saved")]
        shutil.rmtree(options.out / "saved", ignore_errors=True)  # of an earlier demo
    # Link (Gbit/s), bus and disk (GB/s) are slow, so that waits show. Two ranks: each has a core.
    more = [programs.prepare(f"more/{chapter}.jsonl", chapter, 2, *slow, "--trace",
                             options.out / f"more/{chapter}.trace", *SHORT, "--batch",
                             options.large, *of_all, dtype="fp32")
            for chapter, *slow in (("06_zero3", "--link", 2), ("07_offload", "--bus", 0.2),
                                   ("08_infinity", "--bus", 0.2, "--disk", 0.2))]
    return runs, more


def prepare_chain(programs, options):
    """Returns pairs: a run of CHAIN, and a run of 01 between the same two steps."""
    folder, resume, pairs = options.out / "chain", [], []
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier demo
    for chapter, ranks, steps in CHAIN:
        words = ["--steps", steps, *resume, "--quiet", *options.of_data, *options.batch]
        pairs.append([programs.prepare(f"chain/{name}_{steps}.jsonl", name, ranks or options.ranks,
                                       *words, *save, dtype="fp32")
                      for name, save in ((chapter, ["--save", folder]), (CHAPTERS[0], []))])
        resume = ["--resume", folder / f"step_{steps}"]
    return pairs


def lost(runs):
    """Yields a sentence for each run of 07 and 08 whose places together do not hold 06's bytes plus
    staging, 07's master weights in fp32, and the host's pieces of the state on 08's disk."""
    for run in (run for run in runs if run.on_host):
        other = next(r for r in runs if (r.number, r.dtype) == ("06", run.dtype))
        alone, every = (sum(place["total"]["resident"] for place in r.places.values())
                        for r in (other, run))
        staging, state = (run.on_host[kind]["resident"] for kind in ("communication", "optimizer"))
        pieces = state if run.on_disk else 0
        master = 4 * run.info["padded_parameters"] // run.ranks * (
            run.dtype == "fp32" and not run.on_disk)
        if every != alone + staging + master + pieces:
            yield (f"{run}: {every} bytes in all places, {other.chapter} {alone}, {staging} of "
                   f"staging, {master} of master weights, {pieces} of pieces")


def claims(runs, ranks, chain):
    """Yields (a claim of the tutorial, a list of what contradicts it, empty if it holds)."""
    def differing(runs, reference):
        compared = (findings.Comparison(run, reference) for run in runs)
        return [" ".join(findings.what(c)) for c in compared if c.parted or c.layers != []]

    fp32, bf16 = ([run for run in runs if run.dtype == dtype] for dtype in ("fp32", "bf16"))
    yield "fp32: 02 to 08 are identical to the last bit", differing(fp32[2:], fp32[1])
    yield (f"fp32: 01 with --accumulate {ranks} has the bits of 02 on {ranks} ranks",
           differing(fp32[:1], fp32[1]))
    yield ("fp32: 02, 05 to 08 resume one another's checkpoints with 01's bits",
           [sentence for run, alone in chain for sentence in differing([run], alone)])
    yield "bf16: 03 to 08 are identical to the last bit", differing(bf16[1:], bf16[0])
    yield "bytes held all the time, and at the peak, equal their formulas", wrong_bytes(runs)
    yield "07 and 08 hold 06's bytes elsewhere, and add only room for copies", [*lost(runs)]
    yield "elements sent and bytes copied equal their formulas", wrong_traffic(runs)
    rows = {(row["program"], row["ranks"], row["options"] + " --quiet"): row.get("digest")
            for row in json.loads((ROOT / "notes/digests.json").read_text("utf-8"))}
    known = {str(run): rows.get((run.chapter, run.ranks, " ".join(run.words))) for run in runs}
    if all(known.values()) and not any(run.info["gpu"] for run in runs):  # GPUs have other bits
        yield "the same bits as the recorded runs", [
            f"{run}: {run.summary['digest']}, recorded is {known[str(run)]}" for run in runs
            if run.summary["digest"] != known[str(run)]]


def told_steps(run, steps):
    """Returns a function that returns (how many of its steps a run has logged, `steps`)."""
    def how_far():
        with contextlib.suppress(FileNotFoundError):
            return min(steps, max(0, run.log.read_bytes().count(b"\n") - 1)), steps
    return how_far


def execute(what, runs):
    done = []
    with progress(f"{what:<67}", lambda: (len(done), len(runs)), then=""):
        for run in runs:
            run.execute()
            done.append(run)


def gpus():
    """Returns how many GPUs this machine has."""
    listed = shutil.which("nvidia-smi") and ran(["nvidia-smi", "-L"])[1]
    return sum(line.startswith("GPU ") for line in (listed or "").splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=Path("build"), help="where the programs are")
    parser.add_argument("--mpiexec", default="mpiexec", help="the launcher of the built MPI")
    parser.add_argument("--ranks", type=int, help="default: the number of GPUs, if several, or 4")
    parser.add_argument("--steps", type=int, help="200; of task mlp 20")
    parser.add_argument("--task", choices=TASKS, default="text",
                        help="an MLP on text, a small llama, an MLP on numbers")
    parser.add_argument("--layers", type=int, help="of the MLP")
    parser.add_argument("--width", type=int, help="of the MLP's layers")
    parser.add_argument("--batch", type=int, help="samples of a rank")
    parser.add_argument("--data", help="a text to train on, instead of notes/corpus.txt")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where results go")
    options = parser.parse_args()
    of_task, batch, options.large, steps = TASKS[options.task]
    given = {name: getattr(options, name) for name in ("layers", "width", "data")}
    of_task = of_task | {name: value for name, value in given.items() if value}
    options.of_data = [word for name, value in of_task.items() for word in (f"--{name}", value)]
    batch = options.batch or batch
    options.batch = ["--batch", batch] if batch else []
    if options.task == "llama":  # NumPy, which other tasks need not, is asked for before the runs
        try:
            import llama_text
        except ImportError:
            raise Failure("the Llama's text needs NumPy (python3-numpy)", RESOURCES) from None
    options.steps, found = options.steps or steps, gpus()
    options.ranks = options.ranks or (found if found > 1 else 4)
    programs = Programs(options.build, options.mpiexec, options.out)
    for log in options.out.glob("more/*.jsonl"):
        log.unlink()  # an earlier demo may have had other runs
    runs, more = prepare(programs, options)
    data = "numbers" if options.task == "mlp" else options.data or "notes/corpus.txt"
    of = (f"{len(runs)} runs of {options.steps} steps of task {options.task} on {data}. 01 is one "
          f"process, which takes the samples of all ranks as {options.ranks} micro-batches. The "
          "digest is a fingerprint of all parameters at the end: equal digests, equal bits.")
    print(*folded(of), "", f"{'chapter':<21}dtype  ranks  final loss  {'digest':<18}"
          f"{report.weak('seconds')}", sep="\n")
    for run in runs:
        with progress(f"{run.chapter:<21}{run.dtype}{run.ranks:>8}", told_steps(run, options.steps),
                      then=""):
            run.execute()  # if this fails, the Failure's sentence ends the line
        print(f"{number(run.losses[-1], '.4f'):>12}  {run.summary['digest']:<18}"
              f"{report.weak(f'{run.seconds:7.1f}')}", flush=True)
    execute("short ones, traced: on a slow link, bus, disk", more)
    print(report.weak(f"{sum(run.seconds for run in more):6.1f}"))
    chain = prepare_chain(programs, options)
    links, ranks = zip(*((run.number, str(run.ranks)) for run, _ in chain))
    way = f"a chain of checkpoints, {', '.join(links)} on {', '.join(ranks)} ranks"
    every = list(itertools.chain(*chain))
    execute(way, every)
    for run in every:
        run.label = f"{run} to step {run.steps[-1]['step']}"
    print(report.weak(f"{sum(run.seconds for run in every):6.1f}"))
    study = findings.Study(runs, more)
    *parts, ending = report.sections(study)
    parts[1].tables = []  # the table of runs, whose lines are printed above
    report.print_text(parts)
    print()
    judged = [*claims(runs, options.ranks, chain)]
    for text, problems in judged:
        print(f"{text + ':':<72}{'NO' if problems else 'yes'}",
              *(f"    {line}" for line in problems), sep="\n")
    report.print_text([ending])
    if options.task == "llama":
        weights = options.out / f"saved/step_{options.steps}/model.safetensors"
        equal = len({run.summary["digest"] for run in runs if run.dtype == "fp32"}) == 1
        whose = "all chapters' equal fp32" if equal else "06's fp32"
        for line in llama_text.before_and_after(weights, whose, options.steps):
            print(line, flush=True)
    print(f"\nThe logs, in which every number is: {options.out}/*.jsonl")
    report.write(study, options.out / "report.html")
    return 1 if any(problems for _, problems in judged) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    finish(main, "failed: ")
