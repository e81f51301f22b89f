#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Tells the first step of a recorded run in the order of its program, with its numbers.

`./tutorial narrate 04` runs chapter 04 for it; by hand: tools/narrate.py TRACE LOG."""
import sys
from collections import defaultdict

from recording import recording
from runs import PLACES, finish, memory_of, number, on, spaced

RANKS = 3
# The model of 12 parameters, on a CPU: of a GPU, and of many parameters, no numbers are recorded.
TINY = {"--task": "tiny", "--align": 1, "--steps": 1, "--device": "cpu"}
# What such work is for. Other work is not told by itself.
MEANINGS = {"forward": "with these parameters", "loss": "and its gradient by the outputs",
            "backward": "the gradient, of the rank's own samples",
            "reduce_scatter": "{} to each other rank, then the mean",
            "all_gather": "{} to each other rank", "divide": "by the number of micro-batches",
            "squared_norm": "of the gradient, for the norm of all",
            "add_squares": "of all layers, which the host has formed",
            "sums": "{} to each other rank, the loss and that sum",
            "adam": "the new weights, in fp32", "copy": "its own part into that",
            "to_host": "the gradient, over the bus", "to_device": "the weights, over the bus",
            "add": "what came down, to the gradient on the host",
            "read": "Adam's state, disk to slot {1}; here momentum",
            "write": "Adam's state, slot {1} to disk; here momentum"}
TOLD_KINDS = ("parameters", "gradients", "communication")  # of what is borrowed


class Memory:
    """What one rank has written so far: cells by what is held, or the slot that is lent."""

    def __init__(self, layers):
        self.layers, self.cells = layers, {}

    def layer(self, view):
        """All of its layer there; None where nothing is known."""
        place = view["of"], view.get("slot"), view["layer"]
        return self.cells.setdefault(place, [None] * self.layers[view["layer"]]["size"])

    def write(self, view):
        values = view.get("values", [None] * view["size"])  # those of padding are left out
        pads = ["pad"] * (view["size"] - len(values))
        self.layer(view)[view["start"]:view["start"] + view["size"]] = [*values, *pads]

    def row(self, view):
        """The view's cells among its layer's, as dots; nothing where a number is not known."""
        inside = range(view["start"], view["start"] + view["size"])
        cells = [cell if i in inside else "\u00b7" for i, cell in enumerate(self.layer(view))]
        return "" if None in cells else "".join(
            f"{cell:>7}" if isinstance(cell, str) else f" {cell:6.3f}" for cell in cells)


def what(event):
    return event["name"].partition(" of layer ")[0]


def head(trace, run):
    """The model, who owns and who holds what, what runs beside computation."""
    options, info = run.options, run.info
    ranks, samples, layers = (f"{count} {word}" + "s" * (count > 1) for count, word in (
        (run.ranks, "rank"), (options["batch"] * options["accumulate"], "sample"),
        (info["layers"], "layer")))
    model = "2 -> 2 with biases" if options["task"] == "tiny" else f"task {options['task']}"
    parameters = spaced(info["parameters"])
    yield f"{run.chapter}: a step of {parameters} parameters, {run.dtype}, on {ranks}"
    yield f"{layers} of {model}; {samples} per rank and step, learning rate {options['lr']:g}"
    yield "a row is a layer: its weights, row by row, and its biases; \u00b7 is elsewhere"
    yield f"on the right: the line of {run.chapter}/trainer.hpp (none: a scope ends)"
    yield ""
    if info["parameters"] <= 64:
        yield "which rank's part each element is in"
        for at, layer in enumerate(trace.layers):
            owners = [i // layer["shard"] if i < layer["parameters"] else "pad"
                      for i in range(layer["size"])]
            yield f"  layer {at}" + "".join(f"{owner:>7}" for owner in owners)
        yield ""
    yield "held throughout, by each rank"
    for held in trace.about["held"]:
        of = "optimizer, " * (held["kind"] == "optimizer") + held["of"]
        yield (f"  {of:<20}{spaced(held['elements']):>3} of {spaced(info['padded_parameters'])} in "
               f"{held['dtype']}, {spaced(held['bytes'])} bytes"
               + f", on its {held['place']}" * (held["place"] != "device"))
    beside = defaultdict(set)
    for event in trace.program(0, trace.steps[0]):
        if what(event) in MEANINGS:
            beside[event["stream"]].add(what(event))
    yield ""
    for stream in [stream for stream in beside if stream != "compute"]:
        yield f"{', '.join(sorted(beside[stream]))}: on a stream of their own, {stream}"
    if len(beside) > 1:
        yield "told in the order in which the host asks for it, which may be ahead of its use\n"


def sentence(event, ranks):
    """What an event is; nothing of what is not told."""
    args, task = event["args"], what(event)
    if event["ph"] == "X":
        layer = f"layer {args['layer']} " if "layer" in args else ""
        ahead = "" if args["phase"] == args["during"] else f" for {args['phase']}"
        views = args.get("reads", []) + args.get("writes", [])
        meaning = MEANINGS.get(task, "").format(
            spaced(args["elements"] // max(1, ranks - 1)),
            *(view["slot"] for view in views if "slot" in view))
        return meaning and f"  {layer}{task}{ahead}: {meaning}"
    if args["kind"] not in TOLD_KINDS:
        return ""
    slot = "".join(f" {'for' if task == 'borrow' else 'of'} layer {lent['layer']}, slot "
                   f"{lent['slot']}" for lent in args["lent"])
    return (f"  {task} {spaced(abs(args['bytes']))} bytes of {args['kind']}{slot}: "
            f"{spaced(args['in_use'][args['kind']])} in use")


def story(trace, run):
    """The step's events, each with the layer's numbers on all ranks where it has some."""
    memories = [Memory(trace.layers) for _ in trace.events]
    present, known = "", {}  # a layer's rows: the phase in which they were told
    for events in zip(*(trace.program(rank, 0, trace.steps[0]) for rank in range(run.ranks)),
                      strict=True):
        for memory, event in zip(memories, events):
            for view in event["args"].get("writes", []):
                memory.write(view)
        args, task = events[0]["args"], what(events[0])
        said = args["step"] and sentence(events[0], run.ranks)
        if not said:
            continue
        phase = {"setup": "start", "load": "forward"}.get(args["during"], args["during"])
        if phase != present:
            yield (present := phase)
        views = [(event["args"].get("writes") or event["args"].get("reads") or [None])[0]
                 for event in events]
        rows = [memory.row(view) for memory, view in zip(memories, views)
                if view and task != "squared_norm"]
        key = args.get("layer"), *rows
        if not any(rows):
            rows = []
        elif key in known:
            said += f" (as {'above' if known[key] == phase else 'in ' + known[key]})"
            rows = []
        else:
            known[key] = phase
        line = args["at"][0].rpartition(":")[2] if args["at"] else ""
        yield f"{said:<75}{line:>4}".rstrip()
        if len(rows) > 1 and len({*rows}) == 1:
            yield f"  all    {rows[0]}"
        else:
            yield from (f"  rank {rank} {row}" for rank, row in enumerate(rows))


def formulas(run):
    """Where the predicted figures come from."""
    yield "peaks in bytes, and elements sent in a step, by the chapter's formulas"
    for place in PLACES:
        for kind, row in memory_of(run.summary, place).items():
            if row.get("formula"):
                name = f"{place} {kind}" if on(place) else kind
                yield f"  {name:<20}{row['formula']} = {spaced(row['predicted'])}"
    for phase, row in run.summary["traffic"]["phases"].items():
        if run.ranks > 1:
            steps = sum(phase != "update" or not step.get("skipped")
                        for step in run.steps[-run.summary["steps"]:])
            sent = spaced(row["predicted"] // max(1, steps))
            yield f"  {'in ' + phase:<20}{row['formula']} = {sent}"


def told(trace, run):
    step = next((row for row in run.steps if row["step"] == trace.steps[0]), run.steps[0])
    return "\n".join([
        *head(trace, run), *story(trace, run),
        f"the mean loss is {number(step['loss'], '.5f')}, the norm of the mean gradient "
        f"{number(step['grad_norm'], '.5f')}", "", *formulas(run)])


if __name__ == "__main__":
    finish(lambda: print(told(*recording(sys.argv[1:], RANKS, TINY))), "tutorial: narrate: ")
