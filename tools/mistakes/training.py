# SPDX-License-Identifier: MIT
"""The programs' training run, N ranks in one process, with the programs' bits.

Model, data and first weights are those of notes/generator.md, task text, four layers. A vector is
laid out as in the programs: layer after layer, each padded to a multiple of 8 N elements."""
from collections import defaultdict

import arithmetic
import numpy as np
from arithmetic import STORED, in_order
from numpy_model import (Case, initial_parameters, layer_digests, loss_and_gradient, matrices,
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


class Run:
    """A training run by a program's options: what is the same in the programs and in all
    counter-examples. `w` are the weights, which a step replaces."""

    def __init__(self, ranks, options):
        words = options.split()
        given = dict(zip(words[::2], words[1::2]))
        dtype, self.steps = given.get("--dtype", "fp32"), int(given["--steps"])
        self.case = Case("text", width=int(given["--width"]), layers=int(given["--layers"]),
                         accumulate=int(given.get("--accumulate", 1)), ranks=ranks,
                         lr=float(given.get("--lr", Case.lr)))
        self.ranks, self.stored = Ranks(ranks), STORED[dtype]
        self.loss_scale = 2.0**16 if dtype == "fp16" else 1.0
        self.used = self.case.sizes()
        self.sizes = [-(-used // (8 * ranks)) * 8 * ranks for used in self.used]
        # The places of the parameters in a vector, between which its padding lies.
        self.places = np.concatenate([layer[:used] for used, layer in
                                      zip(self.used, self.layers(np.arange(sum(self.sizes))))])
        self.w = self.padded(initial_parameters(self.case))
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
        return vector[self.places]

    def padded(self, vectors):
        filled = np.zeros((*vectors.shape[:-1], sum(self.sizes)), f32)
        filled[..., self.places] = vectors
        return filled

    def gathered(self, updated):
        """Of weights of which each rank has its own part: all of them."""
        return self.ranks.all_gather(np.split(updated, self.ranks.size))

    def gradients(self):
        """Of every step g[a][r]: the gradient of rank r's micro-batch a, formed with the weights
        of that moment."""
        case = self.case
        for step in range(self.steps):
            x, target = samples_of_step(case, step)
            many = (case.accumulate, case.ranks, case.batch)
            with np.errstate(invalid="ignore"):
                losses, g = loss_and_gradient(
                    case, self.stored(self.without_padding(self.w)), x.reshape(*many, -1),
                    target.reshape(many), self.stored, self.loss_scale, arithmetic)
            self.losses.append(f32(in_order(in_order(losses, 0), 0) / losses.size))
            yield self.padded(self.stored(g))
            self.weights.append(self.w.copy())

    def distance(self, other, step):
        """Between their weights after a step, in learning rates; as they are computed with."""
        ours, theirs = (run.stored(run.without_padding(run.weights[step])) for run in (self, other))
        return abs(ours - theirs) / self.case.lr

    def moved(self, step):
        """By a step, each weight, in learning rates."""
        return (self.weights[step] - self.weights[step - 1]) / self.case.lr

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
