# SPDX-License-Identifier: MIT
"""What --trace writes, read back."""
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from expected import expect
from runs import no_constant


@dataclass
class Slice:
    """Times in nanoseconds."""
    name: str
    cat: str
    begin: int
    end: int
    args: dict

    def overlap(self, other):
        return max(0, min(self.end, other.end) - max(self.begin, other.begin))


class Trace:
    """One file: the slices by rank and track, the counters by rank, in the order of the file."""

    def __init__(self, path):
        read = json.loads(Path(path).read_text(), parse_constant=no_constant)
        expect(set(read) == {"displayTimeUnit", "traceEvents", "otherData"}, f"keys: {set(read)}")
        self.about = read["otherData"]
        self.ranks = range(self.about["ranks"])
        self.tracks, self.counters, self.names = defaultdict(dict), defaultdict(list), {}
        for event in read["traceEvents"]:
            rank, tid, time = event["pid"], event["tid"], round(event.get("ts", 0) * 1000)
            expect(time >= 0, f"no event comes before the first: {event}")
            if event["ph"] == "M":
                self.names[event["name"], rank, tid] = event["args"]["name"]
                if event["name"] == "thread_name":
                    self.tracks[rank][event["args"]["name"]] = []
            elif event["ph"] == "C":
                self.counters[rank].append((time, event["args"]))
            else:
                expect(event["ph"] == "X", f"no such event: {event}")
                self.tracks[rank][self.names["thread_name", rank, tid]].append(Slice(
                    event["name"], event["cat"], time, time + round(event["dur"] * 1000),
                    event["args"]))

    def streams(self, rank):
        return [slice for name, track in self.tracks[rank].items() if name != "host"
                for slice in track]

    def of(self, rank, cat):
        """Of that category; of those that compute, on the device."""
        return [slice for name, track in self.tracks[rank].items()
                if name not in ("host", "host cores") for slice in track if slice.cat == cat]
