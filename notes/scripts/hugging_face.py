#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks transformers whether a llama of a chapter is its own: files, losses, gradients, bits.

hugging_face.py [--build build] prints what was compared, how far the two are apart, and how far
they may be; exit code 1: too far. It takes half a minute, on two ranks.

Files: a chapter's checkpoint is opened without a warning, and goes on with a text. Bits: what
transformers saves of it, a chapter has with --init. Losses and gradients are in fp32, which adds in
another order than PyTorch; the gradients are compared with PyTorch's in float64. They are read from
a checkpoint: after one step with --beta1 0 exp_avg is the gradient.
"""
import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path

from runs import Failure, Programs, finish

try:
    import safetensors.torch
    import torch
    import transformers
    from in_pytorch import Case, Decoder, samples_of_step, train
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as missing:
    print(f"no comparison with transformers: {missing} (pip install numpy torch transformers)")
    sys.exit(77)

SHAPES = [{"width": 64, "layers": 2, "heads": 4, "kv-heads": 2, "hidden": 176, "sequence": 128},
          {"width": 96, "layers": 3, "heads": 6, "kv-heads": 2, "hidden": 100, "sequence": 40},
          {"width": 40, "layers": 1, "heads": 2, "kv-heads": 1, "hidden": 24, "sequence": 17}]
BATCH = 4


def options(shape):
    return ["--task", "llama", "--batch", BATCH,
            *(word for name, value in shape.items() for word in (f"--{name}", value))]


def case_of(shape, ranks):
    case = Case("llama", batch=BATCH, ranks=ranks)
    case.sequence = shape["sequence"]
    return case


def save_new(shape, folder):
    """A model as transformers begins it, but with gains that are not 1; where its weights are."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=shape["width"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv-heads"],
        intermediate_size=shape["hidden"], max_position_embeddings=shape["sequence"]))
    for name, param in model.named_parameters():
        param.data += torch.randn_like(param) * (0.1 if "norm" in name else 0.02)
    model.save_pretrained(folder)
    return folder / "model.safetensors"


def opened(folder):
    """A checkpoint as a model; how many warnings and keys too many or too few that takes."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = said.append
    logging.getLogger("transformers").addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        model, found = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    return model, len(said) + len(caught) + sum(map(len, found.values()))


def gradients(programs, folder, shape):
    """The largest distance of a tensor's, relative to its norm; in how many tensors bits differ if
    blocks are formed again."""
    weights, ours = save_new(shape, folder), []
    for again in ([], ["--recompute"]):
        saved = folder / f"ours{len(again)}"
        programs.prepare("log", "01_adam", 1, *options(shape), *again, "--init", weights, "--steps",
                         1, "--beta1", 0, "--save", saved).execute()
        ours.append(safetensors.torch.load_file(saved / "step_1/optimizer.safetensors"))
    exact = Decoder(weights).double()
    x, target = map(torch.from_numpy, samples_of_step(case_of(shape, 1), 0))
    torch.nn.functional.cross_entropy(exact(x), target.long()).backward()
    return (max(((ours[0][f"{name}.exp_avg"] - param.grad).norm() / param.grad.norm()).item()
                for name, param in exact.llama.named_parameters()),
            sum(not torch.equal(tensor, ours[1][name]) for name, tensor in ours[0].items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=Path("build"), help="where the programs are")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    asked = parser.parse_args()
    good = True

    def row(what, figure, most):
        nonlocal good
        good = good and figure <= most
        print(f"{what:<58}{figure:>8.2g}{most:>8.2g}  {'yes' if figure <= most else 'NO'}")

    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}\n\n"
          f"{'':<58}{'is':>8}{'at most':>8}")
    with tempfile.TemporaryDirectory() as place:
        folder, shape = Path(place), SHAPES[0]
        programs = Programs(asked.build, asked.mpiexec, folder)

        def run(*words):
            made = programs.prepare("log", "06_zero3", 2, *options(shape), *words, dtype="fp32")
            made.execute()
            return made

        trained = run("--steps", 300, "--save", folder)
        model, said = opened(folder / "step_300")
        row("06 on 2 ranks, 300 steps; from_pretrained: words, lost keys", said, 0)
        model.save_pretrained(folder / "theirs")
        back = run("--steps", 1, "--lr", 0, "--init", folder / "theirs/model.safetensors")
        row("save_pretrained, --init: layers with other bits", sum(map(
            str.__ne__, *(each.summary["layer_digests"] for each in (trained, back)))), 0)
        weights = save_new(shape, folder / "new")
        losses = zip(run("--steps", 40, "--init", weights).losses,
                     train(case_of(shape, 2), weights, 40, torch.float32))
        row("40 steps beside PyTorch: difference of a loss, relative",
            max(abs(ours / theirs - 1) for ours, theirs in losses), 1e-6)
        for number, each in enumerate(SHAPES):
            far, unlike = gradients(programs, folder / str(number), each)
            words = "{width} x {layers}, heads {heads}/{kv-heads}".format_map(each)
            row(f"{words}: gradient off PyTorch's in float64", far, 2e-6)
            row(f"{words}, --recompute: tensors with other bits", unlike, 0)
        text = model.generate(torch.tensor([list(b"The ")]), max_new_tokens=100, do_sample=False)
    print(f"\n{bytes(text[0].tolist()).decode(errors='replace')}")
    if not good:
        raise Failure("transformers and the chapters do not agree")


if __name__ == "__main__":
    finish(main, "hugging_face.py: ")
