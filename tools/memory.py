#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Bytes in use after each phase of the first two recorded steps, beside what the card predicts.

`./tutorial memory 06` runs chapter 06 for it; by hand: tools/memory.py TRACE LOG."""
import sys

from recording import recording
from runs import KINDS, finish, spaced
from trainers import Card

RANKS = 4
TWO_STEPS = {"--steps": 2}
PHASES = ("load", "forward", "backward", "update")
# The inputs of a sample; of other tasks as many as --width says.
INPUTS = {"toy": 128}


def phases(events):
    """Of a rank: {(step, phase): (bytes in use after it, by kind, and the most within it)}, by the
    program's order, not the clock's. Of several micro-batches a phase ends with the last one's."""
    found, in_use = {}, 0
    for event in events:
        args = event["args"]
        before, in_use = in_use, sum(args["in_use"].values())
        if args["step"] == 0:
            found[0, "start"] = args["in_use"], in_use
        elif args["during"] in PHASES:
            key = args["step"], args["during"]
            _, most = found.get(key, (None, before))
            found[key] = args["in_use"], max(most, in_use)
    return found


def predicted(trace, run):
    """{kind: {phase: bytes}} and {kind: words}: what is held by the chapter's card, whole layers
    that outlive a phase, activations; of data what the program predicts."""
    options, n = run.options, run.ranks
    card, unit = Card(run.chapter, run.dtype), options["align"] * n
    sizes = [-(-layer["parameters"] // unit) * unit for layer in trace.layers]
    bytes_of = {kind: dict.fromkeys(("start", *PHASES), 0) for kind in KINDS}
    words = {}
    for column in card.places[0]:
        cut = n if column.share < 1 else 1
        bytes_of[column.name] = dict.fromkeys(("start", *PHASES), column.bytes * sum(sizes) // cut)
        words[column.name] = f"{column.bytes} x {spaced(sum(sizes))}" + f"/{n}" * (cut > 1)
    # A window: its layers gathered ahead, and gradients on their way, which the update awaits.
    borrowed, uses = card.says["borrowed"], len(sizes) * options["accumulate"]
    width = 4 if run.dtype == "fp32" else 2
    if borrowed["and_prefetched"]:
        earlier = uses - len(sizes)  # in micro-batches before the last
        ahead = min(borrowed["parameters"] + options["prefetch"], 2 * uses) - 1
        formed = borrowed["gradients"]
        whole = {("parameters", "load"): min(ahead, earlier),
                 ("parameters", "forward"): min(ahead, len(sizes)),
                 ("gradients", "load"): min(formed, earlier),
                 ("gradients", "forward"): min(formed, earlier),
                 ("gradients", "backward"): min(formed, uses)}
        for (kind, phase), layers in whole.items():
            bytes_of[kind][phase] += width * layers * max(sizes)
            if layers:
                words[kind] += f"; after {phase} + {layers} x {width} x {spaced(max(sizes))}"
    activations = run.memory["activations"]
    bytes_of["activations"]["forward"] = activations["predicted"]
    inputs = INPUTS.get(options["task"], options["width"])
    bytes_of["activations"]["load"] = activations["predicted"] if options["task"] == "llama" else \
        width * options["batch"] * inputs
    words["activations"] = f"after forward {activations['formula']}" + (
        "" if options["task"] == "llama" else f"; after load {width} x {options['batch']} x {inputs}")
    for kind in ("data", "workspace"):
        bytes_of[kind] = dict.fromkeys(bytes_of[kind], run.memory[kind]["predicted_resident"])
    words["data"] = run.memory["data"]["formula"]
    return bytes_of, words


def table(trace, run):
    ranks = [phases(trace.program(rank, 0, 1, 2)) for rank in range(run.ranks)]
    rank = max(range(run.ranks), key=lambda rank: max(most for _, most in ranks[rank].values()))
    mine, (by_card, words) = ranks[rank], predicted(trace, run)
    yield f"bytes in use on rank {rank}, and on all ranks together, in program order"
    start = (0, "start")
    for step in sorted({step for step, _ in mine} - {0}):
        columns = [start] * (step == 1) + [(step, phase) for phase in PHASES]
        label = 15 if step == 1 else 28

        def line(name, cells):
            # From a thousand million on without spaces: in at most 12 columns.
            cells = [cell if isinstance(cell, str) else
                     spaced(cell) if len(spaced(cell)) <= 12 else str(cell) for cell in cells]
            return f"{name:<{label}}" + "".join(f" {cell:>12}" for cell in cells)

        sums = [sum(mine[at][0].values()) for at in columns]
        earlier = 0 if step == 1 else sum(mine[step - 1, "update"][0].values())
        yield ""
        yield line(f"step {step}, after", [phase for _, phase in columns])
        for kind in KINDS:
            if any(mine[at][0][kind] for at in columns):
                yield line(f"  {kind}", [mine[at][0][kind] for at in columns])
        yield line("  all together", sums)
        yield line("  change", [now - was for was, now in zip([earlier, *sums], sums)])
        yield line("  peak within", [mine[at][1] for at in columns])
        yield line("all ranks", [sum(sum(of[at][0].values()) for of in ranks) for at in columns])
        yield line("  their peaks", [sum(of[at][1] for of in ranks) for at in columns])
    figures = [(in_use[kind], by_card[kind][phase]) for (_, phase), (in_use, _) in mine.items()
               for kind in KINDS if in_use[kind] or by_card[kind][phase]]
    equal = sum(counted == formula for counted, formula in figures)
    yield f"\nafter a phase, by kind: {equal} of {len(figures)} figures equal the chapter's formulas"
    for kind, formula in words.items():
        yield f"  {kind:<15}{formula}"


if __name__ == "__main__":
    finish(lambda: print(*table(*recording(sys.argv[1:], RANKS, TWO_STEPS)), sep="\n"),
           "tutorial: memory: ")
