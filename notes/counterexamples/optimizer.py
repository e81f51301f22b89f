# SPDX-License-Identifier: MIT
"""Mistakes around Adam. Each function trains once, rightly or wrongly."""
import math

import numpy as np
from counter_example import CounterExample, percent
from training import Adam, f32


@CounterExample(
    "02_distributed_adam", 3, "--width 40 --layers 4 --steps 50",
    caught=("02_distributed_adam on 3 ranks",
            "the run equals the replay: odd sizes, clipping, weight decay"))
def updates(run, wrong):
    """Adam's updates are averaged, not the gradients

    Every rank feeds its own gradient to an Adam of its own, and the results are averaged. All
    ranks agree, as much is sent, and the loss falls; but Adam is not linear. In step 1 it moves
    a weight by lr in the direction of the gradient's sign, so that one rank's tiny gradient
    counts as much as another's large one."""
    adam, adams = Adam(run.w.size), [Adam(run.w.size) for _ in range(run.ranks.size)]
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
    run.show("mean move of step 1, of all parameters", f"{abs(run.moved(1)).mean():.3f}")


@CounterExample(
    "02_distributed_adam", 3, "--width 40 --layers 4 --steps 50",
    caught=("adam", "Adam and the reference give PyTorch's numbers after 1 and after 100 steps"))
def moments(run, wrong):
    """Adam forgets its moments, and learns

    The averages are computed in every step, and never kept: in the loop, m and v name new
    arrays, and the lists still hold zeros. What remains is the sign of the gradient with a
    hidden schedule, lr c(t) sign(g) (notes/adam.md). Step 1 has the right bits."""
    adam = Adam(run.w.size)
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
    caught=("adam",
            "Adam is within its rounding errors of the formulas, over 100 steps, in every dtype"),
    steps=(1, 10, 20, 40))
def master(run, wrong):
    """Weights in bf16, without a master copy

    A bf16 weight has 8 bits of precision. An update of less than half the distance to its
    neighbour rounds back to where it was, and nobody remembers it: with the learning rates of
    fine-tuning, or late in training, most are lost."""
    adam = Adam(run.w.size, run.lr)
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


@CounterExample(
    "02_distributed_adam", 3, "--width 40 --layers 4 --steps 50",
    caught=("adam", "Adam and the reference give PyTorch's numbers after 1 and after 100 steps"))
def correction(run, wrong):
    """No bias correction

    m and v begin at 0 and reach the size of g and g^2 slowly, v a hundred times more slowly
    than m. Undivided, the first steps are too long by (1 - beta1^t) / sqrt(1 - beta2^t)."""
    adam, lr = Adam(run.w.size), f32(run.lr)
    for (g,) in run.gradients():
        mean = run.ranks.all_reduce_mean(g)
        adam.count()
        adam.m, adam.v = adam.new_m(adam.m, mean), adam.new_v(adam.v, mean)
        if wrong:
            run.w = run.w - lr * adam.m / (np.sqrt(adam.v) + f32(adam.eps))  # wrong
        else:
            run.w = adam.moved(run.w, adam.m, adam.v)  # right: each over 1 - beta^t
    for t in (1, 10, 50):
        run.show(f"mean length of step {t}, in learning rates", f"{run.lengths(t).mean():.3f}")


@CounterExample(
    "03_mixed_precision", 3, "--dtype fp16 --width 40 --layers 4 --steps 30",
    caught=("03_mixed_precision on 2 ranks",
            "fp16's dynamic loss scale finds its way down from an overflow"),
    steps=(1, 19, 20, 30))
def overflow(run, wrong):
    """Gradients cleared by grad *= 0

    In fp16 a gradient overflows now and then; all ranks skip the step and halve the loss scale.
    But inf * 0 and nan * 0 are nan, so these elements are never finite again: every later step
    is skipped, and in a program that does not check, every weight becomes nan."""
    adam, buffer = Adam(run.w.size), np.zeros((run.ranks.size, run.w.size), f32)
    for (g,) in run.gradients():
        with np.errstate(invalid="ignore"):
            if wrong:
                buffer *= 0  # wrong
            else:
                buffer[:] = 0  # right: or, as the programs do, write over what is there
            buffer[:] = run.stored(buffer + g)
            mean = run.stored(run.ranks.all_reduce_mean(buffer))
        run.seen["scale"].append(int(math.log2(run.loss_scale)))
        run.seen["skipped"].append(not np.isfinite(mean).all())
        if run.seen["skipped"][-1]:
            run.loss_scale = max(run.loss_scale / 2, 1.0)
        else:
            run.w = adam.update(run.w, mean * f32(1 / run.loss_scale))
    skipped = run.seen["skipped"]
    for t in (18, 19, 20, 30):
        run.show(f"loss scale of step {t}",
                 f"2^{run.seen['scale'][t - 1]}{', skipped' * skipped[t - 1]}")
    run.show("steps skipped of 30", sum(skipped))
