#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lays the chapters' llama beside transformers' LlamaForCausalLM: files, losses, gradients.

A chapter's checkpoint is opened there, and what is saved of it goes the way back, by --init. A
chapter's gradients are in a checkpoint: after a step with --beta1 0 exp_avg is the gradient. Exit
code 1: the two are further apart than they may be; 77: transformers is missing.
"""
import argparse
import logging
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

from runs import Programs, finish

try:
    import safetensors.torch
    import torch
    import transformers
    from in_pytorch import Case, llama, loss_of, train
except ImportError as missing:
    print(f"hugging_face.py: {missing} (pip install numpy safetensors torch transformers)")
    sys.exit(77)

CASES = [Case("llama", 64, 2, batch=4, heads=4, kv_heads=2, hidden=176),
         Case("llama", 96, 3, batch=4, heads=6, kv_heads=2, hidden=100, sequence=40),
         Case("llama", 40, 1, batch=4, heads=2, kv_heads=1, hidden=24, sequence=17)]


def save_new(case, folder):
    """A model of transformers' own, whose gains are not 1; returns where its weights are."""
    torch.manual_seed(3)
    model = llama(case)
    for name, param in model.named_parameters():
        param.data += torch.randn_like(param) * (0.1 if "norm" in name else 0.05)
    model.save_pretrained(folder)
    return folder / "model.safetensors"


def compare(folder, run):
    """Yields what is compared, how far it is apart, and how far it may be."""
    case = replace(CASES[0], ranks=2)
    digests = run("06_zero3", case, "--steps", 300, "--save", folder).summary["layer_digests"]
    said, handler = [], logging.Handler(logging.WARNING)
    handler.emit = said.append
    logging.getLogger("transformers").addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        model, keys = transformers.LlamaForCausalLM.from_pretrained(
            folder / "step_300", output_loading_info=True)
    yield "06 on 2 ranks, 300 steps, opened: warnings, keys astray", sum(
        map(len, (said, caught, *keys.values()))), 0
    text = model.generate(torch.tensor([list(b"The ")]), max_new_tokens=100, do_sample=True)
    print(f"    {bytes(text[0].tolist())}")
    model.save_pretrained(folder)
    back = run("06_zero3", case, "--steps", 1, "--lr", 0, "--init", folder / "model.safetensors")
    yield "and back, by --init: layers in which a bit is another", sum(
        map(str.__ne__, digests, back.summary["layer_digests"])), 0
    weights = save_new(case, folder / "new")
    losses = zip(run("06_zero3", case, "--steps", 40, "--init", weights).losses,
                 train(case, weights, 40, torch.float32))
    yield "40 steps, a loss beside PyTorch's in fp32, relative", max(
        abs(ours / theirs - 1) for ours, theirs in losses), 1e-6
    for case in CASES:
        weights = save_new(case, folder / f"new_{case.width}")
        run("01_adam", case, "--init", weights, "--steps", 1, "--beta1", 0, "--save",
            weights.parent)
        state = safetensors.torch.load_file(weights.parent / "step_1/optimizer.safetensors")
        exact = llama(case).double()
        exact.load_state_dict(safetensors.torch.load_file(weights))
        loss_of(case, exact, 0).backward()
        shape = f"{case.layers} x {case.width}, heads {case.heads}/{case.kv_heads}"
        yield f"{shape}: a tensor's gradient, relative", max(
            ((state[f"{name}.exp_avg"] - param.grad).norm() / param.grad.norm()).item()
            for name, param in exact.named_parameters()), 2e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default="build", help="where the programs are")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    asked, far = parser.parse_args(), 0
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}\n")
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(asked.build, asked.mpiexec, Path(folder))

        def run(chapter, case, *more):
            one = programs.prepare("log", chapter, case.ranks, *case.options(), *more, dtype="fp32")
            one.execute()
            return one

        for what, apart, most in compare(Path(folder), run):
            print(f"{'NO' if apart > most else 'yes':<4}{what:<56}{apart:>8.2g}, at most {most:g}")
            far += apart > most
    return int(far > 0)


if __name__ == "__main__":
    finish(main, "hugging_face.py: ")
