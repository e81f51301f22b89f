#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a chapter's model in PyTorch too, from the same file of weights, and compares the losses.
Options that this script does not know go to the chapter, from whose log it reads all options.
numpy_model.py makes the same samples. Without --init PyTorch's initial weights are used. All is in
fp32, but the chapter and PyTorch add in different orders: a sum of n terms is off by about sqrt(n)
roundings of 2^-24, and weights after s steps by sqrt(s) such sums. So sqrt(n s) 2^-24 bounds a
loss's relative difference, unless something magnifies roundings. The last column, PyTorch's loss
beside its own in float64, shows whether something does. Exit code 1: a loss is beyond the bound.

With `llama` for a chapter it compares the llama with transformers' LlamaForCausalLM: files, losses,
gradients. transformers opens 06's checkpoint and saves the model, and 06 reads that file by --init.
After a step of 01 with --beta1 0, exp_avg in its checkpoint is the gradient. Exit code 1: a
difference is beyond its limit. Exit code 77, in both uses: a package of Python is missing."""
import argparse
import logging
import math
import sys
import tempfile
import warnings
from dataclasses import fields, replace
from pathlib import Path

from runs import CHAPTERS, Failure, Programs, finish

try:
    import numpy_model
    import safetensors.torch
    import torch
    import transformers
    from numpy_model import Case, samples_of_step
    from torch import nn
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as missing:
    print(f"in_pytorch.py: {missing} (pip install numpy safetensors torch transformers)")
    sys.exit(77)

LLAMAS = [Case("llama", 64, 2, batch=4, heads=4, kv_heads=2, hidden=176),
          Case("llama", 96, 3, batch=4, heads=6, kv_heads=2, hidden=100, sequence=40),
          Case("llama", 40, 1, batch=4, heads=2, kv_heads=1, hidden=24, sequence=17)]


class Network(nn.Module):
    """An MLP whose tensors have the names in a checkpoint: layers.0.weight, layers.0.bias, ..."""

    def __init__(self, case):
        super().__init__()
        self.bends = case.task != "toy"  # a toy's layers have neither biases nor ReLU
        self.layers = nn.ModuleList(nn.Linear(*shape, bias=self.bends) for shape in case.shapes())

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = nn.functional.relu(layer(x)) if self.bends else layer(x)
        return self.layers[-1](x)


def network_of(case):
    if case.task != "llama":
        return Network(case)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=case.vocab, hidden_size=case.width, num_hidden_layers=case.layers,
        num_attention_heads=case.heads, num_key_value_heads=case.kv_heads,
        intermediate_size=case.hidden, max_position_embeddings=case.sequence))


def loss_of(case, network, step):
    """Returns the loss of a step's samples, in the dtype of the network."""
    x, target = map(torch.from_numpy, samples_of_step(case, step))
    if case.task == "llama":
        y = network(x.long(), use_cache=False).logits.flatten(0, 1)
    else:
        y = network(x.to(next(network.parameters()).dtype))
    if case.task in ("text", "llama"):
        return nn.functional.cross_entropy(y, target.flatten().long())
    return nn.functional.mse_loss(y, target.to(y.dtype))


def train(case, weights, steps, dtype):
    """Trains with Adam from the safetensors file `weights`; yields each step's loss."""
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
        if 0 < case.clip < norm:
            for param in params:
                param.grad *= case.clip / norm
        adam.step()
        yield loss.item()


def compare_losses(run, folder, asked, others):
    """Prints the losses of a chapter's run beside PyTorch's; raises a Failure if one is beyond its
    bound. run(chapter, ranks, *options) gives a run. asked: our options; others: the chapter's."""
    first = run(asked.chapter, asked.ranks, "--steps", 1, *others)
    case = Case(**{field.name: first.options.get(field.name.replace("_", "-"), first.ranks)
                   for field in fields(Case)})  # only `ranks` is no option
    numpy_model.CORPUS = Path(first.options.get("data") or numpy_model.CORPUS)
    if not (weights := first.options["init"]):
        weights = folder / "weights.safetensors"
        others += ["--init", weights]
        torch.manual_seed(1)
        safetensors.torch.save_file(network_of(case).state_dict(), weights)
    ours = run(asked.chapter, asked.ranks, "--steps", asked.steps, *others)
    theirs, exact = (list(train(case, weights, asked.steps, dtype))
                     for dtype in (torch.float32, torch.float64))
    rows = case.ranks * case.batch * case.accumulate
    terms = max(rows * (case.sequence if case.task == "llama" else 1), *map(max, case.shapes()))
    print(f"{ours.shown}\n\n step{asked.chapter:>21}     PyTorch  difference     bound  to float64")
    largest, beyond = (0, 0), 0
    for step, (loss, other, true) in enumerate(zip(ours.losses, theirs, exact), 1):
        difference, bound = abs(loss / other - 1), math.sqrt(terms * step) * 2**-24
        largest = max(largest, (difference, step))
        if difference > bound and not beyond:
            beyond = step
        if step == 1 or step % -(-asked.steps // 10) == 0:
            print(f"{step:>5}{loss:>21.7f}{other:>12.7f}{difference:>12.1e}{bound:>10.1e}"
                  f"{abs(other / true - 1):>12.1e}")
    print(f"\nthe largest relative difference is {largest[0]:.1e}, in step {largest[1]}")
    if beyond:
        raise Failure(f"step {beyond} differs by more than its bound")


def save_new(case, folder):
    """Saves a random model of transformers, with gains other than 1. Returns its weights' path."""
    torch.manual_seed(3)
    model = network_of(case)
    for name, param in model.named_parameters():
        param.data += torch.randn_like(param) * (0.1 if "norm" in name else 0.05)
    model.save_pretrained(folder)
    return folder / "model.safetensors"


def compare_llamas(run, folder):
    """Yields (what is compared, the difference, its limit). run: as in compare_losses()."""
    case = replace(LLAMAS[0], ranks=2)
    of_06 = "06_zero3", 2, *case.options()
    digests = run(*of_06, "--steps", 300, "--save", folder).summary["layer_digests"]
    said, handler = [], logging.Handler(logging.WARNING)
    handler.emit = said.append
    logging.getLogger("transformers").addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        model, keys = LlamaForCausalLM.from_pretrained(folder / "step_300",
                                                       output_loading_info=True)
    yield "06 on 2 ranks, 300 steps, opened: warnings, keys astray", sum(
        map(len, (said, caught, *keys.values()))), 0
    text = model.generate(torch.tensor([list(b"The ")]), max_new_tokens=100, do_sample=True)
    print(f"    {bytes(text[0].tolist())}")
    model.save_pretrained(folder)
    back = run(*of_06, "--steps", 1, "--lr", 0, "--init", folder / "model.safetensors")
    yield "and back, by --init: layers in which a bit is another", sum(
        map(str.__ne__, digests, back.summary["layer_digests"])), 0
    weights = save_new(case, folder / "new")
    losses = zip(run(*of_06, "--steps", 40, "--init", weights).losses,
                 train(case, weights, 40, torch.float32))
    yield "40 steps, a loss beside PyTorch's in fp32, relative", max(
        abs(ours / theirs - 1) for ours, theirs in losses), 1e-6
    for case in LLAMAS:
        weights = save_new(case, folder / f"new_{case.width}")
        run("01_adam", 1, *case.options(), "--init", weights, "--steps", 1, "--beta1", 0,
            "--save", weights.parent)
        state = safetensors.torch.load_file(weights.parent / "step_1/optimizer.safetensors")
        exact = network_of(case).double()
        exact.load_state_dict(safetensors.torch.load_file(weights))
        loss_of(case, exact, 0).backward()
        yield (f"{case.layers} x {case.width}, heads {case.heads}/{case.kv_heads}: a tensor's "
               "gradient, relative"), max(
            ((state[f"{name}.exp_avg"] - param.grad).norm() / param.grad.norm()).item()
            for name, param in exact.named_parameters()), 2e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chapter", choices=[*CHAPTERS, "llama"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--build", type=Path, default=Path("build"), help="where the programs are")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    asked, others = parser.parse_known_args()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(asked.build, asked.mpiexec, Path(folder))

        def run(chapter, ranks, *words):
            one = programs.prepare("log", chapter, ranks, *words, dtype="fp32")
            one.execute()
            return one

        if asked.chapter != "llama":
            return compare_losses(run, Path(folder), asked, others)
        print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}\n")
        far = 0
        for what, apart, most in compare_llamas(run, Path(folder)):
            print(f"{'NO' if apart > most else 'yes':<4}{what:<56}{apart:>8.2g}, at most {most:g}")
            far += apart > most
    return int(far > 0)


if __name__ == "__main__":
    finish(main, "in_pytorch.py: ")
