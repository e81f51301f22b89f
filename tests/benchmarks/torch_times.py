#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch_times.py JSON: PyTorch's times, as JSON, for step_benchmark.py: medians, in ms.

On the CPU, over gloo, ranks of one thread each: a step with DistributedDataParallel ("ddp"), with
that and ZeroRedundancyOptimizer ("zero"), and with FSDP2, layer by layer ("fsdp"); Adam is fused.
In bf16 products and what is sent are in bf16, Adam and the weights that it updates in fp32, as in
the programs: by FSDP2's MixedPrecisionPolicy, else by MasterAdam on a network in bf16, because the
shorter torch.autocast sends fp32. The norm of the gradients, part of every step of ours, is left
out. A PyTorch older than FSDP2 (2.6) is not compared.

On one GPU: an eager step in bf16 with MasterAdam. The host waits for the GPU once a step, where the
programs do: for the loss, between backward and update. Times lie between CUDA events; a step's is
that from its beginning to the next one's.

Samples are random and stay the same; the programs make theirs, or read them, anew in every step.
"""
import json
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace

SKIPPED = 77
WARM_UP, REPEATS = 10, 50  # on a GPU
CPU_WARM_UP, CPU_REPEATS = 3, 12

try:
    import torch
    from torch import distributed, multiprocessing, nn
    from torch.distributed import fsdp
    from torch.distributed.optim import ZeroRedundancyOptimizer
    fsdp.fully_shard
except (ImportError, AttributeError) as missing:
    print(f"no comparison with PyTorch, 2.6 or later: {missing}")
    sys.exit(SKIPPED)
ADAM = {"lr": 2e-3, "fused": True}


def stack_of_layers(model, outputs):
    modules = [kind for _ in range(model.layers - 1)
               for kind in (nn.Linear(model.width, model.width), nn.ReLU())]
    return nn.Sequential(*modules, nn.Linear(model.width, outputs))


class MasterAdam(torch.optim.Optimizer):
    """Adam of bf16 parameters, with fp32 masters of those that it is given."""

    def __init__(self, params, **options):
        super().__init__(params, options)
        self.params = [param for group in self.param_groups for param in group["params"]]
        self.masters = [param.detach().float() for param in self.params]
        for master in self.masters:
            master.grad = torch.empty_like(master)
        self.adam = torch.optim.Adam(self.masters, **options)

    @torch.no_grad()
    def step(self, closure=None):
        grads = [param.grad for param in self.params]
        torch._foreach_copy_([master.grad for master in self.masters], grads)
        self.adam.step(closure)
        torch._foreach_copy_(self.params, self.masters)


def distribute(kind, network, dtype):
    """The network as the ranks share it, and its optimizer."""
    if kind == "fsdp":
        mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
        policy = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
        for part in [*network[::2], network]:  # every other one is a ReLU
            fsdp.fully_shard(part, mesh=mesh, mp_policy=policy)
        return network, torch.optim.Adam(network.parameters(), **ADAM)
    network = nn.parallel.DistributedDataParallel(network.to(dtype))
    adam = torch.optim.Adam if dtype == torch.float32 else MasterAdam
    if kind == "zero":
        return network, ZeroRedundancyOptimizer(network.parameters(), adam, **ADAM)
    return network, adam(network.parameters(), **ADAM)


def cpu_step_time(kind, model):
    """Called by all ranks together; this one's."""
    text, width = model.task == "text", model.width
    dtype = torch.bfloat16 if model.dtype == "bf16" else torch.float32
    outputs = 256 if text else width
    network, optimizer = distribute(kind, stack_of_layers(model, outputs), dtype)
    inputs = torch.rand(model.batch, width, dtype=dtype)
    targets = torch.randint(outputs, (model.batch,)) if text else torch.rand(model.batch, width)
    loss = nn.functional.cross_entropy if text else nn.functional.mse_loss
    times = []
    for _ in range(CPU_WARM_UP + CPU_REPEATS):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(network(inputs).float(), targets).backward()
        optimizer.step()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[CPU_WARM_UP:])


def worker(rank, kinds, model, store, results):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{store}/ranks", rank=rank,
                                   world_size=model.ranks)
    results.put([cpu_step_time(kind, model) for kind in kinds])
    distributed.barrier()
    distributed.destroy_process_group()


def cpu_times(model):
    """The slowest rank's, by kind."""
    kinds = ["ddp", "zero", "fsdp"]
    results = multiprocessing.get_context("fork").SimpleQueue()
    with tempfile.TemporaryDirectory() as store:  # forked ranks need not import PyTorch again
        multiprocessing.start_processes(worker, (kinds, model, store, results),
                                        nprocs=model.ranks, start_method="fork")
    return dict(zip(kinds, map(max, zip(*(results.get() for _ in range(model.ranks))))))


def gpu_step_time(model):
    network = stack_of_layers(model, model.width).to(device="cuda", dtype=torch.bfloat16)
    optimizer = MasterAdam(network.parameters(), **ADAM)
    inputs = torch.rand(model.batch, model.width, device="cuda", dtype=torch.bfloat16)
    targets = torch.rand(model.batch, model.width, device="cuda")
    marks = []
    for _ in range(WARM_UP + REPEATS + 1):
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        loss = nn.functional.mse_loss(network(inputs).float(), targets)
        loss.backward()
        loss.item()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return statistics.median([a.elapsed_time(b) for a, b in zip(marks, marks[1:])][WARM_UP:])


def main():
    model = SimpleNamespace(**json.loads(sys.argv[1]))
    words = f"PyTorch {torch.__version__}"
    if model.device == "cpu":
        times = cpu_times(model)
    elif not torch.cuda.is_available():
        print(words, "sees no GPU")
        return SKIPPED
    else:
        words += f" on {torch.cuda.get_device_name()}"
        times = {"step": gpu_step_time(model)}
    print(json.dumps({"words": words, "ms": times}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
