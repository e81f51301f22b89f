#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""How much of a traced run's messages, and of copies over the bus, passed beside computation.

A step's ms in which the device computed nothing (exposed) and something (hidden), layer by layer:
the largest of the ranks' medians. `./tutorial overlap TRACE`, of what a program wrote by --trace."""
import sys
from bisect import bisect_right
from collections import defaultdict

from recording import Trace
from runs import Failure, finish

TABLES = {"messages": ("forward", "backward", "update"), "copies": ("to_host", "to_device")}


def column(event):
    """In which a message or a copy counts: the phase that needs it, or its direction."""
    return event["args"]["phase"] if event["cat"] == "collective" else event["name"].split()[0]


def spans(events):
    """When the device computes: (begin, end) in order, what overlaps as one."""
    joined = []
    for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                             if event["cat"] == "compute" and event["stream"] != "host cores"):
        if not joined or joined[-1][1] < begin:
            joined.append([begin, end])
        joined[-1][1] = max(joined[-1][1], end)
    return joined


def steps_of(events):
    """One rank's {(column, layer): {step: [exposed, hidden]}} in ms; of all layers as None."""
    computing, times = spans(events), defaultdict(lambda: defaultdict(lambda: [0, 0]))
    ends = [end for _, end in computing]
    for event in events:
        if event["cat"] not in ("collective", "bus"):
            continue
        begin, end = event["ts"], event["ts"] + event["dur"]
        hidden, at = 0, bisect_right(ends, begin)
        while at < len(ends) and computing[at][0] < end:
            hidden += min(ends[at], end) - max(computing[at][0], begin)
            at += 1
        for layer in (None, event["args"].get("layer", "sums")):
            of_step = times[column(event), layer][event["args"]["step"]]
            of_step[0] += (end - begin - hidden) / 1e3
            of_step[1] += hidden / 1e3
    return times


def median(values):
    """As the programs take it: not of the first three steps, where there are more."""
    values = sorted(values[3:] if len(values) > 3 else values)
    return values[len(values) // 2]


def overlap(trace):
    """{(column, layer): [exposed, hidden]}: the largest of the ranks' medians."""
    times, found = [steps_of(events) for events in trace.events], {}
    steps = range(1, 1 + max(event["args"]["step"] for event in trace.events[0]))
    for key in {key for of_rank in times for key in of_rank}:
        found[key] = [max(median([of_rank[key][step][what] for step in steps])
                          for of_rank in times) for what in (0, 1)]
    return found


def tables(trace):
    found = overlap(trace)
    if not found:
        raise Failure("nothing is sent and nothing copied in these steps")
    for what, columns in TABLES.items():
        columns = [name for name in columns if (name, None) in found]
        rows = [layer for layer in (*range(len(trace.layers)), "sums", None)
                if any((name, layer) in found for name in columns)]
        if columns:
            yield f"{'ms of ' + what:<16}" + "".join(f"{name:^20}" for name in columns)
            yield f"{'of layer':<16}" + f"{'exposed':>10}{'hidden':>10}" * len(columns)
        for layer in rows:
            cells = [found.get((name, layer), ("", "")) for name in columns]
            yield f"  {'all' if layer is None else layer:<14}" + "".join(
                f"{ms:>10.2f}" if ms != "" else f"{'':>10}" for cell in cells for ms in cell)


if __name__ == "__main__":
    finish(lambda: print(*tables(Trace(*sys.argv[1:])), sep="\n"), "tutorial: overlap: ")
