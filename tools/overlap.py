#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Shows which messages, copies over the bus, reads and writes of the disk ran beside computation.
`./tutorial overlap FILE` reads what a program wrote with --trace FILE. By layer it shows for how
many ms of a step these ran while the device computed nothing (exposed) or something (hidden): the
largest of the ranks' medians over the steps. The row `all` is such a median too, so the layers'
rows need not add up to it. With --link and the like replay.py plays the same step on another
machine. profiled.py reads traces of torch.profiler."""
from collections import defaultdict

from planner.line import Parser
from planner.machine import number
from profiled import Profile
from profiled import tables as profiled
from recording import Trace
from replay import Replay, measured, usual
from runs import Failure, finish
from simulate import Machine
from spans import exposed, median, span

# {option: (kind of number in notes/options.json, unit)}
ASKED = {"link": ("SPEED", "GBIT/S"), "latency": ("TIME", "MICROSECONDS"),
         "bus": ("SPEED", "GB/S"), "disk": ("SPEED", "GB/S"), "prefetch": ("LAYERS", "N")}
TABLES = {"messages": ("forward", "backward", "update"), "copies": ("to_host", "to_device"),
          "disk": ("read", "write")}


def times_of(events):
    """Returns a rank's {(column, layer, "sums" or None: all): {step: [exposed, hidden]}}, in ms."""
    times = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for event, pieces in exposed(events):
        args, alone = event["args"], sum(end - begin for begin, end in pieces)
        column = args["phase"] if event["cat"] == "collective" else event["task"]
        for layer in (None, args.get("layer", "sums")):
            of_step = times[column, layer][args["step"]]
            of_step[0] += alone / 1e3
            of_step[1] += max(0, event["dur"] - alone) / 1e3
    return times


# By task: its letter in a picture. The letter of any other task is its first one.
LETTERS = {"all_gather": "g", "to_host": "d", "to_device": "u", "read": "i", "write": "o"}


def slices_of(trace):
    """Yields rank 0's work on layers: (*span(event), stream, letter and layer, step)."""
    for event in trace.events[0]:
        if event["cat"] in ("compute", "collective", "bus") and event["args"]["step"] \
                and event["layer"] is not None:
            letter = LETTERS.get(event["task"], event["task"][0])
            yield (*span(event), event["stream"], f"{letter}{event['layer']}",
                   event["args"]["step"])


def overlap(trace):
    """Returns {(column, layer): [exposed, hidden]}: the largest of the ranks' medians, in ms."""
    times = [times_of(events) for events in trace.events]
    return {key: [max(median([of_rank[key][step][which] for step in trace.steps])
                      for of_rank in times) for which in (0, 1)]
            for key in {key for of_rank in times for key in of_rank}}


def tables(trace):
    found = overlap(trace)
    if not found:
        raise Failure("nothing is sent and nothing copied in these steps")
    yield f"{trace.about['chapter']} on {len(trace.events)} ranks, ms of a step"
    for what, columns in TABLES.items():
        columns = [name for name in columns if (name, None) in found]
        if columns:
            yield f"\n{what:<16}" + "".join(f"{name:>20}" for name in columns)
            yield f"{'  of layer':<16}" + f"{'exposed':>10}{'hidden':>10}" * len(columns)
        for layer in (*range(len(trace.layers)), "sums", None):
            cells = [ms for name in columns for ms in found.get((name, layer), "--")]
            if any(ms != "-" for ms in cells):
                yield f"  {'all' if layer is None else layer:<14}" + "".join(
                    f"{ms if ms == '-' else format(ms, 'z.2f'):>10}" for ms in cells)


def played(trace, given):
    """Yields rank 0's medians: as the steps ran, as played, as played with the options `given`."""
    prefetch = given.pop("prefetch", None)
    asked = Replay(trace, Machine(**given), prefetch)
    if prefetch is not None and not asked.card.prefetches:
        raise Failure(f"--prefetch: {asked.card.name} gathers no layer ahead", 2)
    runs = {"as it ran": usual(measured(trace)),
            "played, as it was": usual(Replay(trace, Machine()).steps()),
            "played, as asked": usual(asked.steps())}
    yield f"{trace.about['chapter']} on {len(trace.events)} ranks, ms of a step: rank 0's medians"
    yield f"\n{'':<20}" + "".join(f"{name:>20}" for name in runs)
    for what in runs["as it ran"]:
        if any(run[what] > 0 for run in runs.values()):
            yield f"{what:<20}" + "".join(f"{run[what]:>z20.2f}" for run in runs.values())


def main():
    parser = Parser(
        "overlap", "./tutorial overlap FILE [OPTION...]", allow_abbrev=False,
        description="Shows what ran beside computation, from a trace that a program wrote with "
        "--trace FILE, or torch.profiler in any job. With an option: how long that program's step "
        "would take on such a machine, if its computation took as long as it did.")
    parser.add_argument("file")
    for name, (kind, unit) in ASKED.items():
        parser.add_argument(f"--{name}", metavar=unit,
                            type=lambda text, of=(f"--{name}", kind): number(of[0], text, of[1]))
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    file = given.pop("file")
    profile = Profile(file)
    if not profile.ours and given:
        raise Failure(f"--{next(iter(given))}: {file} is torch.profiler's, which does not say who "
                      "waits for whom: only traces of these programs can be played again", 2)
    if not profile.ours:
        lines = profiled(profile)
    elif given:
        lines = played(Trace(file), given)
    else:
        lines = tables(Trace(file))
    print(*lines, sep="\n")


if __name__ == "__main__":
    finish(main, "tutorial: overlap: ")
