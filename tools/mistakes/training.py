# SPDX-License-Identifier: MIT
"""The programs' training run, N ranks in one process, with the programs' bits.

Model, data and first weights are those of notes/generator.md, task text, four layers. A vector is
laid out as in the programs: layer after layer, each padded to a multiple of 8 N elements."""
from collections import defaultdict

import numpy as np
from arithmetic import STORED, exp, in_order, log, product
from check_in_python import (Case, initial_parameters, layer_digests, layer_slices, matrices,
                             samples_of_step)

f32 = np.float32


class Ranks:
    """What N ranks say to each other. An element is counted where it leaves its rank."""

    def __init__(self, size):
        self.size = size
        self.sent = np.zeros(size, int)  # elements, by rank

    def reduce_mean(self, parts, owner):
        """The mean of the ranks' parts, at their owner: summed in rank order, divided once."""
        for sender, part in enumerate(parts):
            self.sent[sender] += part.size * (sender != owner)
        return in_order(parts, 0) / f32(self.size)

    def reduce_scatter_mean(self, vectors):
        """Rank r gets the r-th part of the mean."""
        return [self.reduce_mean(parts, owner) for owner, parts in
                enumerate(zip(*(np.split(vector, self.size) for vector in vectors)))]

    def all_gather(self, parts):
        """The ranks' parts, one after the other, as all ranks get them."""
        for sender, part in enumerate(parts):
            self.sent[sender] += part.size * (self.size - 1)
        return np.concatenate(parts)

    def all_reduce_mean(self, vectors):
        return self.all_gather(self.reduce_scatter_mean(vectors))


class Adam:
    """Its averages m and v live from step to step."""
    beta1, beta2, eps = Case.beta1, Case.beta2, Case.eps

    def __init__(self, size, lr=Case.lr):
        self.lr, self.m, self.v = lr, np.zeros(size, f32), np.zeros(size, f32)
        self.beta1_to_t = self.beta2_to_t = 1.0

    def count(self):
        """A step begins."""
        self.beta1_to_t *= self.beta1
        self.beta2_to_t *= self.beta2

    def new_m(self, m, g):
        return f32(self.beta1) * m + f32(1 - self.beta1) * g

    def new_v(self, v, g):
        return f32(self.beta2) * v + f32(1 - self.beta2) * (g * g)

    def moved(self, w, m, v):
        """The weights, a step further."""
        root = np.sqrt(v) * f32(1 / np.sqrt(1 - self.beta2_to_t)) + f32(self.eps)
        return w - f32(self.lr / (1 - self.beta1_to_t)) * m / root

    def update(self, w, g):
        """A whole step: the new weights."""
        self.count()
        self.m, self.v = self.new_m(self.m, g), self.new_v(self.v, g)
        return self.moved(w, self.m, self.v)


class Run:
    """A training run by a program's options: what is the same in the programs and in all
    counter-examples. `w` are the weights, which a step replaces."""

    def __init__(self, ranks, options):
        words = options.split()
        given = dict(zip(words[::2], words[1::2]))
        dtype, self.steps = given.get("--dtype", "fp32"), int(given["--steps"])
        self.lr = float(given.get("--lr", Case.lr))
        self.case = Case("text", width=int(given["--width"]), layers=int(given["--layers"]),
                         accumulate=int(given.get("--accumulate", 1)), lr=self.lr, ranks=ranks)
        self.ranks, self.stored = Ranks(ranks), STORED[dtype]
        self.loss_scale = 2.0**16 if dtype == "fp16" else 1.0
        self.used = self.case.sizes()
        self.sizes = [-(-used // (8 * ranks)) * 8 * ranks for used in self.used]
        parts = layer_slices(self.case, initial_parameters(self.case))
        self.w = np.concatenate([np.pad(part, (0, size - part.size))
                                 for part, size in zip(parts, self.sizes)])
        self.weights = [self.w.copy()]  # after each step; before the first
        self.losses = []
        self.seen = defaultdict(list)  # what else a counter-example looks at, by step
        self.shown = []  # (what, number) at its end
        self.right = None  # of a wrong run: the right one

    def show(self, what, number):
        self.shown.append((what, number))

    def layers(self, vectors):
        """Each with its padding: views."""
        return np.split(vectors, np.cumsum(self.sizes)[:-1], axis=-1)

    def tensors(self, vector):
        """The weight and the bias of each layer, flat and without padding."""
        pairs = matrices(self.case, self.without_padding(vector))
        return [part.ravel() for pair in pairs for part in pair]

    def without_padding(self, vector):
        return np.concatenate([layer[:used] for layer, used in zip(self.layers(vector), self.used)])

    def gathered(self, updated):
        """Of weights of which each rank has its own part: all of them."""
        return self.ranks.all_gather(np.split(updated, self.ranks.size))

    def gradients(self):
        """Of every step g[a][r]: the gradient of rank r's micro-batch a, formed with the weights
        of that moment."""
        for step in range(self.steps):
            loss, g = self.forward_and_backward(self.stored(self.w), step)
            self.losses.append(loss)
            yield g
            self.weights.append(self.w.copy())

    def forward_and_backward(self, params, step):
        """Of all micro-batches of all ranks at once."""
        case, store = self.case, self.stored
        many = (case.accumulate, case.ranks, case.batch)
        x, target = samples_of_step(case, step)
        layers = matrices(case, self.without_padding(params))
        activations = [store(x.reshape(*many, -1))]
        for l, (weight, bias) in enumerate(layers):
            y = product(activations[l], weight.T) + bias
            activations.append(store(y if l == len(layers) - 1 else np.where(y < 0, f32(0), y)))
        loss, delta = self.cross_entropy(activations.pop(), target.reshape(*many, 1))
        gradient = np.zeros((*many[:2], params.size), f32)
        for l in reversed(range(len(layers))):
            by_weight = product(delta.swapaxes(2, 3), activations[l])
            by_bias = in_order(delta, 2)
            self.layers(gradient)[l][..., :self.used[l]] = np.concatenate(
                [by_weight.reshape(*many[:2], -1), by_bias], -1)
            if l > 0:
                below = product(delta, layers[l][0])
                delta = store(np.where(activations[l] > 0, below, f32(0)))
        return loss, store(gradient)

    @np.errstate(invalid="ignore")
    def cross_entropy(self, y, target):
        """The step's loss, and the gradient of each micro-batch's by y, scaled."""
        batch, largest = y.shape[2], y.max(-1, keepdims=True)
        power = exp(y - largest)
        total = in_order(power, 3)[..., None]
        factor = f32(self.loss_scale / batch)
        delta = power / total * factor
        right = np.take_along_axis(power, target, -1)
        np.put_along_axis(delta, target, (right / total - f32(1)) * factor, -1)
        losses = log(total) + largest - np.take_along_axis(y, target, -1)
        means = in_order(losses.astype(np.float64), 2)[:, :, 0] / batch
        return f32(in_order(in_order(means, 0), 0) / means.size), self.stored(delta)

    def distance(self, other, step):
        """Between their weights after a step, in learning rates; as they are computed with."""
        ours, theirs = (run.stored(run.without_padding(run.weights[step])) for run in (self, other))
        return abs(ours - theirs) / self.lr

    def moved(self, step):
        """By a step, each weight, in learning rates."""
        return (self.weights[step] - self.weights[step - 1]) / self.lr

    def lengths(self, step):
        """How far a step has moved each weight that it has moved."""
        moved = abs(self.moved(step))
        return moved[moved > 0]

    def norm(self, by_layer):
        """Of gradients that are shards of layers. A rank squares its own in double, in eight
        partial sums; then the ranks' sums are added."""
        of_ranks = np.zeros(self.ranks.size)
        for shards in by_layer:
            for rank, shard in enumerate(shards):
                squares = shard.astype(np.float64).reshape(-1, 8) ** 2
                of_ranks[rank] = in_order(np.append(of_ranks[rank], in_order(squares, 0)), 0)
        return np.sqrt(in_order(of_ranks, 0))

    def digest(self, step):
        """Of the weights after a step, as the programs print it."""
        layers = layer_digests(self.case, self.without_padding(self.weights[step]))
        return f"{sum(layers) % 2**64:016x}"
