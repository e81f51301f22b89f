# SPDX-License-Identifier: MIT
"""Says what a rank's time is spent on. An event is a slice of a trace, or a task that simulate.py
played: a dictionary with `name`, `ts`, its beginning, and `dur`, both in microseconds, `cat`, its
category as in a trace, and `stream`, its name. A span is a pair (begin, end), in microseconds."""
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict


def merged(spans):
    """Returns the spans in order; spans that overlap or touch become one."""
    found = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def outside(spans, others):
    """Yields, for each span, its pieces that lie in none of `others`, which merged() returned."""
    begins, ends = [begin for begin, _ in others], [end for _, end in others]
    for begin, end in spans:
        pieces = []
        for start, stop in others[bisect_right(ends, begin):bisect_left(begins, end)]:
            if begin < start:
                pieces.append((begin, start))
            begin = stop
        if begin < end:
            pieces.append((begin, end))
        yield pieces


def span(event):
    return event["ts"], event["ts"] + event["dur"]


def kind(event):
    """Returns what an event's time is spent on; "computation" is the device's. None for all other
    events: waits, phases, borrowing, and copies within the device, whose `cat` is "copy"."""
    if event["cat"] == "collective":
        return "messages"
    if event["cat"] == "bus":
        return "disk" if event["name"].partition(" ")[0] in ("read", "write") else "copies"
    if event["cat"] == "compute":
        return "host cores" if event["stream"] == "host cores" else "computation"
    return None


def exposed(events):
    """Yields each message, copy, read and write of one rank, with the pieces of its time in which
    the device computes nothing."""
    computing = merged(span(event) for event in events if kind(event) == "computation")
    moved = [event for event in events if event["cat"] in ("collective", "bus")]
    return zip(moved, outside(map(span, moved), computing))


def shares(events, begin=-math.inf, end=math.inf):
    """Returns {kind: ms} of one rank's events between two moments, in microseconds: one number for
    "computation", and [exposed, hidden] for "messages", "copies", "disk" and "host cores". If two
    events of a kind overlap, their common time counts once."""
    spans = defaultdict(list)
    for event in filter(kind, events):
        start, stop = span(event)
        if start < end and stop > begin:
            spans[kind(event)].append((max(start, begin), min(stop, end)))
    computing = merged(spans.pop("computation", []))
    found = {"computation": length(computing) / 1e3}
    for name, of in spans.items():
        whole = merged(of)
        alone = sum(map(length, outside(whole, computing)))
        found[name] = [alone / 1e3, (length(whole) - alone) / 1e3]
    return found


def length(spans):
    return sum(end - begin for begin, end in spans)


def median(values):
    """Returns the median as programs take it: without the first three values, if more follow."""
    values = sorted(values[3:] if len(values) > 3 else values)
    return values[len(values) // 2]
