# SPDX-License-Identifier: MIT
"""Mistakes around Adam, and around shards and collectives. Each function trains once, rightly or
wrongly."""
import math

import numpy as np
from arithmetic import in_order
from counter_example import CounterExample, percent
from numpy_model import Adam
from training import f32

PYTORCH = ("adam", "Adam and the reference give PyTorch's numbers after 1 and after 100 steps")


@CounterExample("02_distributed_adam", 3, "--width 40 --layers 4 --steps 50",
                caught=("02_distributed_adam on 3 ranks",
                        "the run equals the replay: odd sizes, clipping, weight decay"))
def updates(run, adam, wrong):
    """Adam's updates are averaged, not the gradients

    Every rank feeds its own gradient to an Adam of its own, and the results are averaged. All
    ranks agree, as much is sent, and the loss falls; but Adam is not linear. In step 1 it moves
    a weight by lr in the direction of the gradient's sign, so that one rank's tiny gradient
    counts as much as another's large one."""
    adams = [Adam(run.w.size) for _ in range(run.ranks.size)]
    for (g,) in run.gradients():
        if wrong:
            moved = [own.update(run.w, mine) for own, mine in zip(adams, g)]  # wrong
            run.w = run.ranks.all_reduce_mean(moved)  # wrong
        else:
            mean = run.ranks.all_reduce_mean(g)  # right
            run.w = adam.update(run.w, mean)  # right
    if wrong:
        turned = run.right.moved(1) * run.moved(1) < 0
        run.show("weights that step 1 moves the other way", percent(turned))
    run.show("mean move of step 1, in learning rates", f"{abs(run.moved(1)).mean():.3f}")


@CounterExample("02_distributed_adam", 3, "--width 40 --layers 4 --steps 50", caught=PYTORCH)
def moments(run, adam, wrong):
    """Adam forgets its moments, and learns

    The averages are computed in every step, and never kept: in the loop, m and v name new
    arrays, and the lists still hold zeros. What remains is the sign of the gradient with a
    hidden schedule, lr c(t) sign(g) (notes/adam.md). Step 1 has the right bits."""
    all_m, all_v = run.layers(np.zeros_like(run.w)), run.layers(np.zeros_like(run.w))
    for (g,) in run.gradients():
        adam.count()
        mean = run.ranks.all_reduce_mean(g)
        for w, own, m, v in zip(run.layers(run.w), run.layers(mean), all_m, all_v):
            if wrong:
                m = adam.new_m(m, own)  # wrong: another array: the one in all_m stays 0
                v = adam.new_v(v, own)  # wrong
            else:
                m[:] = adam.new_m(m, own)  # right
                v[:] = adam.new_v(v, own)  # right
            w[:] = adam.moved(w, m, v)
        run.seen["largest m"].append(max(abs(m).max() for m in all_m))
    run.show("largest m that is kept, after step 50", f"{run.seen['largest m'][-1]:.4f}")
    for t in (2, 12, 50):
        low, high = np.percentile(run.lengths(t), (5, 95))
        run.show(f"5 % to 95 % of the lengths of step {t}", f"{low:.3f} to {high:.3f}")


@CounterExample(
    "03_mixed_precision", 3, "--dtype bf16 --width 40 --layers 4 --lr 5e-05 --steps 40",
    ("adam", "Adam is within its rounding errors of the formulas, over 100 steps, in every dtype"),
    steps=(1, 10, 20, 40))
def master(run, adam, wrong):
    """Weights in bf16, without a master copy

    A bf16 weight has 8 bits of precision. An update of less than half the distance to its
    neighbour rounds back to where it was, and nobody remembers it: with the learning rates of
    fine-tuning, or late in training, most are lost."""
    for (g,) in run.gradients():  # formed at bf16(w), on both sides
        mean = run.stored(run.ranks.all_reduce_mean(g))
        before = run.stored(run.w) if wrong else run.w
        if wrong:
            run.w = run.stored(adam.update(before, mean))  # wrong
        else:
            run.w = adam.update(before, mean)  # right: fp32, rounded to compute with
        run.seen["lost"].append(np.mean((run.w == before)[mean != 0]))
    run.show("updates that change nothing", percent(run.seen["lost"]))
    same = run.stored(run.weights[0]) == run.stored(run.w)
    run.show("weights that are, in bf16, where they began", percent(run.without_padding(same)))


@CounterExample("02_distributed_adam", 3, "--width 40 --layers 4 --steps 50", caught=PYTORCH)
def correction(run, adam, wrong):
    """No bias correction

    m and v begin at 0 and reach the size of g and g^2 slowly, v a hundred times more slowly
    than m. Undivided, the first steps are too long by (1 - beta1^t) / sqrt(1 - beta2^t)."""
    lr = f32(run.case.lr)
    for (g,) in run.gradients():
        mean = run.ranks.all_reduce_mean(g)
        adam.count()
        adam.m, adam.v = adam.new_m(adam.m, mean), adam.new_v(adam.v, mean)
        if wrong:
            run.w = run.w - lr * adam.m / (np.sqrt(adam.v) + f32(run.case.eps))  # wrong
        else:
            run.w = adam.moved(run.w, adam.m, adam.v)  # right: each over 1 - beta^t
    for t in (1, 10, 50):
        run.show(f"mean length of step {t}, in learning rates", f"{run.lengths(t).mean():.3f}")


@CounterExample("03_mixed_precision", 3, "--dtype fp16 --width 40 --layers 4 --steps 30",
                ("03_mixed_precision on 2 ranks",
                 "fp16's dynamic loss scale finds its way down from an overflow"), (1, 19, 20, 30))
def overflow(run, adam, wrong):
    """Gradients cleared by grad *= 0

    In fp16 a gradient overflows now and then; all ranks skip the step and halve the loss scale.
    But inf * 0 and nan * 0 are nan, so these elements are never finite again: every later step
    is skipped, and in a program that does not check, every weight becomes nan."""
    buffer = np.zeros((run.ranks.size, run.w.size), f32)
    for (g,) in run.gradients():
        with np.errstate(invalid="ignore"):
            if wrong:
                buffer *= 0  # wrong
            else:
                buffer[:] = 0  # right: or, as the programs do, write over what is there
            buffer[:] = run.stored(buffer + g)
            mean = run.stored(run.ranks.all_reduce_mean(buffer))
        run.seen["scale"].append(int(math.log2(run.loss_scale)))
        skipped = run.seen["skipped"]
        skipped.append(not np.isfinite(mean).all())
        if skipped[-1]:
            run.loss_scale = max(run.loss_scale / 2, 1.0)
        else:
            run.w = adam.update(run.w, mean * f32(1 / run.loss_scale))
    for t in (18, 19, 20, 30):
        run.show(f"loss scale of step {t}",
                 f"2^{run.seen['scale'][t - 1]}{', skipped' * skipped[t - 1]}")
    run.show("steps skipped of 30", sum(skipped))


@CounterExample("04_zero1", 4, "--dtype fp32 --width 40 --layers 3 --steps 20", steps=(1, 20),
                caught=("04_zero1 on 4 ranks", "bytes and traffic equal the chapter's formulas"))
def tensors(run, adam, wrong):
    """Whole tensors are dealt to ranks, not elements

    Six tensors on four ranks are ceil(6/4) = 2 each, in their order, and nothing for the last.
    The bits are right, for Adam may be cut anywhere. But the fullest rank decides what fits, and
    its part is the largest tensors', not 1/N."""
    places, parts = np.arange(run.w.size), []
    for r in range(4):
        if wrong:
            dealt = run.tensors(places)[2 * r:2 * (r + 1)]  # wrong: 2 = ceil(6 / 4)
        else:
            dealt = [np.split(layer, 4)[r] for layer in run.layers(places)]  # right
        parts.append(np.concatenate([places[:0], *dealt]))
    adams = [Adam(part.size) for part in parts]
    for (g,) in run.gradients():
        shards = [adam.update(run.w[part], run.ranks.reduce_mean(g[:, part], owner))
                  for owner, (adam, part) in enumerate(zip(adams, parts))]
        run.w[np.concatenate(parts)] = run.ranks.all_gather(shards)
    held = [adam.m.nbytes + adam.v.nbytes for adam in adams]
    for rank, count in enumerate(held):
        run.show(f"bytes of m and v on rank {rank}", count)
    run.show("the fullest rank over the mean", f"{max(held) / np.mean(held):.2f}")


@CounterExample("05_zero2", 8, "--dtype fp32 --width 8 --layers 4 --clip 0.3 --steps 50",
                ("05_zero2 on 3 ranks", "the run equals the replay: layers of different sizes"))
def padding(run, adam, wrong):
    """The padding is squared

    ZeRO-2 forms the layers' gradients in one buffer, one after the other. Behind a small layer
    still lies what a larger one has left there; it ends in the last rank's shard, in its padding,
    and the norm, by which gradients are clipped, counts it."""
    buffer = np.zeros((run.ranks.size, max(run.sizes)), f32)
    for (g,) in run.gradients():
        by_layer = []
        for used, size, layer in reversed([*zip(run.used, run.sizes, run.layers(g))]):
            buffer[:, :used] = layer[:, :used]
            if wrong:
                pass  # wrong: buffer[:, used:size] is as the layer before has left it
            else:
                buffer[:, used:size] = 0  # right
            by_layer.insert(0, run.ranks.reduce_scatter_mean(buffer[:, :size]))
        norm = run.norm(by_layer)
        mean = np.concatenate([part for shards in by_layer for part in shards])
        run.w = run.gathered(adam.update(run.w, mean * f32(min(1, 0.3 / norm))))  # --clip 0.3
        run.seen["norm"].append(norm)
        run.seen["leftovers"].append(sum((np.concatenate(shards)[used:].astype(float)**2).sum()
                                         for shards, used in zip(by_layer, run.used)))
    norms = np.array(run.seen["norm"])
    for t in (1, 50):
        run.show(f"gradient norm of step {t}", f"{norms[t - 1]:.5f}")
    run.show("padding in the square of the norm, all steps",
             f"{100 * sum(run.seen['leftovers']) / np.square(norms).sum():.2f} %")
    run.show("steps clipped", sum(norms > 0.3))


@CounterExample("05_zero2", 3, "--dtype fp32 --width 40 --layers 4 --steps 20 --accumulate 4",
                ("05_zero2 on 2 ranks", "the run equals the replay: several micro-batches"),
                steps=(1, 2, 10, 20))
def last(run, adam, wrong):
    """ZeRO-2 keeps the last micro-batch only

    Each micro-batch is reduced into the shard. Written over instead of added, three of four are
    computed, sent and thrown away. What is left is a quarter as long, and Adam divides that out:
    the run learns, as one with a quarter of the samples would."""
    for g in run.gradients():
        shards = np.zeros((run.ranks.size, run.w.size // run.ranks.size), f32)
        for a, of_ranks in enumerate(g):
            mean = run.ranks.reduce_scatter_mean(of_ranks)
            if wrong:
                shards[:] = mean  # wrong
            else:
                shards[:] = mean if a == 0 else shards + mean  # right
        gradient = np.concatenate(shards) / f32(len(g))
        run.seen["norm"].append(np.linalg.norm(gradient))
        run.w = run.gathered(adam.update(run.w, gradient))
    run.show("gradient norm of step 1", f"{run.seen['norm'][0]:.4f}")
    run.show("samples that count, a step", run.case.batch * run.ranks.size * (1 if wrong else 4))


@CounterExample("04_zero1", 3, "--dtype fp32 --width 40 --layers 4 --steps 20",
                ("04_zero1 on 2 ranks", "bytes and traffic equal the chapter's formulas"), (1, 20))
def allreduce(run, adam, wrong):
    """ZeRO-1 by all-reduce

    Every rank receives all of the mean and updates its own part of it. Nothing is wrong with the
    numbers, so no test of numbers can see it; the gradients of the other parts were gathered for
    nobody. An all-reduce is 2, the all-gather of the weights 1, together 3 instead of 2."""
    for (g,) in run.gradients():
        if wrong:
            shards = np.split(run.ranks.all_reduce_mean(g), run.ranks.size)  # wrong
        else:
            shards = run.ranks.reduce_scatter_mean(g)  # right
        run.w = run.gathered(adam.update(run.w, np.concatenate(shards)))  # each rank its own part
    unit = run.w.size * (run.ranks.size - 1) / run.ranks.size * run.steps
    run.show("in units of (N - 1)/N of all parameters", f"{run.ranks.sent.max() / unit:.2f}")


@CounterExample("02_distributed_adam", 3, "--width 40 --layers 4 --steps 20 --accumulate 4",
                steps=(1, 2, 3, 10, 20), sides=("02 to 04", "05 to 08"), decimals=8,
                caught=("05_zero2 on 3 ranks", "the run equals the replay: several micro-batches"))
def families(run, adam, wrong):
    """The two families part in the last bit

    Neither side is wrong. 02 to 04 add a rank's micro-batches first and then the ranks; 05 to 08
    have room for one layer only and must add the ranks first. Addition in fp32 is not
    associative: some sums differ in their last bits, and every later step starts from that."""
    for g in run.gradients():
        if wrong:
            shards = [run.ranks.reduce_scatter_mean(of_ranks) for of_ranks in g]  # wrong
            total = in_order(np.reshape(shards, (len(g), -1)), 0)  # wrong
        else:
            of_ranks = in_order(g, 0)  # right
            total = np.concatenate(run.ranks.reduce_scatter_mean(of_ranks))  # right
        gradient = total / f32(len(g))
        run.w = run.gathered(adam.update(run.w, gradient))
        run.seen["gradient"].append(gradient)
        run.seen["mean |g|"].append(abs(g).mean((0, 1)))
    if wrong:
        apart = abs(run.right.seen["gradient"][0] - run.seen["gradient"][0])
        # Of each element; that of notes/floating_point.md.
        bound = 2 * (3 + 4) * 2.0**-24 * run.right.seen["mean |g|"][0]
        run.show("gradients of step 1 that differ", percent(apart[bound > 0] > 0))
        run.show("the largest difference, as a part of its bound",
                 f"{(apart[bound > 0] / bound[bound > 0]).max():.2f}")
        first = np.flatnonzero(run.distance(run.right, 1))[0]
        for side in (run.right, run):
            weight = side.without_padding(side.weights[1])[first].view(np.uint32)
            side.show(f"bits of the first weight that differs, number {first}", f"0x{weight:08x}")
        for t in (1, 2, 20):
            apart = run.distance(run.right, t)
            run.show(f"weights that differ after step {t}", percent(apart > 0))
            run.show("    their mean distance, in learning rates", f"{apart[apart > 0].mean():.1e}")


@CounterExample(
    "04_zero1", 4, "--dtype fp32 --width 40 --layers 3 --steps 20",
    ("communicator on 4 ranks", "the ranks are added in rank order, in fp32, and rounded once"),
    steps=(1, 2, 10, 20), sides=("direct", "ring"), decimals=8)
def ring(run, adam, wrong):
    """A ring adds each part in an order of its own

    Neither side is wrong, and a rank sends as much. Direct, each rank sends part p to its owner,
    rank p, which adds the ranks as 0, 1, 2, 3. Round a ring, in each of N - 1 steps a rank passes
    a part on to the next rank, which adds its own: part p leaves rank p + 1 first and is complete
    at rank p. In N - 1 more steps the new weights go round in the same way."""
    n, sent = run.ranks.size, run.ranks.sent

    def passed(parts, rank, p):
        sent[rank] += parts[rank][p].size
        return parts[rank][p]

    def ring_reduce_scatter(vectors):
        """The sums: rank p's is part p."""
        parts = [np.split(vector, n) for vector in vectors]  # of each rank
        for step in range(1, n):  # wrong: the reduce-scatter
            for rank in range(n):  # wrong
                p, after = (rank - step) % n, (rank + 1) % n  # wrong
                parts[after][p] = passed(parts, rank, p) + parts[after][p]  # wrong
        return [parts[p][p] for p in range(n)]

    def ring_all_gather(owned):
        parts = [[owned[p] if p == rank else None for p in range(n)] for rank in range(n)]
        for step in range(n - 1):  # wrong: the all-gather
            for rank in range(n):  # wrong
                p, after = (rank - step) % n, (rank + 1) % n  # wrong
                parts[after][p] = passed(parts, rank, p)  # wrong
        whole, *others = map(np.concatenate, parts)
        assert all((whole == other).all() for other in others)
        return whole

    names = [np.full(n, f" {rank}", object) for rank in range(n)]  # their sum tells the order
    orders = np.concatenate(ring_reduce_scatter(names)) if wrong else in_order(names, 0)
    sent[:] = 0  # the names are not counted
    for (g,) in run.gradients():
        if wrong:
            mean = [part / f32(n) for part in ring_reduce_scatter(g)]
        else:
            mean = run.ranks.reduce_scatter_mean(g)  # right
        run.seen["sent"].append(sent.max())
        shards = np.split(adam.update(run.w, np.concatenate(mean)), n)  # each rank its own
        if wrong:
            run.w = ring_all_gather(shards)
        else:
            run.w = run.ranks.all_gather(shards)  # right
        run.seen["sent"].append(sent.max())
        run.seen["mean"].append(mean)
        run.seen["off"].append(abs(np.concatenate(mean) - g.mean(0, np.float64)))
        run.seen["bound"].append(n * 2.0**-24 * abs(g).mean(0, np.float64))
    half, both, *_ = run.seen["sent"]
    for what, elements in (("reduce-scatter", half), ("all-gather", both - half)):
        run.show(f"sent by a rank in the {what}, of S", f"{elements / run.w.size:.2f} S")
    for p, (order, part) in enumerate(zip(orders, run.seen["mean"][0])):
        run.show(f"part {p}: the ranks in the order of addition", order)
        if wrong:
            others = sum(part != run.right.seen["mean"][0][p])
            run.show("    elements with other bits in step 1", f"{others} of {part.size}")
    off, bound = run.seen["off"][0], run.seen["bound"][0]
    run.show("farthest from the exact mean, in bounds",
             f"{max(off[bound > 0] / bound[bound > 0]):.2f}")
    if wrong:
        for side, other in ((run.right, run), (run, run.right)):
            nearer = sum(side.seen["off"][0] < other.seen["off"][0])
            side.show("elements that are nearer to the exact mean", nearer)
