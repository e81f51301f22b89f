#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ratios of the times of a training step: chapters over other chapters, and over PyTorch.

On the CPU, with one thread per rank: three kinds of work in fp32 and bf16, of which a table in
Markdown comes last; a Llama beside transformers', and 07 over 06. On a GPU one rank in bf16 trains
twelve Linear(2048) with 4096 samples, sixteen Linear(4096) with 8192 samples, and a Llama.

Programs and PyTorch (torch_times.py) run in turn, for several rounds. A ratio is the median of the
rounds' ratios, because the machine's speed drifts, but not within a round. Without PyTorch, or
where it sees no GPU, nothing is compared with it. A ratio above its bar is a failure; on a CPU, but
for 07 over 06, only with AVX-512 and PyTorch, for which the bars were chosen. With --before each
program is compared only with that of another build.
"""
import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
from programs import CHAPTERS, SKIPPED, USAGE, Programs

AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()


@dataclass
class Row:
    """A model, the runs that train it, and the ratios that are printed."""
    ranks: int
    dtype: str
    steps: int
    model: dict  # options of the programs
    runs: dict  # by name, which begins with the chapter's number: the program's other options
    ratios: list  # (our run, the run that it is divided by, its bar or None)

    def __str__(self):
        return ("{task} {layers} x {width}, batch {batch}".format(**self.model)
                + f", {self.dtype}, {self.ranks} rank{'s' * (self.ranks > 1)}")

    def words(self):
        return [word for name, value in self.model.items() for word in (f"--{name}", value)]


def on_cpu(ranks, dtype, task, layers, width, over_torch, bar_06):
    """Returns a Row on the CPU. over_torch: the bars of 02 (in bf16 03), 04 and 06 over PyTorch.
    bar_06: the bar of 06 over 02 or 03."""
    first = "02" if dtype == "fp32" else "03"
    ratios = zip((first, "04", "06"), ("torch ddp", "torch zero", "torch fsdp"), over_torch)
    return Row(ranks, dtype, 60 if task == "text" else 15,
               {"task": task, "layers": layers, "width": width, "batch": 32},
               {chapter: ["--dtype", dtype] * (chapter > "02")
                for chapter in (first, "04", "05", "06")},
               [*ratios, ("04", first, 0.95), ("05", first, 1.00), ("06", first, bar_06)])


CPU = [on_cpu(2, "fp32", "mlp", 3, 2048, (0.45, 0.41, 0.23), 1.05),
       on_cpu(2, "bf16", "mlp", 3, 2048, (0.60, 0.45, 0.28), 1.05),
       on_cpu(4, "fp32", "mlp", 16, 512, (0.60, 0.35, 0.13), 1.05),
       on_cpu(4, "bf16", "mlp", 16, 512, (0.58, 0.32, 0.15), 1.05),
       on_cpu(4, "fp32", "text", 8, 256, (0.27, 0.13, 0.06), 1.30),
       on_cpu(4, "bf16", "text", 8, 256, (0.33, 0.14, 0.07), 1.30)]
LLAMA = [Row(2, "fp32", 12,
             {"task": "llama", "layers": 4, "width": 256, "heads": 8, "kv-heads": 4, "hidden": 688,
              "batch": batch, "sequence": sequence},
             {"02": [], "02 --recompute": ["--recompute"], "06": ["--dtype", "fp32"]},
             [("02", "torch ddp", over_ddp), ("06", "torch fsdp", 0.75),
              ("02 --recompute", "02", 1.27)])
         for batch, sequence, over_ddp in ((8, 128, 0.88), (2, 512, 0.85))]
# At 16 GB/s copies take far less time than computation, so 07 may be only 10 % slower than 06.
OFFLOAD = Row(2, "bf16", 30, {"task": "mlp", "layers": 16, "width": 512, "batch": 256},
              {"06": [], "07 bus 16": ["--bus", 16]}, [("07 bus 16", "06", 1.10)])
HEAD = ["work", "02 (bf16: 03) over DDP", "04 over DDP + ZeroRedundancyOptimizer",
        "06 over FSDP2", "04, 05, 06 over 02 (bf16: 03)"]
GPU = [Row(1, "bf16", 60, {"task": "mlp", "layers": 12, "width": 2048, "batch": 4096},
           {chapter: ["--dtype", "bf16"] for chapter in ("03", "04", "05", "06")},
           [("03", "torch step", 0.80), ("03", "torch same work", 0.72),
            ("03", "torch compiled", None),
            *((chapter, "03", None) for chapter in ("04", "05", "06"))]),
       Row(1, "bf16", 20, {"task": "mlp", "layers": 16, "width": 4096, "batch": 8192, "lr": 1e-5},
           {chapter: ["--dtype", "bf16"] for chapter in ("06", "07")},
           [("06", "torch fsdp", 0.80), ("07", "torch offload", 0.65), ("07", "06", None)]),
       Row(1, "bf16", 12, {"task": "llama", "layers": 4, "width": 4096, "heads": 32, "kv-heads": 8,
                           "hidden": 10928, "batch": 1, "sequence": 4096, "lr": 1e-5},
           {chapter: ["--dtype", "bf16"] for chapter in ("03", "06")},
           [("03", "torch step", None), ("06", "torch fsdp", None), ("06", "03", None)])]


def torch_times(arguments, row):
    """Returns (milliseconds by name, PyTorch's version), or ({}, why there are none)."""
    kinds = [other[6:] for _, other, _ in row.ratios if other.startswith("torch ")]
    asked = row.model | {"dtype": row.dtype, "ranks": row.ranks, "device": arguments.device,
                         "kinds": kinds}
    done = subprocess.run([arguments.torch, Path(__file__).with_name("torch_times.py"),
                           json.dumps(asked)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == SKIPPED:
        return {}, done.stdout.strip()
    done.check_returncode()
    answer = json.loads(done.stdout)
    return {f"torch {name}": ms for name, ms in answer["ms"].items()}, answer["words"]


def measure(arguments, row, builds):
    """Runs a round. Returns (milliseconds by name, words: what the programs are compared with)."""
    times = {}
    for run, own in row.runs.items():
        chapter, = (chapter for chapter in CHAPTERS if chapter.startswith(run[:2]))
        for name, programs in builds.items():
            summary = programs.logged(row.ranks, chapter, *row.words(), *own, "--device",
                                      arguments.device, "--steps", row.steps)[2]
            assert summary["skipped_steps"] == 0, f"{run}: a step without Adam is no step"
            times[name + run] = summary["median_ms"]
    if arguments.before or row is OFFLOAD:
        return times, str(arguments.before or "two chapters")
    torch, words = torch_times(arguments, row)
    return times | torch, words


def print_ratios(rounds, row, word):
    """Prints ratios, bars after `word`. Returns (whether none is above its bar, a row of cells)."""
    print(f"{'ours':<20}{'ms':>9}   {'over':<22}{'ms':>9}   ratio")
    good, cells, over_first = True, [str(row)], []
    for ours, other, bar in row.ratios:
        if other not in rounds[0]:
            cells.append("–")
            continue
        mine, theirs, ratio = map(statistics.median, zip(*(
            (times[ours], times[other], times[ours] / times[other]) for times in rounds)))
        above = bar is not None and ratio > bar
        print(f"{ours:<20}{mine:>9.3f}   {other:<22}{theirs:>9.3f}  {ratio:6.2f}"
              + (f" {word} {bar:.2f}{', above' * above}" if bar else ""))
        good = good and not above
        if other.startswith("torch"):
            cells.append(f"{ratio:.2f} ({mine:.0f}, {theirs:.0f})")
        else:
            over_first.append(f"{ratio:.2f}")
    print(flush=True)
    return good, [*cells, ", ".join(over_first)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--before", type=lambda path: Path(path).resolve(),
                        help="the build to compare with, as of the commit before")
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--torch", metavar="PYTHON", default=sys.executable,
                        help="the Python that has PyTorch, as a virtual environment's")
    parser.add_argument("--rounds", type=int, help="of each kind of work (3 on a GPU, else 5)")
    parser.add_argument("--no-judge", action="store_true", help="exit with 0 whatever the ratios")
    arguments = parser.parse_args()
    builds = {"": Programs(arguments.build, arguments.mpiexec)}
    if arguments.before:
        builds["before "] = Programs(arguments.before, arguments.mpiexec)
    if arguments.device == "cuda" and (why := builds[""].why_no_gpu()):
        print(why)
        return SKIPPED
    table, all_good = [HEAD, ["---", *["---:"] * 4]], True
    for row in GPU if arguments.device == "cuda" else [*CPU, *LLAMA, OFFLOAD]:
        if arguments.before:
            row.ratios = [(run, f"before {run}", 1.05) for run in row.runs]
            if builds["before "].run(0, CHAPTERS[0], *row.words(), "--plan").code == USAGE:
                print(f"step: {row}; not measured, {arguments.before} has not this model\n")
                continue
        rounds, words = zip(*(measure(arguments, row, builds)
                              for _ in range(arguments.rounds or (3 if row in GPU else 5))))
        print(f"step: {row}; {len(rounds)} rounds\n{words[0]}\n")
        judged = arguments.before or row in (*GPU, OFFLOAD) or AVX512 and "torch fsdp" in rounds[0]
        good, cells = print_ratios(rounds, row, "bar" if judged else "aim")
        all_good = all_good and (good or not judged)
        if row in CPU:
            table.append(cells)
            torch = words[0]
    if arguments.device == "cpu" and not arguments.before:
        print("\n".join(f"| {' | '.join(cells)} |" for cells in table))
        print(f"\nRatio (ms per step of each): medians of {len(rounds)} rounds in turn. {torch}.")
    return 0 if all_good or arguments.no_judge else 1


if __name__ == "__main__":
    sys.exit(main())
