#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The time of a training step and of Adam on one GPU, as ratios over PyTorch's: at most 1.00.

The model is a stack of twelve Linear(2048), 4096 samples, one rank. Programs and PyTorch (see
torch_gpu.py) run in turn, several rounds, and a ratio is the median of the rounds' ratios. The
other chapters' times are for information, as ratios over chapter 03 in bf16. Where PyTorch is
missing, or sees no GPU, nothing is judged.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BAR = 1.00
SKIPPED = 77
OURS = "03 bf16"
# Ours, PyTorch's, and whether the ratio is judged.
RATIOS = [(OURS, "step", True), (OURS, "step, same work", False), ("adam fp32", "adam fp32", True),
          ("adam bf16", "adam bf16", True)]
CHAPTERS = {"02": "02_distributed_adam", "03": "03_mixed_precision", "04": "04_zero1",
            "05": "05_zero2", "06": "06_zero3"}


def runs():
    """Name of a run: its program and that program's own arguments."""
    every = {OURS: (CHAPTERS["03"], ["--dtype", "bf16"]), "02 fp32": (CHAPTERS["02"], [])}
    for dtype in ["bf16", "fp32"]:
        for number in ["03", "04", "05"]:
            every[f"{number} {dtype}"] = (CHAPTERS[number], ["--dtype", dtype])
        for ahead in ["0", "1"]:
            every[f"06 {dtype}, prefetch {ahead}"] = (
                CHAPTERS["06"], ["--dtype", dtype, "--prefetch", ahead])
    return every


class Skip(Exception):
    """What was started exits with 77; its sentence is the reason."""


def output_of(command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if done.returncode == SKIPPED:
        raise Skip(done.stdout.strip())
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{Path(command[0]).name} ended with {done.returncode}")
    return done.stdout


def model(arguments):
    return ["--width", arguments.width, "--layers", arguments.layers, "--batch", arguments.batch]


def adam_times(arguments, folder):
    """The number of parameters and a dict of milliseconds."""
    log = Path(folder) / "adam.json"
    elements = ["--elements", arguments.elements] if arguments.elements else []
    output_of([arguments.build / "tests/benchmarks/gpu_adam_benchmark", "--no-judge", "--json", log, *elements])
    figures = json.loads(log.read_text())
    return figures["elements"], figures["ms"]


def step_ms(arguments, folder, program, own):
    log = Path(folder) / "log.jsonl"
    output_of([arguments.mpiexec, "-n", "1", arguments.build / program / program, "--device", "cuda",
               "--task", "mlp", *model(arguments), *own, "--steps", arguments.steps, "--quiet",
               "--log", log])
    return json.loads(log.read_text().splitlines()[-1])["summary"]["median_ms"]


def torch_times(arguments, elements):
    """PyTorch's words for itself and a dict of milliseconds."""
    script = Path(__file__).parent / "torch_gpu.py"
    figures = json.loads(output_of([arguments.python, script, *model(arguments), "--elements",
                                    elements]))
    return f"PyTorch {figures['torch']} on {figures['gpu']}", figures["ms"]


def measure(arguments):
    """Rounds of (ours, PyTorch's), what PyTorch is or why it is not there, and Adam's size."""
    rounds, words, has_torch = [], "", True
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            elements, ours = adam_times(arguments, folder)
            torch = {}
            for name, (program, own) in runs().items():
                ours[name] = step_ms(arguments, folder, program, own)
                if name != OURS or not has_torch:
                    continue
                try:
                    words, torch = torch_times(arguments, elements)
                except Skip as reason:
                    words, has_torch = str(reason), False
            rounds.append((ours, torch))
    return rounds, words, elements


def spread(values):
    return f"{statistics.median(values):6.2f} ({min(values):.2f}, {max(values):.2f})"


def print_ratios(rounds):
    """True when no judged ratio is above its bar."""
    good = True
    print(f"{'ours':<13}{'ms':>9}   {'PyTorch':<16}{'ms':>9}   ratio, median (least, most)")
    for name, other, judged in RATIOS:
        mine = statistics.median(ours[name] for ours, _ in rounds)
        row = f"{name:<13}{mine:>9.3f}   {other:<16}"
        if not all(torch for _, torch in rounds):
            print(f"{row}  no PyTorch here: not judged")
            continue
        theirs = statistics.median(torch[other] for _, torch in rounds)
        ratios = [ours[name] / torch[other] for ours, torch in rounds]
        print(f"{row}{theirs:>9.3f}  {spread(ratios)}{f' bar {BAR:.2f}' if judged else ''}")
        good = good and (not judged or statistics.median(ratios) <= BAR)
    return good


def print_chapters(rounds):
    print(f"\n{'step of':<20}{'ms':>9}   over {OURS}, median (least, most)")
    for name in sorted(runs()):
        times = [ours[name] for ours, _ in rounds]
        ratios = [ours[name] / ours[OURS] for ours, _ in rounds]
        print(f"{name:<20}{statistics.median(times):>9.3f}  {spread(ratios)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--python", default=sys.executable, help="that may have PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--elements", type=int, default=0, help="that Adam updates, 0: what fits")
    parser.add_argument("--no-judge", action="store_true", help="exit with 0 whatever the ratios")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    if not (arguments.build / "tests/benchmarks/gpu_adam_benchmark").exists():
        print("no GPU: gpu_adam_benchmark is not built, as it needs CUDA")
        return SKIPPED
    try:
        rounds, words, elements = measure(arguments)
    except Skip as reason:
        print(reason)
        return SKIPPED
    print(f"step: {arguments.layers} layers of {arguments.width}, {arguments.batch} samples, 1 rank"
          f"; adam: {elements} parameters\n{words}; {arguments.rounds} rounds\n")
    good = print_ratios(rounds)
    print_chapters(rounds)
    if arguments.no_judge:
        print("not judged: --no-judge")
        return 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
