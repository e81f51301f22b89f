# SPDX-License-Identifier: MIT
"""The tutorial's training runs once more, in Python, written from generator.md alone.

What the note calls fp32 is float32 here, so weights and data are the programs' own bits. `train`
is in float64, so the programs' rounding is all that is left between the two
(tests/programs/digests_test.py holds them to each other)."""
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CORPUS = Path(__file__).resolve().parents[1] / "corpus.txt"


@dataclass
class Case:
    """One run. What a case does not name is the programs' default, and then is not passed."""
    task: str
    width: int = 256
    layers: int = 8
    batch: int = 32
    accumulate: int = 1
    lr: float = 0.002
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 1
    ranks: int = 1

    def options(self):
        """The options that differ from the defaults, as the programs spell them."""
        return [word for name, value in vars(self).items()
                if name != "ranks" and value != getattr(Case, name, None)
                for word in ("--" + name.replace("_", "-"), str(value))]

    def shapes(self):
        """(inputs, outputs) of each layer."""
        if self.task == "toy":
            return [(128, 512), (512, 10)]
        last = 256 if self.task == "text" else self.width
        return [(self.width, self.width)] * (self.layers - 1) + [(self.width, last)]

    def sizes(self):
        """Parameters of each layer."""
        biases = self.task != "toy"  # which has neither biases nor ReLU
        return [outputs * (inputs + biases) for inputs, outputs in self.shapes()]


# uint64 arithmetic in numpy is modulo 2^64; errstate turns off the warning that it gives of that
# for a single number. Constants are np.uint64 too: numpy may answer uint64 and int with float64.
GAMMA = np.uint64(0x9e3779b97f4a7c15)
WEIGHTS, INPUTS, POSITIONS, CODES, FIRST, SECOND = range(6)  # streams


@np.errstate(over="ignore")
def mix(z):
    z = np.uint64(z) + GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return z ^ (z >> np.uint64(31))


@np.errstate(over="ignore")
def bits(seed, stream, index):
    key = mix(mix(seed) ^ np.uint64(stream))
    return mix(key + np.uint64(index) * GAMMA)


def uniform(seed, stream, index):
    top = (bits(seed, stream, index) >> np.uint64(40)).astype(np.int64)
    return (top - 2**23).astype(np.float32) * np.float32(2.0**-23)


def grid(rows, columns):
    """Index `row * columns + column` of every element of a matrix; `rows` lists the rows."""
    return np.uint64(rows)[:, None] * np.uint64(columns) + np.arange(columns, dtype=np.uint64)


def scale(inputs):
    return np.float32(math.sqrt(6 / inputs))


def initial_parameters(case):
    """One vector of all; the place in it is the note's global element number."""
    parameters = np.zeros(sum(case.sizes()), np.float32)
    numbers = matrices(case, np.arange(parameters.size, dtype=np.uint64))
    for layer, ((weight, _), (number, _)) in enumerate(zip(matrices(case, parameters), numbers)):
        factor = scale(weight.shape[1])
        if case.task == "text" and layer == len(numbers) - 1:
            factor *= np.float32(0.1)
        weight[:] = uniform(case.seed, WEIGHTS, number) * factor
    return parameters


def layer_slices(case, vector):
    """The part of `vector` that belongs to each layer: views, so that they can be assigned to."""
    return np.split(vector, np.cumsum(case.sizes())[:-1])


def matrices(case, vector):
    """(weight, bias) of each layer, as views of `vector`; without a bias, an empty one."""
    return [(part[:outputs * inputs].reshape(outputs, inputs), part[outputs * inputs:])
            for part, (inputs, outputs) in zip(layer_slices(case, vector), case.shapes())]


def layer_digests(case, parameters):
    numbers = np.arange(parameters.size, dtype=np.uint64)
    terms = mix(mix(numbers) ^ parameters.view(np.uint32).astype(np.uint64))
    return [int(np.sum(part, dtype=np.uint64)) for part in layer_slices(case, terms)]


def samples_of_step(case, step):
    """Micro-batches of a step follow one another, on any number of ranks, and so do samples."""
    count = case.batch * case.accumulate * case.ranks
    make = text_samples if case.task == "text" else taught_samples
    return make(case, np.arange(step * count, (step + 1) * count, dtype=np.uint64))


def text_samples(case, samples):
    text = np.frombuffer(CORPUS.read_bytes(), np.uint8)
    codes = uniform(case.seed, CODES, grid(np.arange(256), case.width // 8))
    positions = bits(case.seed, POSITIONS, samples) % np.uint64(text.size - 8)
    window = text[positions.astype(np.int64)[:, None] + np.arange(9)]
    return codes[window[:, :8]].reshape(len(samples), case.width), window[:, 8]


def in_order(left, right):
    """The matrix product in float32, its terms added one after the other from the first."""
    return sum((column[:, None] * row for column, row in zip(left.T, right)), np.float32(0))


def taught_samples(case, samples):
    inputs, outputs = case.shapes()[0][0], case.shapes()[-1][1]
    first = uniform(case.seed, FIRST, grid(np.arange(inputs), 16)) * scale(inputs)
    second = uniform(case.seed, SECOND, grid(np.arange(16), outputs)) * scale(16)
    x = uniform(case.seed, INPUTS, grid(samples, inputs))
    return x, in_order(in_order(x, first), second)


def cross_entropy(y, target):
    """Mean loss over the batch, and its gradient by y."""
    rows = np.arange(len(y))
    shifted = y - y.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    gradient = np.exp(shifted - log_sum)
    gradient[rows, target] -= 1
    return (log_sum[:, 0] - shifted[rows, target]).mean(), gradient / len(y)


def loss_and_gradient(case, parameters, x, target, stored=np.float64, scale=1):
    """Of all samples of a step at once: all micro-batches have as many, so means agree. stored:
    what becomes of a number that is kept; scale: the loss's, in the gradient."""
    layers = matrices(case, parameters)
    relus = 0 if case.task == "toy" else len(layers) - 1  # so many of the layers end in one
    activations = [stored(x)]
    for i, (weight, bias) in enumerate(layers):
        y = activations[i] @ weight.T + (bias if bias.size else 0)
        activations.append(y := stored(np.maximum(y, 0) if i < relus else y))

    if case.task == "text":
        loss, backward = cross_entropy(y, target)
    else:
        loss, backward = ((y - target)**2).mean(), 2 * (y - target) / y.size
    backward = stored(scale * backward)
    gradient = np.zeros_like(parameters)
    by_layer = matrices(case, gradient)
    for i in reversed(range(len(layers))):
        if i < relus:
            backward = backward * (activations[i + 1] > 0)
        by_weight, by_bias = by_layer[i]
        by_weight[:] = backward.T @ activations[i]
        by_bias[:] = backward.sum(axis=0)[:by_bias.size]
        backward = stored(backward @ layers[i][0])
    return loss, gradient


def train(case, steps):
    """(loss, gradient norm before clipping) of each step."""
    w = initial_parameters(case).astype(np.float64)
    m, v, history = np.zeros_like(w), np.zeros_like(w), []
    for t in range(1, steps + 1):
        loss, g = loss_and_gradient(case, w, *samples_of_step(case, t - 1))
        norm = np.linalg.norm(g)
        history.append((loss, norm))
        if 0 < case.clip < norm:
            g = g * (case.clip / norm)
        m = case.beta1 * m + (1 - case.beta1) * g
        v = case.beta2 * v + (1 - case.beta2) * g**2
        step = case.lr / (1 - case.beta1**t) * m
        root = np.sqrt(v / (1 - case.beta2**t))
        w = w * (1 - case.lr * case.weight_decay) - step / (root + case.eps)
    return np.array(history)
