#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""What of a traced run's messages, copies over the bus, reads and writes of its disk passed beside
computation.

`./tutorial overlap FILE`, of what a program wrote with --trace FILE: by layer the ms of a step in
which the device computed nothing (exposed) and something (hidden), the largest of the ranks'
medians. So is `all`, to which the rows need not add up."""
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict

from recording import Trace
from runs import Failure, finish

TABLES = {"messages": ("forward", "backward", "update"), "copies": ("to_host", "to_device"),
          "disk": ("read", "write")}


def exposed(events):
    """Of one rank: (message, copy, read or write, pieces of its time in which the device computes
    nothing)."""
    computing = []
    for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                             if event["cat"] == "compute" and event["stream"] != "host cores"):
        if not computing or computing[-1][1] < begin:
            computing.append([begin, end])
        computing[-1][1] = max(computing[-1][1], end)  # what overlaps counts once
    begins, ends = [begin for begin, _ in computing], [end for _, end in computing]
    for event in events:
        if event["cat"] in ("collective", "bus"):
            begin, pieces = event["ts"], []
            end = begin + event["dur"]
            for start, stop in computing[bisect_right(ends, begin):bisect_left(begins, end)]:
                pieces += [(begin, start)] if begin < start else []
                begin = stop
            yield event, pieces + [(begin, end)] * (begin < end)


def times_of(events):
    """One rank's {(column, layer): {step: [exposed, hidden]}}; of all layers as None."""
    times = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for event, pieces in exposed(events):
        args, alone = event["args"], sum(end - begin for begin, end in pieces)
        column = args["phase"] if event["cat"] == "collective" else event["name"].split()[0]
        for layer in (None, args.get("layer", "sums")):
            of_step = times[column, layer][args["step"]]
            of_step[0] += alone / 1e3
            of_step[1] += max(0, event["dur"] - alone) / 1e3
    return times


# Others have their own first one.
LETTERS = {"all_gather": "g", "to_host": "d", "to_device": "u", "read": "i", "write": "o"}


def slices_of(trace):
    """Rank 0's work on layers in its steps: (begin, end, stream, letter and layer, step)."""
    for event in trace.events[0]:
        if event.get("cat") in ("compute", "collective", "bus") and "layer" in event["args"] \
                and event["args"]["step"]:
            what = event["name"].partition(" ")[0]
            yield (event["ts"], event["ts"] + event["dur"], event["stream"],
                   f"{LETTERS.get(what, what[0])}{event['args']['layer']}", event["args"]["step"])


def median(values):
    """As the programs take it: not of the first three steps, where there are more."""
    values = sorted(values[3:] if len(values) > 3 else values)
    return values[len(values) // 2]


def overlap(trace):
    """{(column, layer): [exposed, hidden]}."""
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
                    f"{ms if ms == '-' else format(ms, '.2f'):>10}" for ms in cells)


if __name__ == "__main__":
    finish(lambda: print(*tables(Trace(*sys.argv[1:])), sep="\n"), "tutorial: overlap: ")
