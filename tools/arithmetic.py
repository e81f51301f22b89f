# SPDX-License-Identifier: MIT
"""The programs' arithmetic in numpy, to the last bit, as notes/floating_point.md has it."""
import math

import numpy as np

LOG2_E = 1.4426950408889634
HALF = np.uint64(1 << 28)  # of an fp32 number's last bit, in the bits of a float64
BELOW = np.uint64((1 << 29) - 1)


@np.errstate(over="ignore", invalid="ignore")
def product(a, b):
    """The matrix product of the last two axes in fp32: an element is one chain of fused
    multiply-adds, which round a product and a sum together, once."""
    a, b = np.float64(a)[..., None], np.float64(b)
    total = np.zeros(np.broadcast_shapes(a[..., 0, :].shape, b[..., :1, :].shape))
    exact, wide = np.empty_like(total), np.empty_like(total)
    for k in range(b.shape[-2]):
        np.multiply(a[..., k, :], b[..., k, None, :], out=exact)  # 24 bits by 24 fit into 53
        # Rounded to 53 bits, and below to 24: once, but where the first makes a tie for the second.
        np.add(exact, total, out=wide)
        ties = wide.view(np.uint64) & BELOW == HALF
        if ties.any():  # the lost bits say on which side of the tie the true sum lies
            term, before, tie = exact[ties], total[ties], wide[ties]
            back = tie - term
            lost = (term - (tie - back)) + (before - back)
            wide[ties] = np.where(lost == 0, tie, np.nextafter(tie, np.copysign(np.inf, lost)))
        total[...] = wide.astype(np.float32)
    return total.astype(np.float32)


def in_order(values, axis):
    """Their sum in their own type, one after the other, from the first."""
    return np.add.accumulate(values, axis).take(-1, axis)


def exp(x):
    """Of fp32 numbers of at most 0."""
    wide = np.maximum(x, np.float32(-104)).astype(np.float64)
    n = np.rint(wide * LOG2_E)
    r = wide - n * math.log(2)
    power = np.full_like(r, 1 / 362880)
    for factorial in (40320, 5040, 720, 120, 24, 6, 2, 1, 1):
        power = power * r + 1 / factorial
    return (power * np.exp2(n)).astype(np.float32)


def log(x):
    """Of fp32 numbers of at least 1."""
    half, n = np.frexp(x.astype(np.float64))
    s = (2 * half - 1) / (2 * half + 1)
    series = np.zeros_like(s)
    for odd in range(21, 0, -2):
        series = series * (s * s) + 1 / odd
    return ((n - 1) * math.log(2) + 2 * s * series).astype(np.float32)


def to_bf16(x):
    """The nearest bf16 number, ties to even; NaN stays NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7fff) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.where(np.isnan(x), x, (rounded & np.uint32(0xffff0000)).view(np.float32))


@np.errstate(over="ignore")
def to_fp16(x):
    return x.astype(np.float16).astype(np.float32)


STORED = {"fp32": lambda x: x, "bf16": to_bf16, "fp16": to_fp16}
