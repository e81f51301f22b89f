# SPDX-License-Identifier: MIT
"""What the programs' log and plan say, by the formulas."""
from programs import ALONE, CHAPTERS, KINDS, ON_RANKS

MIXED = CHAPTERS[2:]


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def names_of_options(chapter):
    names = ("task data steps batch accumulate width layers lr beta1 beta2 eps weight-decay clip "
             "seed log quiet plan device").split()
    names += ["timeout", "trace", "memory"]
    names += ["ranks", "comm", "reduce", "check-every", "link", "latency"] if chapter in ON_RANKS else []
    names += ["dtype", "loss-scale"] if chapter in MIXED else []
    names += ["prefetch"] if chapter == "06_zero3" else []
    return [f"--{name}" for name in names]


def check_run_line(run, chapter, ranks):
    named = {name[2:] for name in names_of_options(chapter)} - {"plan", "ranks"}
    expect(set(run["options"]) == named, f"every option expected: {run}")
    options = {"width": 8, "layers": 2, "batch": 2, "steps": 5, "data": "text.txt", "lr": 2e-3}
    expect(options.items() <= run["options"].items(), f"{options} expected: {run}")
    sizes = [8 * 9, 256 * 9]
    padded = sum(-(-size // (8 * ranks)) * 8 * ranks for size in sizes)
    facts = {"chapter": chapter, "ranks": ranks, "dtype": "bf16" if chapter in MIXED else "fp32",
             "parameters": sum(sizes), "padded_parameters": padded, "layers": 2,
             "family": "every micro-batch" if chapter[:2] in ("05", "06") else "once a step"}
    expect(facts.items() <= run.items(), f"{facts} expected: {run}")
    expect(bool(run["mpi"]) == (chapter != ALONE), f"the MPI in use expected: {run}")


def check_summary_line(summary):
    memory = summary["memory"]
    total = memory.pop("total")
    expect(total["peak"] > 0 and set(memory) == set(KINDS), f"kinds of memory: {summary}")
    for figures in memory.values():
        peak, resident = figures.pop("predicted"), figures.pop("predicted_resident")
        expect(figures == {"peak": peak, "reserved": peak, "resident": resident}, f"{memory}")
    traffic = summary["traffic"]
    expect(set(traffic["phases"]) == {"forward", "backward", "update"}, f"phases: {traffic}")
    for row in (*traffic["phases"].values(), traffic["padding"], traffic["scalars"]):
        expect(row["predicted"] == row["counted"], f"as predicted: {traffic}")
    layers = [int(digest, 16) for digest in summary["layer_digests"]]
    expect(len(set(layers)) == 2 and sum(layers) % 2**64 == int(summary["digest"], 16),
           f"the digest is the sum of the layers': {summary}")
    expect(summary["skipped_steps"] == 0 and summary["median_ms"] > 0, f"the rest: {summary}")


def expected_plan(chapter, n, dtype, a):
    """The rows by the formulas: three layers of 7 x 7 and a bias, 5 samples, a micro-batches."""
    w, k = (4, 8) if dtype == "fp32" else (2, 12)
    layer = -(-(7 * 7 + 7) // (8 * n)) * 8 * n
    full = 3 * layer
    # What parameters, gradients and optimizer are divided by; whole layers of parameters and
    # gradients at the peak; how often all of it is sent forward, backward and in the update.
    parts, whole, sent = {
        "01": ((1, 1, 1), (0, 0), (0, 0, 0)), "04": ((1, 1, n), (0, 0), (0, 1, 1)),
        "05": ((1, n, n), (0, 1), (0, a, 1)), "06": ((n, n, n), (2, 2), (a, 2 * a, 0)),
    }.get(chapter[:2], ((1, 1, 1), (0, 0), (0, 2, 0)))
    params, grads, optimizer = (size * full // part for size, part in zip((w, w, k), parts))
    data = 16 * (7 + 7) * 4 + 5 * 7 * 4
    return [
        f"bytes of state a parameter: {(params + grads + optimizer) / full:g}",
        f"parameters {params:,} {params + whole[0] * w * layer:,}",
        f"gradients {grads:,} {grads + whole[1] * w * layer:,}",
        f"optimizer {optimizer:,} {optimizer:,}",
        f"communication 0 {w * layer // n * (n - 1):,}",
        f"activations 0 {5 * (4 * 7 + 2 * 7) * w:,}",
        f"data {data:,} {data:,}",
        f"padding, all ranks {sum(sent) * (full - 3 * 56) * (n - 1):,}",
        f"scalars {2 * (n - 1)}",
        *(f"{phase} {times * full // n * (n - 1):,} {times} x {n - 1}/{n}"
          for phase, times in zip(("forward", "backward", "update"), sent))]
