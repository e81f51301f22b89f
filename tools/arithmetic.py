# SPDX-License-Identifier: MIT
"""The programs' arithmetic in numpy, to the last bit, as notes/floating_point.md has it."""
import math

import numpy as np

LOG2_E = 1.4426950408889634


@np.errstate(over="ignore", invalid="ignore")
def product(a, b):
    """The matrix product of the last two axes in fp32: an element is one chain of fused
    multiply-adds, which round a product and a sum together, once. (Here a product is exact, 24 bits
    by 24 in 53. A sum is rounded to 53, then to 24 bits: of 2^29 about one otherwise than at once.
    Of the runs of the counter-examples, whose digests are recorded, none is.)"""
    a, b, total = np.float64(a)[..., None], np.float64(b), np.float32(0)
    for k in range(b.shape[-2]):
        total = np.float32(a[..., k, :] * b[..., k, None, :] + total)
    return total


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
