#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch_times.py JSON: prints PyTorch's times for step_benchmark.py, as JSON: medians, in ms.

On the CPU it measures ranks of one thread each, over gloo: a step with DistributedDataParallel
("ddp"), with DDP and ZeroRedundancyOptimizer ("zero"), and with FSDP2, layer by layer ("fsdp");
Adam is fused. In bf16 products and messages are in bf16, Adam and the weights that it updates in
fp32, as in the programs: by FSDP2's MixedPrecisionPolicy, else by MasterAdam on a network in bf16,
because the shorter torch.autocast sends fp32. Only "same work" has the norm of the gradients, which
is part of every step of the programs. A PyTorch older than FSDP2 (2.6) is not compared.

On one GPU, in bf16, it measures eager steps with MasterAdam ("step"), the same with the norm ("same
work") or through torch.compile ("compiled"); FSDP2 ("fsdp"), also with CPUOffloadPolicy
("offload"). On one rank FSDP2 sends nothing, and copies parameters up on the stream that computes.
The host waits for the GPU once a step, where the programs do: for the loss, between backward and
update. Times lie between CUDA events; a step lasts from its beginning to the next one's. A llama is
a transformers model, sharded by blocks under FSDP2; the faster of eager and sdpa attention counts.

Samples are random and stay the same; the programs make theirs, or read them, anew in every step.
"""
import json
import math
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from types import SimpleNamespace

SKIPPED = 77
STEPS = {"cpu": (3, 12), "cuda": (10, 30)}  # (steps that warm up, steps that are timed)

try:
    import torch
    from torch import distributed, multiprocessing, nn
    from torch.distributed import fsdp
    from torch.distributed.optim import ZeroRedundancyOptimizer
    _ = fsdp.fully_shard
except (ImportError, AttributeError) as missing:
    print(f"no comparison with PyTorch, 2.6 or later: {missing}")
    sys.exit(SKIPPED)
ADAM = {"lr": 2e-3, "fused": True}


def stack_of_layers(model, outputs):
    modules = [kind for _ in range(model.layers - 1)
               for kind in (nn.Linear(model.width, model.width), nn.ReLU())]
    return nn.Sequential(*modules, nn.Linear(model.width, outputs))


class Decoder(nn.Module):
    """A llama of transformers. attention: a kind of attention, in transformers' words."""

    def __init__(self, model, attention):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM
        self.llama = LlamaForCausalLM(LlamaConfig(
            vocab_size=256, hidden_size=model.width, num_hidden_layers=model.layers,
            num_attention_heads=model.heads, num_key_value_heads=getattr(model, "kv-heads"),
            intermediate_size=model.hidden, attn_implementation=attention))

    def forward(self, x):
        return self.llama(x, use_cache=False).logits.flatten(0, 1)


class MasterAdam(torch.optim.Optimizer):
    """Adam for bf16 parameters, which keeps fp32 master weights of them."""

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


def prepare(kind, network, dtype, device):
    """Returns (the network, wrapped for its ranks, its optimizer)."""
    if kind in ("fsdp", "offload"):
        mesh = distributed.init_device_mesh(device, (distributed.get_world_size(),))
        options = {"mesh": mesh, "mp_policy": fsdp.MixedPrecisionPolicy(dtype, dtype)}
        if kind == "offload":
            options["offload_policy"] = fsdp.CPUOffloadPolicy()
        llama = getattr(network, "llama", None)
        for part in [*llama.model.layers, llama] if llama else [*network[::2], network]:  # no ReLU
            fsdp.fully_shard(part, **options)
        return network, torch.optim.Adam(network.parameters(), **ADAM)
    network = network.to(dtype)
    if kind == "compiled":
        network = torch.compile(network)
    if kind in ("ddp", "zero"):
        network = nn.parallel.DistributedDataParallel(network)
    adam = torch.optim.Adam if dtype == torch.float32 else MasterAdam
    if kind == "zero":
        return network, ZeroRedundancyOptimizer(network.parameters(), adam, **ADAM)
    return network, adam(network.parameters(), **ADAM)


def mark(device):
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def milliseconds(begin, end):
    return (end - begin) * 1000 if isinstance(begin, float) else begin.elapsed_time(end)


def step_time(kind, model, attention=None):
    """Returns this rank's ms of a step. All ranks call it together."""
    if model.task == "llama" and not attention:
        return min(step_time(kind, model, each) for each in ("eager", "sdpa"))
    text, width, on = model.task in ("text", "llama"), model.width, {"device": model.device}
    dtype = torch.bfloat16 if model.dtype == "bf16" else torch.float32
    outputs = 256 if text else width
    network = Decoder(model, attention) if attention else stack_of_layers(model, outputs)
    network, optimizer = prepare(kind, network.to(model.device), dtype, model.device)
    inputs = torch.rand(model.batch, width, dtype=dtype, **on)
    targets = (torch.randint(outputs, (model.batch,), **on) if text
               else torch.rand(model.batch, width, **on))
    if attention:
        inputs, targets = torch.randint(256, (2, model.batch, model.sequence), **on)
        targets = targets.flatten()
    loss_of = nn.functional.cross_entropy if text else nn.functional.mse_loss
    warm_up, repeats = STEPS[model.device]
    marks = []
    for _ in range(warm_up + repeats):
        marks.append(mark(model.device))
        fetched = [loss_of(network(inputs).float(), targets)]
        fetched[0].backward()
        if kind == "same work":
            fetched.append(nn.utils.get_total_norm([p.grad for p in network.parameters()]).float())
        torch.stack(fetched).tolist()
        optimizer.step()
        optimizer.zero_grad()
    marks.append(mark(model.device))
    if model.device == "cuda":
        torch.cuda.synchronize()
    return statistics.median([*map(milliseconds, marks, marks[1:])][warm_up:])


def step_time_or_nan(kind, model):
    try:
        return step_time(kind, model)
    except RuntimeError as missing:  # such as Triton, or the C compiler that Triton calls
        if kind != "compiled":
            raise
        print(missing, file=sys.stderr)
        return math.nan


def worker(rank, model, store, results):
    if model.device == "cpu":  # one core per rank; beside a GPU "offload" has all, as 07's Adam has
        torch.set_num_threads(1)
    distributed.init_process_group("nccl" if model.device == "cuda" else "gloo",
                                   f"file://{store}/ranks", rank=rank, world_size=model.ranks)
    results.put([step_time_or_nan(kind, model) for kind in model.kinds])
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    """Prints the slowest rank's time for each kind of step."""
    model = SimpleNamespace(**json.loads(sys.argv[1]))
    words = f"PyTorch {torch.__version__}"
    if model.task == "llama" and not find_spec("transformers"):
        print("no comparison with transformers, which is missing")
        return SKIPPED
    if model.device == "cuda":
        if not torch.cuda.is_available():
            print(words, "sees no GPU")
            return SKIPPED
        words += f" on {torch.cuda.get_device_name()}"
    # Forked ranks need not import PyTorch again. But after CUDA has begun, a fork cannot use it.
    method = "fork" if model.device == "cpu" else "spawn"
    results = multiprocessing.get_context(method).SimpleQueue()
    with tempfile.TemporaryDirectory() as store:
        multiprocessing.start_processes(worker, (model, store, results), nprocs=model.ranks,
                                        start_method=method)
    times = map(max, zip(*(results.get() for _ in range(model.ranks))))
    print(json.dumps({"words": words, "ms": dict(zip(model.kinds, times))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
