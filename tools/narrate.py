#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Tells the first step of a recorded run, event by event, with its numbers.
`./tutorial narrate 04` runs chapter 04 for it; by hand: tools/narrate.py TRACE LOG."""
import re
import sys
from collections import defaultdict

from recording import Memory, recording
from runs import PLACES, Failure, finish, memory_of, number, on, spaced
from sentences import say

RANKS = 3
# The model of 12 parameters, on the CPU: numbers are recorded only there, and of small models only.
TINY = {"--task": "tiny", "--align": 1, "--steps": 1, "--device": "cpu"}
TOLD_KINDS = ("parameters", "gradients", "communication")  # the story tells who borrows these
SAMPLES = {"load": ("x", "t"), "forward": ("y",), "loss": ("dy",)}  # by task: a sample's numbers


def counted(count, word):
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def head(trace, run):
    """Yields lines on the model, on which rank owns and holds what, and on the streams."""
    options, info = run.options, run.info
    ranks, layers = counted(run.ranks, "rank"), counted(info["layers"], "layer")
    samples = counted(options["batch"] * options["accumulate"], "sample")
    model = "2 -> 2 with biases" if options["task"] == "tiny" else f"task {options['task']}"
    parameters = spaced(info["parameters"])
    yield f"{run.chapter}: a step of {parameters} parameters, {run.dtype}, on {ranks}"
    yield f"{layers} of {model}; {samples} per rank and step, learning rate {options['lr']:g}"
    yield "a row is a layer: its weights, row by row, and its biases; \u00b7 is elsewhere"
    yield f"on the right: the line of {run.chapter}/trainer.hpp"
    yield ""
    if info["parameters"] <= 64:
        yield "which rank's part each element is in"
        for at, layer in enumerate(trace.layers):
            owners = [i // layer["shard"] if i < layer["parameters"] else "pad"
                      for i in range(layer["size"])]
            yield f"  layer {at}" + "".join(f"{owner:>7}" for owner in owners)
        yield ""
    if options["task"] == "tiny":
        yield "of the first sample: layer 0 takes x, each layer gives y to the next one,"
        yield "t is what the last y should be, dy the gradient of the loss by that y; the last"
        yield "layer's gradient is dy[r] x its input[c] at row r, column c, and dy[r] at bias r\n"
    yield "held throughout, by each rank"
    for held in trace.about["held"]:
        of = f"optimizer, {held['of']}" if held["kind"] == "optimizer" else held["of"]
        where = "" if held["place"] == "device" else f", on its {held['place']}"
        yield (f"  {of:<20}{spaced(held['elements']):>3} of {spaced(info['padded_parameters'])} in "
               f"{held['dtype']}, {spaced(held['bytes'])} bytes{where}")
    tasks_on, slots = defaultdict(set), slot_names(trace)
    for event in trace.program(0, trace.steps[0]):
        if event["ph"] == "X" and sentence(event, run.ranks, slots):
            tasks_on[event["stream"]].add(event["task"])
    yield ""
    for stream in [stream for stream in tasks_on if stream != "compute"]:
        yield f"{', '.join(sorted(tasks_on[stream]))}: on a stream of their own, {stream}"
    if len(tasks_on) > 1:
        yield "told in program order: layers may be gathered ahead of use\n"


def slot_kind(view):
    """Returns what kind of slot holds the view, in the words that watch's page uses."""
    if view["of"] not in ("parameters", "gradients"):
        return "piece"  # of a state on the disk, while the host has it in memory
    return "landing" if view.get("place") == "host" else f"{view['of'].removesuffix('s')} slot"


def slot_names(trace):
    """Returns {(kind of slot, number in the trace): name}. A kind's first is "gradient slot 0"."""
    args = [event["args"] for event in trace.events[0]]
    views = [view for of in args for key in ("reads", "writes", "lent") for view in of.get(key, [])]
    found = sorted({(slot_kind(view), view["slot"]) for view in views if "slot" in view})
    return {of: f"{of[0]} {at - [kind for kind, _ in found].index(of[0])}"
            for at, of in enumerate(found)}


def sentence(event, ranks, slots):
    """Returns the line on an event; "" if the story leaves it out. slots: of slot_names()."""
    args, task = event["args"], event["task"]
    if event["ph"] == "X":  # work; otherwise memory is borrowed or given back
        used = [slots[slot_kind(view), view["slot"]]
                for view in args.get("reads", []) + args.get("writes", []) if "slot" in view]
        meaning = say("short", {task}, each=spaced(args["elements"] // max(1, ranks - 1)),
                      slot=used[0] if used else "")
        layer = "" if event["layer"] is None else f"layer {event['layer']} "
        ahead = "" if args["phase"] == args["during"] else f" for {args['phase']}"
        return meaning and f"  {layer}{task}{ahead}: {meaning}"
    if args["kind"] not in TOLD_KINDS:
        return ""
    size, what = f"{spaced(abs(args['bytes']))} bytes", ""
    for lent in args["lent"]:
        what += (f"{slots[slot_kind(lent), lent['slot']]} "
                 f"{'for' if task == 'borrow' else 'of'} layer {lent['layer']}, ")
    what += size if what else f"{size} of {args['kind']}"
    ends = "" if args["at"] or task == "borrow" else " (its scope ends)"
    return f"  {task} {what}: {spaced(args['in_use'][args['kind']])} in use{ends}"


def row(memory, view):
    """Returns the layer's numbers in the view, with dots for the others; "" if one is unknown."""
    inside = range(view["start"], view["start"] + view["size"])
    cells = [cell if i in inside else "\u00b7" for i, cell in enumerate(memory.layer(view))]
    return "" if None in cells else "".join(map(decimal, cells))


def decimal(cell):
    """Returns a number or a word in seven characters."""
    if not isinstance(cell, str):
        cell = f"{cell:.0e}" if 0 < abs(cell) < 0.01 else f"{cell:z.3f}"
    return f" {cell:>6}"


def of_sample(event, samples):
    """Returns what a task writes of a rank's first sample, by name; "" if the trace lacks it."""
    values = event["args"].get("samples", [])
    if None in sum(values, []):
        return ""
    return "".join(f"{name:>4}{''.join(map(decimal, all_of[:len(all_of) // samples]))}"
                   for name, all_of in zip(SAMPLES.get(event["task"], ()), values))


def story(trace, run):
    """Yields the lines of the first step, event by event, with the layer's numbers on all ranks."""
    memories = [Memory(trace.layers) for _ in trace.events]
    slots = slot_names(trace)
    present, known = "", {}  # known: {(layer, its rows): the phase in which they were told}
    for events in trace.moments(0, trace.steps[0]):
        for memory, event in zip(memories, events):
            for view in event["args"].get("writes", []):
                memory.write(view)
        args = events[0]["args"]
        said = args["step"] and sentence(events[0], run.ranks, slots)
        if not said:
            continue
        phase = {"setup": "start", "load": "forward"}.get(args["during"], args["during"])
        if phase != present:
            yield (present := phase)
        views = [(event["args"].get("writes") or event["args"].get("reads") or [None])[0]
                 for event in events]
        rows = [row(memory, view) for memory, view in zip(memories, views)
                if view and events[0]["task"] != "squared_norm"]  # which only reads what was told
        key = events[0]["layer"], *rows
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
            yield from (f"  rank {rank} {cells}" for rank, cells in enumerate(rows))
        samples = [of_sample(event, run.options["batch"]) for event in events]
        if any(samples):
            yield from (f"  rank {rank}{cells}" for rank, cells in enumerate(samples))


def followed(trace, run, layer, element):
    """Yields a line for each task that uses an element: where it is, and its value by rank."""
    shard = trace.layers[layer]["shard"]
    yield f"{run.chapter}, {run.dtype}: element {element} of layer {layer}, in rank " \
          f"{element // shard}'s part"
    memories, slots = [Memory(trace.layers) for _ in trace.events], slot_names(trace)
    present, told = "", []
    for events in trace.moments(0, trace.steps[0]):
        event, rows = events[0], []
        for memory, each in zip(memories, events):
            for view in each["args"].get("writes", []):
                memory.write(view)
        places = [each["args"].get("writes") or each["args"].get("reads", []) for each in events]
        if event["layer"] == layer and event["task"] != "squared_norm":
            rows += [(views[0], [value_at(memory, view, element)
                                 for memory, view in zip(memories, views)])
                     for views in zip(*places)]
        for lent in event["args"].get("lent", []):
            if lent["layer"] == layer and event["args"]["kind"] in TOLD_KINDS:
                rows.append((lent, []))
        during = event["args"]["during"]
        phase = {"setup": "start", "load": "forward"}.get(during, during)
        needs = event["args"].get("phase", during)
        task = event["task"] + (f" for {needs}" if needs not in (during, "setup") else "")
        if task == "sums":
            told.append(f"{'' if phase == present else phase:<10}{task:<24}"
                        "of loss and norm: a rank waits for all")
            present = phase
        for view, values in rows:
            where = slots[slot_kind(view), view["slot"]] if "slot" in view else view["of"]
            where = f"{view['of']}, {where}" if where.startswith("piece") else where
            line = f"{'' if phase == present else phase:<10}{task:<24}{where}"
            present = phase
            told.append((f"{line:<52}" + "".join(f" {value:>8}" for value in values)).rstrip())
    if any(line.endswith(")") or ") " in line for line in told):
        yield "in parentheses: stored, but not used by this event"
    if len({event["stream"] for event in trace.program(0, trace.steps[0])} - {"host"}) > 1:
        yield "in program order: layers may be gathered ahead, the last one twice in a row"
    yield f"{'':<52}" + "".join(f"{f'rank {rank}':>9}" for rank in range(run.ranks))
    yield from told


def value_at(memory, view, element):
    """Returns the element's number; in parentheses if it is stored there but not in the view; a dot
    if it is not stored, ? if it is not known."""
    value = memory.layer(view)[element]
    if view["start"] <= element < view["start"] + view["size"]:
        return "?" if value is None else decimal(value).strip()
    return "\u00b7" if value is None else f"({decimal(value).strip()})"


def formulas(run):
    """Yields the chapter's formulas for the peaks of memory and for what is sent in a step."""
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


def main():
    words, which = sys.argv[1:], None
    if "--follow" in words:
        at = words.index("--follow")
        which = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", " ".join(words[at + 1:at + 2]))
        if not which:
            raise Failure("--follow needs a layer and an element of it, as 1.2", 2)
        del words[at:at + 2]
    trace, run = recording(words, RANKS, TINY)
    if not which:
        return print(told(trace, run))
    layer, element = map(int, which.groups())
    sizes = [of["parameters"] for of in trace.layers]
    if layer >= len(sizes) or element >= sizes[layer]:
        raise Failure(f"--follow {which[0]}: this model has elements from 0.0 to "
                      f"{len(sizes) - 1}.{sizes[-1] - 1}", 2)
    print(*followed(trace, run, layer, element), sep="\n")


if __name__ == "__main__":
    finish(main, "tutorial: narrate: ")
