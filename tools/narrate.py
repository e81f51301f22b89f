#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Tells the first step of a recorded run in the order of its program, with its numbers.

`./tutorial narrate 04` runs chapter 04 for it; by hand: tools/narrate.py TRACE LOG."""
import sys

from recording import recording
from runs import WIDTH, finish, spaced

RANKS = 3
# The model of 12 parameters, on a CPU: of a GPU no numbers are recorded.
TINY = {"--task": "tiny", "--align": 1, "--steps": 1, "--device": "cpu"}
# What such work is for. Other work is not told by itself.
MEANINGS = {"forward": "with these parameters", "loss": "and its gradient by the outputs",
            "backward": "the gradient, of the rank's own samples",
            "reduce_scatter": ", then the mean", "all_gather": "",
            "divide": "by the number of micro-batches",
            "squared_norm": "of the gradient, for the norm of all",
            "sums": ", the loss and that sum", "adam": "the new weights, in fp32",
            "copy": "its own part into that", "to_host": "to the host",
            "to_device": "to the device"}
SHOWN = {"borrow": "for", "give back": "of"}  # and whose layer


class Memory:
    """What one rank's views hold, by what was written so far."""

    def __init__(self, layers):
        self.layers, self.cells = layers, {}

    def layer(self, view):
        """All cells of that layer, in what is held or in the slot that is lent."""
        place = view["of"], view.get("slot"), view["layer"]
        return self.cells.setdefault(place, [None] * self.layers[view["layer"]]["size"])

    def write(self, view):
        written = view.get("values", [])
        pads = view["size"] - len(written)
        self.layer(view)[view["start"]:view["start"] + view["size"]] = [*written, *["pad"] * pads]

    def row(self, view):
        """The layer's elements side by side, those outside of the view as dots; or nothing, where
        no numbers are recorded."""
        inside = range(view["start"], view["start"] + view["size"])
        cells = [cell if i in inside else "\u00b7" for i, cell in enumerate(self.layer(view))]
        return "" if None in cells else "".join(
            f"{cell:>7}" if isinstance(cell, str) else f" {cell:6.3f}" for cell in cells)


def head(trace, run):
    """The model, who owns and who holds what, and what runs beside computation."""
    options, parameters = run.options, run.info["parameters"]
    ranks = f"{run.ranks} rank" + "s" * (run.ranks > 1)
    samples = options["batch"] * options["accumulate"]
    yield f"{run.chapter}: a step of {spaced(parameters)} parameters, {run.dtype}, on {ranks}"
    yield (f"task {options['task']}, {run.info['layers']} layers; {samples} sample"
           f"{'s' * (samples > 1)} a rank and step, learning rate {options['lr']:g}")
    yield "a row is a layer: its weights, row by row, and its biases; \u00b7 is elsewhere"
    yield f"on the right: the line of {run.chapter}/trainer.hpp that asks for it"
    if parameters <= 64:
        yield "\nwhich rank's part each element is in"
        for number, layer in enumerate(trace.layers):
            owners = [i // layer["shard"] if i < layer["parameters"] else "pad"
                      for i in range(layer["size"])]
            yield f"  layer {number}" + "".join(f"{owner:>7}" for owner in owners)
    yield "\nheld throughout, by each rank"
    for held in trace.about["held"]:
        what = "optimizer, " * (held["kind"] == "optimizer") + held["of"]
        where = ", on its host" * (held["place"] == "host")
        yield (f"  {what:<20}{spaced(held['elements']):>3} of "
               f"{spaced(run.info['padded_parameters'])} in {held['dtype']}, "
               f"{spaced(held['bytes'])} bytes{where}")
    beside = {}
    for event in trace.program(0, 1):
        if event["stream"] not in ("host", "compute"):
            beside.setdefault(event["stream"], {})[event["name"].partition(" of ")[0]] = True
    if beside:
        yield ""
    for stream, works in beside.items():
        yield f"{', '.join(sorted(works))}: on a stream of their own, {stream}"
    if beside:
        yield "told in the order in which the host asks for it, which may be ahead of its use"
    yield ""


def sentence(event, ranks):
    """What an event is, and whether it shows numbers; nothing of what is not told."""
    args, what = event["args"], event["name"].partition(" of ")[0]
    if event["ph"] == "i":
        view, = args["lent"] or [{}]
        whose = f" {SHOWN[what]} layer {view['layer']}, slot {view['slot']}" if view else ""
        now = spaced(args["in_use"][args["kind"]])
        told = args["kind"] in ("parameters", "gradients", "communication")
        return told and (f"  {what} {spaced(abs(args['bytes']))} bytes of {args['kind']}{whose}: "
                         f"{now} in use")
    if what not in MEANINGS:
        return ""
    where = f"layer {args['layer']} " if "layer" in args else ""
    ahead = "" if args["phase"] == args["during"] else f" for {args['phase']}"
    sent = f"{spaced(args['elements'] // max(1, ranks - 1))} to each other rank"
    return f"  {where}{what}{ahead}: {sent * (event['cat'] == 'collective')}{MEANINGS[what]}"


def story(trace, run):
    """The step's events, each with the layer's numbers on all ranks where it has some."""
    memories = [Memory(trace.layers) for _ in trace.events]
    phase, known = "", {}  # a layer's rows: the phase in which they were told
    for events in zip(*(trace.program(rank, 0, 1) for rank in range(run.ranks)), strict=True):
        event, args = events[0], events[0]["args"]
        for memory, of_rank in zip(memories, events):
            for view in of_rank["args"].get("writes", []):
                memory.write(view)
        said = args["step"] == 1 and sentence(event, run.ranks)
        if not said:
            continue
        during = "forward" if args["during"] == "load" else args["during"]
        if during != phase:
            yield (phase := during)
        views = [(of["args"].get("writes") or of["args"].get("reads") or [None])[0]
                 for of in events]
        shows = "layer" in args and event["name"].partition(" ")[0] != "squared_norm"
        rows = [memory.row(view) if shows and view else ""
                for memory, view in zip(memories, views)]
        if any(rows) and (key := (args["layer"], *rows)) in known:
            said += f" (as {'above' if known[key] == phase else 'in ' + known[key]})"
            rows = []
        elif any(rows):
            known[key] = phase
        yield f"{said:<{WIDTH - 5}}{args['at'][0].rpartition(':')[2]:>4}"
        if any(rows) and run.ranks > 1 and len({*rows}) == 1:
            yield f"  all    {rows[0]}"
        elif any(rows):
            yield from (f"  rank {rank} {row}" for rank, row in enumerate(rows))


def formulas(run):
    """Where the predicted figures come from."""
    yield "peaks in bytes, and elements sent in a step, by the chapter's formulas"
    for place, memory in (("", run.memory), ("host ", run.summary.get("host_memory", {}))):
        for kind, row in memory.items():
            if row.get("formula"):
                yield f"  {place + kind:<20}{row['formula']} = {spaced(row['predicted'])}"
    for phase, row in run.summary["traffic"]["phases"].items():
        if run.ranks > 1:
            figure = row["predicted"] // run.taken
            yield f"  {'in ' + phase:<20}{row['formula']} = {spaced(figure)}"


def told(trace, run):
    """All of it, as text."""
    step = run.steps[0]
    end = (f"the mean loss is {step['loss']:.5f}, the norm of the mean gradient "
           f"{step['grad_norm']:.5f}")
    return "\n".join([*head(trace, run), *story(trace, run), end, "", *formulas(run)])


if __name__ == "__main__":
    finish(lambda: print(told(*recording(sys.argv[1:], RANKS, TINY))), "tutorial: narrate: ")
