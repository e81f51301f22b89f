#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's times, as JSON: what step_benchmark.py compares the programs with. Medians, in ms.

On the CPU, two ranks of one thread each, gloo, fp32: a step with DistributedDataParallel ("ddp"),
and with that and ZeroRedundancyOptimizer ("zero"). On one GPU: fused AdamW over one fp32 tensor
("adam fp32"), and, as PyTorch has no fused update of 16-bit parameters with fp32 master weights,
the same between two casts, the gradients' to fp32 and the weights' back to bf16 ("adam bf16"). Then
an eager step in bf16 with fp32 master weights. The host waits for the GPU once a step, where the
programs do: for the loss, between backward and update ("step"); "step, same work" also forms the
norm of the gradients, as every step of ours does. Times lie between CUDA events; a step's is that
from its beginning to the next one's. Samples are random and stay the same; the programs make theirs
anew in every step.
"""
import argparse
import json
import statistics
import sys
import time

SKIPPED = 77
WARM_UP, REPEATS = 10, 50  # on a GPU
CPU_STEPS, CPU_WARM_UP = 20, 3
PORT = 29871

try:
    import torch
except ImportError as missing:
    print(f"no comparison with PyTorch: {missing}")
    sys.exit(SKIPPED)


def stack_of_layers(width, layers):
    modules = [kind for _ in range(layers)
               for kind in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*modules[:-1])


def worker(rank, kind, width, layers, batch, results):
    """One rank of a run; puts the median of its step times into results."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=2)
    network = torch.nn.parallel.DistributedDataParallel(stack_of_layers(width, layers))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.Adam, lr=2e-3)
    inputs, targets = torch.rand(batch, width), torch.rand(batch, width)
    times = []
    for _ in range(CPU_STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(network(inputs), targets).backward()
        optimizer.step()
        times.append((time.perf_counter() - start) * 1000)
    results.put(statistics.median(times[CPU_WARM_UP:]))
    torch.distributed.destroy_process_group()


def cpu_time(kind, model):
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(worker, (kind, *model, results), nprocs=2)
    return max(results.get(), results.get())  # the slowest rank's


def median_ms(work):
    """Median time from one start of `work` to the next one's."""
    marks = []
    for _ in range(WARM_UP + REPEATS + 1):
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        work()
    torch.cuda.synchronize()
    return statistics.median([a.elapsed_time(b) for a, b in zip(marks, marks[1:])][WARM_UP:])


def fused_adam(weights):
    return torch.optim.AdamW(weights, lr=2e-3, weight_decay=0.0, fused=True)


def adam_times(elements):
    weights = torch.rand(elements, device="cuda")
    weights.grad = torch.rand(elements, device="cuda").sub_(0.5).mul_(1e-2)
    optimizer = fused_adam([weights])
    grads, params = weights.grad.to(torch.bfloat16), weights.to(torch.bfloat16)

    def mixed():
        weights.grad.copy_(grads)
        optimizer.step()
        params.copy_(weights)
    with torch.no_grad():
        return {"adam fp32": median_ms(optimizer.step), "adam bf16": median_ms(mixed)}


def gpu_step_time(width, layers, batch, with_norm):
    network = stack_of_layers(width, layers).to(device="cuda", dtype=torch.bfloat16)
    params = list(network.parameters())
    masters = [param.detach().float() for param in params]
    for master in masters:
        master.grad = torch.empty_like(master)
    optimizer = fused_adam(masters)
    inputs = torch.rand(batch, width, device="cuda", dtype=torch.bfloat16)
    targets = torch.rand(batch, width, device="cuda")

    def step():
        loss = torch.nn.functional.mse_loss(network(inputs).float(), targets)
        loss.backward()
        with torch.no_grad():
            grads = [param.grad for param in params]
            if with_norm:
                norms = torch.stack(torch._foreach_norm(grads)).float()
                torch.stack([loss, norms.norm()]).tolist()
            else:
                loss.item()
            torch._foreach_copy_([master.grad for master in masters], grads)
            optimizer.step()
            torch._foreach_copy_(params, masters)
            network.zero_grad(set_to_none=True)
    return median_ms(step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--elements", type=int, default=256 << 20, help="that Adam updates")
    for name in ("width", "layers", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    model = arguments.width, arguments.layers, arguments.batch
    words = f"PyTorch {torch.__version__}"
    if arguments.device == "cpu":
        times = {kind: cpu_time(kind, model) for kind in ("ddp", "zero")}
    elif not (seen := torch.cuda.is_available()) or not hasattr(torch, "_foreach_copy_"):
        print(words, "is too old: 2.1 is needed" if seen else "sees no GPU")
        return SKIPPED
    else:
        words += f" on {torch.cuda.get_device_name()}"
        times = {"step": gpu_step_time(*model, with_norm=False),
                 "step, same work": gpu_step_time(*model, with_norm=True),
                 **adam_times(arguments.elements)}
    print(json.dumps({"words": words, "ms": times}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
