#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's times on one GPU, as JSON: what gpu_step_benchmark.py compares the programs with.

adam: fused AdamW over one fp32 tensor ("adam fp32"), and, as PyTorch has no fused update of 16-bit
parameters with fp32 master weights, the same between two casts, the gradients' to fp32 and the
weights' back to bf16 ("adam bf16").

step: a training step of a stack of Linear layers in bf16 with fp32 master weights, eager. The host
waits for the GPU once a step, where the programs do: for the loss, between backward and update. The
first time is of that; "step, same work" also forms the norm of the gradients, as every step of ours
does. Samples are random and stay the same; the programs make theirs anew in every step.

Times are medians between CUDA events; a step's is that from its beginning to the next one's.
"""
import argparse
import json
import statistics
import sys

WARM_UP = 10


def median_ms(torch, work, repeats):
    """Median time from one start of `work` to the next one's."""
    marks = []
    for _ in range(WARM_UP + repeats + 1):
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        work()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    return statistics.median(times[WARM_UP:])


def fused_adam(torch, weights):
    return torch.optim.AdamW(weights, lr=2e-3, weight_decay=0.0, fused=True)


def adam_times(torch, device, elements, repeats):
    weights = torch.rand(elements, device=device)
    weights.grad = torch.rand(elements, device=device).sub_(0.5).mul_(1e-2)
    optimizer = fused_adam(torch, [weights])
    times = {"adam fp32": median_ms(torch, optimizer.step, repeats)}
    grads = weights.grad.to(torch.bfloat16)
    params = weights.to(torch.bfloat16)

    def mixed():
        weights.grad.copy_(grads)
        optimizer.step()
        params.copy_(weights)
    with torch.no_grad():
        times["adam bf16"] = median_ms(torch, mixed, repeats)
    return times


def step_time(torch, device, model_size, repeats, with_norm):
    width, layers, batch = model_size
    modules = []
    for layer in range(layers):
        modules += [torch.nn.Linear(width, width)] + [torch.nn.ReLU()] * (layer + 1 < layers)
    model = torch.nn.Sequential(*modules).to(device=device, dtype=torch.bfloat16)
    params = list(model.parameters())
    masters = [param.detach().float() for param in params]
    for master in masters:
        master.grad = torch.empty_like(master)
    optimizer = fused_adam(torch, masters)
    inputs = torch.rand(batch, width, device=device, dtype=torch.bfloat16)
    targets = torch.rand(batch, width, device=device)

    def step():
        loss = torch.nn.functional.mse_loss(model(inputs).float(), targets)
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
            model.zero_grad(set_to_none=True)
    return median_ms(torch, step, repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=256 << 20, help="that Adam updates")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no PyTorch here")
        return 77
    if not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} sees no GPU")
        return 77
    if not hasattr(torch, "_foreach_copy_"):
        print(f"PyTorch {torch.__version__} is too old: 2.1 is needed")
        return 77
    model_size = arguments.width, arguments.layers, arguments.batch
    times = {}
    for name, with_norm in [("step", False), ("step, same work", True)]:
        times[name] = step_time(torch, "cuda", model_size, arguments.repeats, with_norm)
    times |= adam_times(torch, "cuda", arguments.elements, arguments.repeats)
    print(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
                      "elements": arguments.elements, "ms": times}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
