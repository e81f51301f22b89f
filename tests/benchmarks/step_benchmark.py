#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The time of a training step, as ratios: the chapters over chapter 02, and over PyTorch.

The model is a stack of three Linear(2048) in fp32, 32 samples a rank, two ranks, one thread a rank.
Programs run in turn, several rounds, and a ratio is the median of the rounds' ratios: the machine's
speed drifts, ratios taken side by side do not. PyTorch (Debian's python3-torch) is compared where
it is installed: 02 with DistributedDataParallel, 04 with that and ZeroRedundancyOptimizer, on gloo.
"""
import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = ["--task", "mlp", "--layers", "3", "--width", "2048", "--batch", "32"]
STEPS = 20
PORT = 29871
# What is compared with what, and the ratio aimed at.
RATIOS = [("04_zero1", "02_distributed_adam", 1.00), ("05_zero2", "02_distributed_adam", 1.00),
          ("06_zero3", "02_distributed_adam", 1.15), ("02_distributed_adam", "torch ddp", 0.45),
          ("04_zero1", "torch zero", 0.45)]


def chapter_ms(build, mpiexec, chapter):
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        dtype = [] if chapter.startswith("02") else ["--dtype", "fp32"]
        subprocess.run([mpiexec, "-n", "2", build / chapter / chapter, *MODEL, "--steps", str(STEPS), *dtype,
                        "--device", "cpu", "--quiet", "--log", log], check=True)
        return json.loads(log.read_text().splitlines()[-1])["summary"]["median_ms"]


def torch_worker(rank, kind, results):
    """One rank of PyTorch's run; puts the median of its step times into results."""
    import time
    import torch
    from torch import nn
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=2)
    layers = [nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
              nn.Linear(2048, 2048)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    if kind == "torch zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=2e-3)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    inputs, targets = torch.rand(32, 2048), torch.rand(32, 2048)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        times.append((time.perf_counter() - start) * 1000)
    results.put(statistics.median(times[3:]))
    torch.distributed.destroy_process_group()


def torch_ms(kind):
    import torch.multiprocessing as processes
    context = processes.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=torch_worker, args=(r, kind, results)) for r in range(2)]
    for rank in ranks:
        rank.start()
    slowest = max(results.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join()
    return slowest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("python3-torch is not installed: no comparison with PyTorch")
    ratios = [row for row in RATIOS if has_torch or not row[1].startswith("torch")]
    names = {name for row in ratios for name in row[:2]}
    rounds = []
    for _ in range(arguments.rounds):
        rounds.append({name: torch_ms(name) if name.startswith("torch")
                       else chapter_ms(arguments.build, arguments.mpiexec, name)
                       for name in sorted(names)})
    print(f"step time as a ratio, median of {arguments.rounds} rounds (smallest, largest)")
    for ours, other, aim in ratios:
        values = [times[ours] / times[other] for times in rounds]
        print(f"  {ours:<20} / {other:<20} {statistics.median(values):.2f}  "
              f"({min(values):.2f}, {max(values):.2f})   aim {aim:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
