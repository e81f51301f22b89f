# SPDX-License-Identifier: MIT
"""What the programs' log and plan say, by the formulas."""
from programs import ALONE, CHAPTERS, KINDS, MIXED, OFFLOAD, ON_RANKS, WINDOW


def names_of_options(chapter):
    names = ("task data steps batch accumulate width layers lr beta1 beta2 eps weight-decay clip "
             "seed log quiet plan device device-memory").split()
    names += ["timeout", "trace", "memory", "narrate"]
    on_ranks = ["ranks", "comm", "reduce", "check-every", "link", "latency"]
    names += on_ranks if chapter in ON_RANKS else []
    names += ["dtype", "loss-scale"] if chapter in MIXED else []
    names += ["prefetch"] if chapter in WINDOW else []
    names += ["bus", "pageable"] if chapter == OFFLOAD else []
    return [f"--{name}" for name in names]


def check_run_line(run, chapter, ranks):
    named = {name[2:] for name in names_of_options(chapter)} - {"plan", "ranks"}
    assert set(run["options"]) == named
    options = {"width": 8, "layers": 2, "batch": 2, "steps": 5, "data": "text.txt", "lr": 2e-3}
    assert options.items() <= run["options"].items()
    sizes = [8 * 9, 256 * 9]
    padded = sum(-(-size // (8 * ranks)) * 8 * ranks for size in sizes)
    facts = {"chapter": chapter, "ranks": ranks, "dtype": "bf16" if chapter in MIXED else "fp32",
             "parameters": sum(sizes), "padded_parameters": padded, "layers": 2,
             "family": "every micro-batch" if chapter >= "05" else "once a step"}
    assert facts.items() <= run.items()
    assert bool(run["mpi"]) == (chapter != ALONE)


def check_summary_line(summary, chapter):
    memory, host, bus = (summary.get(key, {}) for key in ("memory", "host_memory", "bus"))
    total = memory.pop("total")
    assert total["peak"] > 0 and set(memory) == set(KINDS)
    offloads = chapter == OFFLOAD
    assert (set(host), set(bus)) == (({"optimizer", "communication"}, {"down", "up"}) if offloads
                                     else (set(), set()))
    for figures in (*memory.values(), *host.values()):
        peak, resident = figures.pop("predicted"), figures.pop("predicted_resident")
        assert figures == {"peak": peak, "reserved": peak, "resident": resident}
    traffic = summary["traffic"]
    assert set(traffic["phases"]) == {"forward", "backward", "update"}
    for row in (*traffic["phases"].values(), traffic["padding"], traffic["scalars"],
                *bus.values()):
        assert row["predicted"] == row["counted"]
    layers = [int(digest, 16) for digest in summary["layer_digests"]]
    assert len(set(layers)) == 2
    assert sum(layers) % 2**64 == int(summary["digest"], 16), "the sum of the layers'"
    assert summary["skipped_steps"] == 0 and summary["median_ms"] > 0


def formulas(chapter, n, a):
    """What parameters, gradients and optimizer are divided by, 0 where they lie elsewhere; whole
    layers of parameters and gradients at the peak; how often all of it is sent forward, backward
    and in the update."""
    return {
        "01": ((1, 1, 1), (0, 0), (0, 0, 0)), "04": ((1, 1, n), (0, 0), (0, 1, 1)),
        "05": ((1, n, n), (0, 1), (0, a, 1)), "06": ((n, n, n), (2, 2), (a, 2 * a, 0)),
        "07": ((n, n, 0), (2, 2), (a, 2 * a, 0)),
    }.get(chapter[:2], ((1, 1, 1), (0, 0), (0, 2, 0)))


def held(chapter, n, layers, dtype):
    """Bytes of a layer in the working type; of parameters, gradients, optimizer and data on each
    of n ranks: layers of 7 x 7 and a bias, 5 samples."""
    w, k = (4, 8) if dtype == "fp32" else (2, 12)
    layer = -(-(7 * 7 + 7) // (8 * n)) * 8 * n
    state = (size * layers * layer // part if part else 0
             for size, part in zip((w, w, k), formulas(chapter, n, 1)[0]))
    return w * layer, *state, 16 * (7 + 7) * 4 + 5 * 7 * 4


def expected_phases(chapter, n, layers, dtype, a, prefetch):
    """What is in use after each phase, by kind, of kinds that have bytes: layers of 7 x 7 and a
    bias, 5 samples, a micro-batches."""
    layer, *state, data = held(chapter, n, layers, dtype)
    start = dict(zip(("parameters", "gradients", "optimizer"), state)) | {"data": data}
    start = {kind: bytes for kind, bytes in start.items() if bytes}
    batch = 5 * 7 * (4 if dtype == "fp32" else 2)  # of inputs, or of the outputs of a layer

    def plus(gathered, formed, activations):
        more = {"parameters": layer * gathered, "gradients": layer * min(2, formed)}
        more = more if chapter in WINDOW else {}
        after = {kind: bytes + more.get(kind, 0) for kind, bytes in start.items()}
        return after | ({"activations": batch * activations} if activations else {})

    formed = layers * (a - 1)  # gradients of the micro-batches before
    return {"start": start, "load": plus(min(prefetch, 2 * layers) if a > 1 else 0, formed, 1),
            "forward": plus(min(prefetch, layers), formed, layers + 1 + 2),
            "backward": plus(0, layers * a, 0), "update": start}


def device_bytes(chapter, n, dtype):
    """{kind: (held throughout, at the peak)} on the device: three layers of 7 x 7 and a bias, 5
    samples."""
    whole = formulas(chapter, n, 1)[1]
    layer, params, grads, optimizer, data = held(chapter, n, 3, dtype)
    w = 4 if dtype == "fp32" else 2
    return {"parameters": (params, params + whole[0] * layer),
            "gradients": (grads, grads + whole[1] * layer), "optimizer": (optimizer, optimizer),
            "communication": (0, layer // n * (n - 1)),
            "activations": (0, 5 * (4 * 7 + 2 * 7) * w), "data": (data, data)}


def expected_plan(chapter, n, dtype, a):
    """The rows by the formulas: three layers of 7 x 7 and a bias, 5 samples, a micro-batches."""
    sent = formulas(chapter, n, a)[2]
    kinds = device_bytes(chapter, n, dtype)
    layer = held(chapter, n, 3, dtype)[0]
    w = 4 if dtype == "fp32" else 2
    full = 3 * layer // w
    state = sum(kinds[kind][0] for kind in ("parameters", "gradients", "optimizer")) / full
    shard, places, host = full // n, "", []
    if chapter == OFFLOAD:
        places = f" on the device {(12 + w) / n:g} on its host"
        host = ["on its host", f"optimizer {12 * shard:,} {12 * shard:,}",
                f"communication {w * shard:,} {w * shard:,}",
                *(f"{name} {w * shard:,} {w} x 1/{n}"
                  for name in ("down, gradients", "up, parameters"))]
    return [
        f"bytes of state a parameter: {state:g}{places}",
        *(f"{kind} {held:,} {peak:,}" for kind, (held, peak) in kinds.items()), *host,
        f"padding, all ranks {sum(sent) * (full - 3 * 56) * (n - 1):,}",
        f"scalars {2 * (n - 1)}",
        *(f"{phase} {times * full // n * (n - 1):,} {times} x {n - 1}/{n}"
          for phase, times in zip(("forward", "backward", "update"), sent))]
