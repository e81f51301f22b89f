# SPDX-License-Identifier: MIT
"""Made-up logs, for the tests of the comparison and of the demo."""
import copy
import json
import struct

from programs import KINDS

PARAMETERS, LAYERS = 1024, 4
LOSSES = [4.0, 3.5, 2.5, 2.25]


def bytes_of(held):
    return dict.fromkeys(("predicted", "predicted_resident", "resident", "reserved", "peak"), held)


def made(chapter="05_zero2", ranks=4, dtype="fp32", losses=LOSSES, device="cpu", **options):
    """A log's lines: run, steps, summary. 04 to 07 hold 1/ranks of 16 bytes a parameter, 07 half of
    it on the host, with staging and, in fp32, master weights."""
    offload = chapter > "07"
    held = 4 * PARAMETERS // (ranks if chapter > "04" else 1)
    own = {"task": "text", "data": "", "width": 16, "layers": LAYERS, "steps": len(losses),
           "batch": 8, "accumulate": 1, "lr": 0.002, "clip": 0.0, "seed": 1, "log": "a",
           "quiet": True, "reduce": "ordered"} | ({"prefetch": 1} if chapter > "06" else {}) | \
        ({"bus": 0.0} if offload else {})
    own |= {name.replace("_", "-"): value for name, value in options.items()}
    run = {"chapter": chapter, "ranks": ranks, "dtype": dtype, "mpi": "MPICH", "device": device,
           "family": "every micro-batch" if chapter > "05" else "once a step", "gpu": None,
           "comm": "mpi" if ranks > 1 else None, "options": own, "parameters": PARAMETERS,
           "padded_parameters": PARAMETERS, "layers": LAYERS}
    memory = {kind: bytes_of(held * of) for kind, of in
              zip(KINDS, (1, 1, 0 if offload else 2, *[0] * 4))}
    memory["total"] = bytes_of((2 if offload else 4) * held)
    steps = [{"step": step, "loss": loss, "grad_norm": 1.0, "skipped": False, "ms": 2.0}
             for step, loss in enumerate(losses, 1)]
    sent = 2 * PARAMETERS * (ranks - 1) // ranks * len(losses)
    nothing = {"predicted": 0, "counted": 0}
    summary = {"memory": memory, "skipped_steps": 0, "median_ms": 2.0, "digest": "ab",
               "layer_digests": ["aa"] * LAYERS, "recorded": None,
               "traffic": {"phases": {"forward": nothing, "update": nothing,
                                      "backward": {"predicted": sent, "counted": sent}},
                           "padding": nothing, "scalars": nothing}}
    if offload:
        copied = {"predicted": held * len(losses), "counted": held * len(losses),
                  "exposed_ms": 0.5, "hidden_ms": 0.25}
        summary |= {"bus": {"to_host": copied, "to_device": copied}, "host_memory": {
            "optimizer": bytes_of((3 if dtype == "fp32" else 2) * held),
            "communication": bytes_of(held)}}
    return copy.deepcopy([{"run": run}, *steps, {"summary": summary}])


def text_of(lines):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def flipped(lines, step, layer=1):
    """One bit of a loss changed, and a layer's digest."""
    pattern = struct.unpack(">I", struct.pack(">f", lines[step]["loss"]))[0] ^ 1
    lines[step]["loss"] = struct.unpack(">f", struct.pack(">I", pattern))[0]
    lines[-1]["summary"]["layer_digests"][layer] = "bb"
    return lines
