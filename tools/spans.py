# SPDX-License-Identifier: MIT
"""What a rank's time is spent on, by the events of a trace that ran or was played: a slice has its
beginning `ts` and its duration `dur`, both in microseconds, a category `cat` and its `stream`."""
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict

DISK = ("read", "write")


def merged(spans):
    """In order; what overlaps counts once."""
    found = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def outside(spans, others):
    """Of each span, the pieces of it that lie in none of the others, which are merged."""
    begins, ends = [begin for begin, _ in others], [end for _, end in others]
    for begin, end in spans:
        pieces = []
        for start, stop in others[bisect_right(ends, begin):bisect_left(begins, end)]:
            pieces += [(begin, start)] if begin < start else []
            begin = stop
        yield pieces + [(begin, end)] * (begin < end)


def span(event):
    return event["ts"], event["ts"] + event["dur"]


def kind(event):
    """What an event's time is spent on; None where it is neither computed nor sent nor copied."""
    sort, name = event.get("cat"), event["name"].partition(" ")[0]
    return {"collective": "messages", "bus": "disk" if name in DISK else "copies",
            "compute": "host cores" if event.get("stream") == "host cores" else "computation"}.get(
                sort)


def exposed(events):
    """Of one rank: (message, copy, read or write, pieces of its time in which the device computes
    nothing)."""
    computing = merged(span(event) for event in events if kind(event) == "computation")
    moved = [event for event in events if event["cat"] in ("collective", "bus")]
    return zip(moved, outside(map(span, moved), computing))


def shares(events, begin=-math.inf, end=math.inf):
    """Of one rank between two moments, each moment counted once, in ms: how long the device
    computed; of messages, copies, the disk and the host's cores how long they were [exposed,
    hidden]."""
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
    """As the programs take it: not of the first three steps, where there are more."""
    values = sorted(values[3:] if len(values) > 3 else values)
    return values[len(values) // 2]
