#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a chapter's model in PyTorch too, from the same file of weights, and compares the losses.

What is not asked here is handed on to the chapter; its log says what was done, and its samples are
made by numpy_model.py. Without --init the weights are those with which PyTorch begins. All is in
fp32, and the two add in different orders. A sum of n terms is off by about sqrt(n) roundings of
2^-24, weights after s steps by sqrt(s) such sums: sqrt(n s) 2^-24 bounds a loss's relative
difference, while nothing magnifies roundings. The last column shows when something does: how far
PyTorch's loss is from its own in float64. Exit code 1: beyond the bound.
"""
import argparse
import dataclasses
import math
import sys
import tempfile
from pathlib import Path

from runs import CHAPTERS, Failure, Programs, finish

try:
    import numpy_model
    import safetensors.torch
    import torch
    from numpy_model import Case, samples_of_step
except ImportError as missing:
    print(f"in_pytorch.py: {missing} (pip install numpy safetensors torch)", file=sys.stderr)
    sys.exit(6)
nn = torch.nn


class Network(nn.Module):
    """Its names are those in a checkpoint: layers.0.weight, layers.0.bias, ..."""

    def __init__(self, case):
        super().__init__()
        self.bends = case.task != "toy"  # which has neither biases nor ReLU
        self.layers = nn.ModuleList(nn.Linear(*shape, bias=self.bends) for shape in case.shapes())

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = nn.functional.relu(layer(x)) if self.bends else layer(x)
        return self.layers[-1](x)


def llama(case):
    """transformers'."""
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=case.vocab, hidden_size=case.width, num_hidden_layers=case.layers,
        num_attention_heads=case.heads, num_key_value_heads=case.kv_heads,
        intermediate_size=case.hidden, max_position_embeddings=case.sequence))


def loss_of(case, network, step):
    """Of a step's samples; the network says in which dtype."""
    x, target = map(torch.from_numpy, samples_of_step(case, step))
    if case.task == "llama":
        y = network(x.long(), use_cache=False).logits.flatten(0, 1)
    else:
        y = network(x.to(next(network.parameters()).dtype))
    if case.task in ("text", "llama"):
        return nn.functional.cross_entropy(y, target.flatten().long())
    return nn.functional.mse_loss(y, target.to(y.dtype))


def network_of(case):
    return llama(case) if case.task == "llama" else Network(case)


def train(case, weights, steps, dtype):
    """The loss of each step."""
    network = network_of(case)
    network.load_state_dict(safetensors.torch.load_file(weights))
    params = list(network.to(dtype).parameters())
    adam = (torch.optim.AdamW if case.weight_decay else torch.optim.Adam)(
        params, case.lr, (case.beta1, case.beta2), case.eps, case.weight_decay)
    for step in range(steps):
        loss = loss_of(case, network, step)
        adam.zero_grad()
        loss.backward()
        norm = torch.cat([param.grad.flatten() for param in params]).norm()
        for param in params if 0 < case.clip < norm else []:
            param.grad *= case.clip / norm
        adam.step()
        yield loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chapter", choices=CHAPTERS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--build", type=Path, default=Path("build"), help="where the programs are")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    parser.add_argument("--steps", type=int, default=20)
    asked, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(asked.build, asked.mpiexec, Path(folder))

        def run_of(steps):
            run = programs.prepare("log", asked.chapter, asked.ranks, "--steps", steps, *others,
                                   dtype="fp32")
            run.execute()
            return run

        run = run_of(1)
        case = Case(**{field.name: run.options.get(field.name.replace("_", "-"), run.ranks)
                       for field in dataclasses.fields(Case)})
        numpy_model.CORPUS = Path(run.options.get("data") or numpy_model.CORPUS)
        if not (weights := run.options["init"]):
            weights = Path(folder, "weights.safetensors")
            others += ["--init", weights]
            torch.manual_seed(1)
            safetensors.torch.save_file(network_of(case).state_dict(), weights)
        run = run_of(asked.steps)
        theirs, exact = (list(train(case, weights, asked.steps, dtype))
                         for dtype in (torch.float32, torch.float64))
    rows = case.ranks * case.batch * case.accumulate
    terms = max(rows * (case.sequence if case.task == "llama" else 1), *map(max, case.shapes()))
    print(f"{run.shown}\n\n step{asked.chapter:>21}     PyTorch  difference     bound  to float64")
    largest, beyond = (0, 0), 0
    for step, (ours, loss, true) in enumerate(zip(run.losses, theirs, exact), 1):
        difference, bound = abs(ours / loss - 1), math.sqrt(terms * step) * 2**-24
        largest = max(largest, (difference, step))
        beyond = beyond or step * (difference > bound)
        if step == 1 or step % -(-asked.steps // 10) == 0:
            print(f"{step:>5}{ours:>21.7f}{loss:>12.7f}{difference:>12.1e}{bound:>10.1e}"
                  f"{abs(loss / true - 1):>12.1e}")
    print(f"\nthe largest relative difference is {largest[0]:.1e}, in step {largest[1]}")
    if beyond:
        raise Failure(f"step {beyond} differs by more than its bound")


if __name__ == "__main__":
    finish(main, "in_pytorch.py: ")
