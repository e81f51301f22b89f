#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a chapter's model in PyTorch too, from the same file of weights, and compares the losses.

What is not asked here is handed on to the chapter; its log says what was done, and its samples are
made by numpy_model.py. All is in fp32, and the two add in different orders. A sum of n terms is
off by about sqrt(n) roundings of 2^-24, weights after s steps by sqrt(s) such sums: sqrt(n s) 2^-24
bounds a loss's relative difference, while nothing magnifies roundings. The last column shows when
something does: how far PyTorch's loss is from its own in float64. Exit code 1: beyond the bound.
"""
import argparse
import math
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from runs import CHAPTERS, Failure, Programs, finish

try:
    import safetensors.torch
    import torch
    import numpy_model
    from numpy_model import Case, samples_of_step
except ImportError as missing:
    print(f"in_pytorch.py: {missing} (pip install numpy safetensors torch)", file=sys.stderr)
    sys.exit(6)
nn = torch.nn


class Network(nn.Module):
    """Its names are those in the file: layers.0.weight, layers.0.bias, ..."""

    def __init__(self, case):
        super().__init__()
        self.bends = case.task != "toy"  # which has neither biases nor ReLU
        self.layers = nn.ModuleList(nn.Linear(*shape, bias=self.bends) for shape in case.shapes())

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = nn.functional.relu(layer(x)) if self.bends else layer(x)
        return self.layers[-1](x)


class Decoder(nn.Module):
    """transformers' llama, as the config.json beside its weights says."""

    def __init__(self, weights):
        super().__init__()
        import transformers
        transformers.utils.logging.disable_progress_bar()
        self.llama = transformers.LlamaForCausalLM.from_pretrained(weights.parent,
                                                                   dtype=torch.float32)

    def forward(self, x):
        return self.llama(x.long(), use_cache=False).logits.flatten(0, 1)


def train(case, weights, steps, dtype):
    """The loss of each step."""
    text = case.task in ("text", "llama")
    loss_of = nn.functional.cross_entropy if text else nn.functional.mse_loss
    if case.task == "llama":
        network = Decoder(weights)
    else:
        network = Network(case)
        safetensors.torch.load_model(network, weights)
    params = list(network.to(dtype).parameters())
    adam = (torch.optim.AdamW if case.weight_decay else torch.optim.Adam)(
        params, case.lr, (case.beta1, case.beta2), case.eps, case.weight_decay)
    for step in range(steps):
        x, target = map(torch.from_numpy, samples_of_step(case, step))
        loss = loss_of(network(x.to(dtype)), target.flatten().long() if text else target.to(dtype))
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
    parser.add_argument("--init", type=Path, help="weights; else those with which PyTorch begins")
    parser.add_argument("--task", default="text")
    for name, default in (("width", Case.width), ("layers", None), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked, others = parser.parse_known_args()
    case = Case(asked.task, asked.width, asked.layers or Case.layers)
    llama = asked.task == "llama"
    if llama and not (asked.init and find_spec("transformers")):
        raise Failure("--task llama needs transformers, and --init with a checkpoint's weights", 2)
    if llama and asked.layers == Case.layers:  # which is not its default
        others += ["--layers", asked.layers]
    with tempfile.TemporaryDirectory() as folder:
        weights = asked.init or Path(folder, "weights.safetensors")
        if not asked.init:
            torch.manual_seed(1)
            safetensors.torch.save_file(Network(case).state_dict(), weights)
        words = [*case.options(), "--steps", asked.steps, "--init", weights, *others]
        run = Programs(asked.build, asked.mpiexec, Path(folder)).prepare(
            "log", asked.chapter, asked.ranks, *words, dtype="fp32")
        run.execute()
        for name in vars(case):
            setattr(case, name, run.options.get(name.replace("_", "-"), run.ranks))
        numpy_model.CORPUS = Path(run.options.get("data") or numpy_model.CORPUS)
        theirs, exact = (list(train(case, weights, asked.steps, dtype))
                         for dtype in (torch.float32, torch.float64))
    rows = run.ranks * case.batch * case.accumulate * (case.sequence if llama else 1)
    terms = max(rows, *map(max, case.shapes()))
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
