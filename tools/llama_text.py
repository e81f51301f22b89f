# SPDX-License-Identifier: MIT
"""Lets a saved Llama write text. NumPy computes the probabilities, from the saved file alone."""
import json
import re
import struct

import numpy as np
from numpy_model import Case, initial_parameters, llama_logits
from runs import folded

PROMPT, COUNT = b"The ", 200
SHAPE = ("layers", "width", "heads", "kv_heads", "hidden", "sequence", "vocab")  # order in a file


def read(path):
    """Returns (case, parameters) of a file that a program has saved with --task llama. The file's
    tensors have the order of numpy_model's vector of all parameters."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])["__metadata__"]
    shape = dict(zip(SHAPE, map(int, re.findall(r"\d+", header["shape"])), strict=True))
    return Case("llama", seed=int(header["seed"]), **shape), np.frombuffer(data, "<f4", -1, begin)


def write(case, parameters):
    """Returns the bytes that follow the prompt. Each is drawn from the probabilities that the model
    gives to the next byte; all models get the same random numbers."""
    text = np.frombuffer(PROMPT, np.uint8)
    for draw in np.random.default_rng(1).random(COUNT):
        logits = llama_logits(case, parameters, text[None, -case.sequence:])[0][0, -1]
        sums = np.cumsum(np.exp(logits - logits.max()))
        text = np.append(text, np.uint8(np.searchsorted(sums, draw * sums[-1])))
    return text[len(PROMPT):].tobytes()


def before_and_after(path, whose, steps):
    """Yields lines: what `whose` weights write. A dot replaces a byte that is not printable."""
    case, trained = read(path)
    for when, parameters in (("before training", initial_parameters(case)),
                             (f"after {steps} steps", trained)):
        shown = re.sub(rb"[^\n -~]", b".", PROMPT + write(case, parameters)).decode()
        yield from ("", f"What {whose} weights write {when}:", *folded(shown, "  ", most=9))
