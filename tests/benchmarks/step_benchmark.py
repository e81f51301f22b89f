#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The time of a training step, as ratios: the chapters over one another, and over PyTorch.

On the CPU: a stack of three Linear(2048) in fp32, 32 samples a rank, two ranks of one thread each.
On a GPU: twelve Linear(2048), 4096 samples, one rank, and Adam alone; the ratios over PyTorch's are
judged, at most 1.00. Programs and PyTorch (torch_times.py) run in turn, several rounds, and a ratio
is the median of the rounds' ratios: the machine's speed drifts, ratios taken side by side do not.
Where PyTorch is missing, or sees no GPU, nothing is compared with it.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SKIPPED = 77


@dataclass
class Device:
    """What is measured on it."""
    ranks: int
    rounds: int
    steps: int
    model: dict
    runs: dict  # a run's name: its program's own options; the name begins with the chapter's number
    ratios: list  # ours, what it is over, the ratio aimed at or None


CPU = Device(2, 5, 20, {"width": 2048, "layers": 3, "batch": 32},
             {"02": []} | {chapter: ["--dtype", "fp32"] for chapter in ("04", "05", "06")},
             [("04", "02", 1.00), ("05", "02", 1.00), ("06", "02", 1.15), ("02", "torch ddp", 0.45),
              ("04", "torch zero", 0.45)])
GPU = Device(1, 3, 60, {"width": 2048, "layers": 12, "batch": 4096},
             {"02 fp32": []}
             | {f"{chapter} {dtype}": ["--dtype", dtype]
                for dtype in ("bf16", "fp32") for chapter in ("03", "04", "05")}
             | {f"06 {dtype}, prefetch {ahead}": ["--dtype", dtype, "--prefetch", ahead]
                for dtype in ("bf16", "fp32") for ahead in "01"},
             [("03 bf16", "torch step", 1.00), ("03 bf16", "torch step, same work", None),
              ("adam fp32", "torch adam fp32", 1.00), ("adam bf16", "torch adam bf16", 1.00)])
GPU.ratios += [(run, "03 bf16", None) for run in sorted(GPU.runs)]


def start(*command):
    """Whether it could be measured, and what it printed: else the reason."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, SKIPPED):
        sys.exit(f"{done.stdout}{Path(command[0]).name} ended with {done.returncode}")
    return done.returncode == 0, done.stdout.strip()


def measure(arguments, device):
    """Milliseconds by name, a dict a round, and what PyTorch is or why it is not there. No round:
    there is no GPU, and why."""
    by_torch = Path(__file__).with_name("torch_times.py")
    same = ["--device", arguments.device]
    same += [word for name, value in device.model.items() for word in (f"--{name}", value)]
    elements = ["--elements", arguments.elements] if arguments.elements else []
    rounds, words, has_torch = [], "", True
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for _ in range(device.rounds):
            times = {}
            if device is GPU:
                ran, why = start(arguments.build / "tests/benchmarks/adam_benchmark", "--device",
                                 "cuda", "--no-judge", "--json", log, *elements)
                if not ran:
                    return [], why
                figures = json.loads(log.read_text())
                elements, times = ["--elements", figures["elements"]], figures["ms"]
            for run, own in device.runs.items():
                chapter = next(arguments.build.glob(f"{run[:2]}_*"))
                start(arguments.mpiexec, "-n", device.ranks, chapter / chapter.name, *same,
                      "--task", "mlp", "--steps", device.steps, *own, "--quiet", "--log", log)
                summary = json.loads(log.read_text().splitlines()[-1])["summary"]
                times[run] = summary["median_ms"]
            if has_torch:
                has_torch, words = start(sys.executable, by_torch, *same, *elements)
            if has_torch:
                torch = json.loads(words)
                words = torch["words"]
                times |= {f"torch {name}": ms for name, ms in torch["ms"].items()}
            rounds.append(times)
    return rounds, words + (f"; Adam of {elements[1]} parameters" if device is GPU else "")


def print_ratios(rounds, device):
    """True when no ratio is above what is aimed at."""
    word, good = "bar" if device is GPU else "aim", True
    print(f"{'ours':<20}{'ms':>9}   {'over':<22}{'ms':>9}   ratio, median (least, most)")
    for ours, other, aim in device.ratios:
        if other not in rounds[0]:
            continue
        mine, theirs = ([times[name] for times in rounds] for name in (ours, other))
        values = [a / b for a, b in zip(mine, theirs)]
        ratio = statistics.median(values)
        print(f"{ours:<20}{statistics.median(mine):>9.3f}   {other:<22}"
              f"{statistics.median(theirs):>9.3f}  {ratio:6.2f} ({min(values):.2f}, "
              f"{max(values):.2f}){f' {word} {aim:.2f}' if aim else ''}")
        good = good and (aim is None or ratio <= aim)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-judge", action="store_true", help="exit with 0 whatever the ratios")
    parser.add_argument("--elements", type=int, default=0, help="that Adam updates, 0: what fits")
    for name in ("rounds", "steps", "width", "layers", "batch"):
        parser.add_argument(f"--{name}", type=int, default=0)
    arguments = parser.parse_args()
    device = GPU if arguments.device == "cuda" else CPU
    device.rounds = arguments.rounds or device.rounds
    device.steps = arguments.steps or device.steps
    device.model = {name: getattr(arguments, name) or usual for name, usual in device.model.items()}
    rounds, words = measure(arguments, device)
    if not rounds:
        print(words)
        return SKIPPED
    print("step: {layers} layers of {width}, {batch} samples a rank".format(**device.model)
          + f"; {device.ranks} ranks, {len(rounds)} rounds\n{words}\n")
    # On the CPU what is over the aim is no failure.
    return 0 if print_ratios(rounds, device) or arguments.no_judge or device is CPU else 1


if __name__ == "__main__":
    sys.exit(main())
