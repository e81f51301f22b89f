#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Bytes in use after each phase of the first two recorded steps, beside what the card predicts.

`./tutorial memory 06` runs chapter 06 for it; by hand: tools/memory.py TRACE LOG."""
import sys

from recording import recording
from runs import KINDS, Failure, finish, on, spaced
from trainers import Picture

RANKS = 4
TWO_STEPS = {"--steps": 2}
PHASES = ("load", "forward", "backward", "update")
EVERY = ("start", *PHASES)


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


def terms(trace, run):
    """(kind, phases after which it is in use, bytes, where they come from): what is held by the
    chapter's card, and the whole layers of a window, which outlive a phase. Activations at their
    most, data and a GPU's workspace are what the program predicts."""
    options, n, w = run.options, run.ranks, 4 if run.dtype == "fp32" else 2
    card, unit = Picture(run.chapter, run.dtype), options["align"] * n
    sizes = [-(-layer["parameters"] // unit) * unit for layer in trace.layers]
    for column in card.places[0]:
        cut = n if column.share < 1 else 1
        yield (column.name, EVERY, column.bytes * sum(sizes) // cut,
               f"{column.bytes} x {spaced(sum(sizes))}" + f"/{n}" * (cut > 1))
    borrowed, uses = card.says["borrowed"], len(sizes) * options["accumulate"]
    if borrowed["and_prefetched"]:
        earlier = uses - len(sizes)  # in the micro-batches before the last
        ahead = min(borrowed["parameters"] + options["prefetch"], 2 * uses) - 1
        on_their_way = borrowed["gradients"]  # which the update waits for
        for kind, phase, layers in (("parameters", "load", min(ahead, earlier)),
                                    ("parameters", "forward", min(ahead, len(sizes))),
                                    ("gradients", "load", min(on_their_way, earlier)),
                                    ("gradients", "forward", min(on_their_way, earlier)),
                                    ("gradients", "backward", min(on_their_way, uses))):
            yield (kind, (phase,), w * layers * max(sizes),
                   f"+ {layers} x {w} x {spaced(max(sizes))}")
    activations = run.memory["activations"]
    if options["task"] == "llama":  # its room is one
        loaded = activations["predicted"], activations["formula"]
    else:
        inputs = 128 if options["task"] == "toy" else options["width"]
        loaded = w * options["batch"] * inputs, f"{w} x {options['batch']} x {inputs}"
    yield "activations", ("load",), *loaded
    yield "activations", ("forward",), activations["predicted"], activations["formula"]
    for kind in ("workspace", "data"):
        yield kind, EVERY, run.memory[kind]["predicted_resident"], run.memory[kind]["formula"]


def table(trace, run):
    ranks = [phases(trace.program(rank, 0, *trace.steps[:2])) for rank in range(run.ranks)]
    rank = max(range(run.ranks), key=lambda rank: max(most for _, most in ranks[rank].values()))
    mine, parts = ranks[rank], [*terms(trace, run)]
    yield (f"{run.chapter}, {run.dtype}, task {run.options['task']}, "
           f"{spaced(run.info['parameters'])} parameters on {run.ranks} rank{'s'[:run.ranks - 1]}")
    yield f"bytes in use on rank {rank}, and on all ranks together, in program order"
    start = (0, "start")
    for step in trace.steps[:2]:
        first = step == trace.steps[0]
        columns = [start] * first + [(step, phase) for phase in PHASES]
        label = 15 if first else 28

        def line(name, cells):
            # From a thousand million on without spaces: in at most 12 columns.
            cells = [cell if isinstance(cell, str) else
                     spaced(cell) if len(spaced(cell)) <= 12 else str(cell) for cell in cells]
            return f"{name:<{label}}" + "".join(f" {cell:>12}" for cell in cells)

        sums = [sum(mine[at][0].values()) for at in columns]
        earlier = 0 if first else sum(mine[step - 1, "update"][0].values())
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
    figures = [(kind, step, phase, in_use[kind],
                sum(bytes for of, its, bytes, _ in parts if of == kind and phase in its))
               for (step, phase), (in_use, _) in mine.items() for kind in KINDS]
    figures = [figure for figure in figures if any(figure[3:])]
    wrong = [figure for figure in figures if figure[3] != figure[4]]
    yield (f"\nafter a phase, by kind: {len(figures) - len(wrong)} of {len(figures)} figures equal "
           "these formulas")
    after = {}
    for kind, its, bytes, words in sorted(parts, key=lambda part: KINDS.index(part[0])):
        if bytes:
            after.setdefault((kind, words, bytes), []).extend(its)
    for (kind, words, bytes), its in after.items():
        when = "" if its == [*EVERY] else ", after " + ", ".join(its)
        yield f"  {kind:<15}{words} = {spaced(bytes)}{when}"
    for place, held in [*run.places.items()][1:]:
        yield f"all the time{on(place)}, by their formulas"
        for kind in KINDS:
            if bytes := held[kind]["resident"]:
                yield f"  {kind:<15}{held[kind]['formula']} = {spaced(bytes)}"
    for kind, step, phase, counted, formula in wrong[:1]:
        raise Failure(f"bytes of {kind} after {phase} of step {step}: {counted} in use, {formula} "
                      "by formula", 5)


def main():
    for line in table(*recording(sys.argv[1:], RANKS, TWO_STEPS)):
        print(line)


if __name__ == "__main__":
    finish(main, "tutorial: memory: ")
