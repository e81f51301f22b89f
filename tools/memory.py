#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Shows the bytes in use after each phase of the first two recorded steps, and their formulas.
`./tutorial memory 06` runs chapter 06 for it; by hand: tools/memory.py TRACE LOG."""
import sys

from recording import recording
from runs import KINDS, Failure, finish, on, spaced
from trainers import Picture

RANKS = 4
PHASES = ("load", "forward", "backward", "update")
EVERY = ("start", *PHASES)


def phases(events):
    """Returns, for one rank, {(step, phase): (bytes in use by kind after the phase, peak of all
    kinds together within it)}, in program order. A phase ends in the step's last micro-batch."""
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
    """Yields (kind, phases after which these bytes are in use, bytes, formula in words). The
    chapter's card says what is held, and how many whole layers a window still has after a phase.
    The program's log predicts the peak of its activations, its data and a GPU's workspace."""
    options, n, w = run.options, run.ranks, 4 if run.dtype == "fp32" else 2
    card, unit = Picture(run.chapter, run.dtype), options["align"] * n
    sizes = [-(-layer["parameters"] // unit) * unit for layer in trace.layers]
    for column in card.places[0]:
        cut = n if column.share < 1 else 1
        words = f"{column.bytes} x {spaced(sum(sizes))}"
        yield (column.name, EVERY, column.bytes * sum(sizes) // cut,
               words if cut == 1 else f"{words}/{n}")
    borrowed, uses = card.says["borrowed"], len(sizes) * options["accumulate"]
    if borrowed["and_prefetched"]:
        earlier = uses - len(sizes)  # uses of a layer in the micro-batches before the last
        ahead = min(borrowed["parameters"] + options["prefetch"], 2 * uses) - 1
        on_their_way = borrowed["gradients"]  # slots, given back when backward has ended
        for kind, phase, layers in (("parameters", "load", min(ahead, earlier)),
                                    ("parameters", "forward", min(ahead, len(sizes))),
                                    ("gradients", "load", min(on_their_way, earlier)),
                                    ("gradients", "forward", min(on_their_way, earlier)),
                                    ("gradients", "backward", min(on_their_way, uses))):
            yield (kind, (phase,), w * layers * max(sizes),
                   f"+ {layers} x {w} x {spaced(max(sizes))}")
    activations = run.memory["activations"]
    if options["task"] == "llama":  # a llama reserves all its activations at once
        loaded = activations["predicted"], activations["formula"]
    else:
        inputs = 128 if options["task"] == "toy" else options["width"]
        loaded = w * options["batch"] * inputs, f"{w} x {options['batch']} x {inputs}"
    yield "activations", ("load",), *loaded
    yield "activations", ("forward",), activations["predicted"], activations["formula"]
    for kind in ("workspace", "data"):
        yield kind, EVERY, run.memory[kind]["predicted_resident"], run.memory[kind]["formula"]


def table(trace, run):
    """Yields lines on the rank with the highest peak; at the end a wrong count raises a Failure."""
    ranks = [phases(trace.program(rank, 0, *trace.steps[:2])) for rank in range(run.ranks)]
    rank = max(range(run.ranks), key=lambda rank: max(most for _, most in ranks[rank].values()))
    mine, parts = ranks[rank], [*terms(trace, run)]
    yield (f"{run.chapter}, {run.dtype}, task {run.options['task']}, "
           f"{spaced(run.info['parameters'])} parameters on {run.ranks} "
           f"{'rank' if run.ranks == 1 else 'ranks'}")
    yield f"bytes in use on rank {rank}, and on all ranks together, in program order"
    earlier = 0
    for step in trace.steps[:2]:
        columns, width = [(step, phase) for phase in PHASES], 28
        if step == trace.steps[0]:
            columns, width = [(0, "start"), *columns], 15
        sums = [sum(mine[at][0].values()) for at in columns]
        rows = {f"step {step}, after": [phase for _, phase in columns]}
        rows |= {f"  {kind}": [mine[at][0][kind] for at in columns] for kind in KINDS
                 if any(mine[at][0][kind] for at in columns)}
        rows |= {"  all together": sums,
                 "  change": [now - was for was, now in zip([earlier, *sums], sums)],
                 "  peak within": [mine[at][1] for at in columns],
                 "all ranks": [sum(sum(of[at][0].values()) for of in ranks) for at in columns],
                 "  their peaks": [sum(of[at][1] for of in ranks) for at in columns]}
        yield ""
        for label, cells in rows.items():
            # A number has spaces between thousands, if it then fits into 12 columns.
            texts = [str(cell) if isinstance(cell, str) or len(spaced(cell)) > 12 else spaced(cell)
                     for cell in cells]
            yield f"{label:<{width}}" + "".join(f" {text:>12}" for text in texts)
        earlier = sums[-1]
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
    for told in table(*recording(sys.argv[1:], RANKS, {"--steps": 2})):
        print(told)


if __name__ == "__main__":
    finish(main, "tutorial: memory: ")
