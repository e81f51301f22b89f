#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Losses over 100 steps where bits are not promised: a GPU against the CPU, and NCCL's own sums on
three ranks against sums in rank order. Largest difference, relative to the loss, against a bound.

A GPU multiplies matrices in another order and, in 16 bit, rounds a layer's outputs before and after
the bias. Each step goes on from what the one before left, so differences grow: from 2^-24 by at
most some 1000 in fp32, from 2^-8 (bf16) and 2^-11 (fp16) to what a few roundings of bf16 are.
"""
import sys

sys.dont_write_bytecode = True
from programs import SKIPPED, Programs, gpu_options, options_of  # noqa: E402

BOUNDS = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
TASKS = {"text": "--task text --width 64 --layers 4", "mlp": "--task mlp --width 64 --layers 4"}
PROGRAM = "03_mixed_precision"


def losses(programs, ranks, *args):
    _, steps, _ = programs.logged(ranks, PROGRAM, "--steps", "100", *args)
    return [step["loss"] for step in steps]


def main():
    options = options_of(__doc__,
                         prefix={"default": "", "help": "of the names of the programs for GPUs"},
                         native={"action": "store_true", "help": "NCCL's own sums too"})
    on_cpu = Programs(options.build, options.mpiexec)
    on_gpu = Programs(options.build, options.mpiexec, prefix=options.prefix)
    if why := on_gpu.why_no_gpu():
        print(why)
        return SKIPPED
    failed = 0
    print(f"{'largest difference of losses over 100 steps':<50}{'is':>10}{'bound':>10}")
    for name, task in TASKS.items():
        for dtype, bound in BOUNDS.items():
            args = [*task.split(), "--dtype", dtype]
            if dtype == "fp16":  # a step that is skipped on one side only would say nothing
                args += ["--loss-scale", "128"]
            rows = [("GPU against CPU",
                     losses(on_gpu, 1, *args, *gpu_options(PROGRAM, "mpi")),
                     losses(on_cpu, 1, *args, "--device", "cpu"))]
            # In fp16 NCCL's own sum overflows where ours does not, and a step more is skipped.
            if options.native and dtype != "fp16":
                rows.append(("NCCL's own sums, 3 ranks",
                             losses(on_gpu, 3, *args, *gpu_options(PROGRAM, "native")),
                             losses(on_gpu, 3, *args, *gpu_options(PROGRAM, "nccl"))))
            for what, ours, reference in rows:
                difference = max(abs(a - b) / b for a, b in zip(ours, reference, strict=True))
                failed += not difference <= bound
                print(f"{f'{what}, {name}, {dtype}':<50}{difference:>10.1e}{bound:>10.0e}"
                      f"{'' if difference <= bound else '  MISSED'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
