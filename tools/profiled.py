# SPDX-License-Identifier: MIT
"""Shows what ran beside computation in any PyTorch job. It reads one rank's trace, written by
torch.profiler with `prof.export_chrome_trace(FILE)` or tensorboard_trace_handler (.gz or not).

On a GPU, kernels whose names begin with "nccl" are messages, all other kernels are computation, and
cudaMemcpy's between host and device are copies. On a CPU, gloo's operations are messages and aten's
are computation; an aten operation on gloo's thread during a message is a part of that message."""
import gzip
import json
import re
import zlib
from collections import defaultdict
from pathlib import Path

from runs import Failure
from spans import exposed, kind, length, merged, shares, span

COPIES = {"Memcpy HtoD": "to_device", "Memcpy DtoH": "to_host"}
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # the profiler's categories


class Profile:
    """`events` are messages, copies and computation in the form that spans.py reads. `steps` counts
    calls of profiler.step(), and `period` is the ms of one step. If a program of this repository
    wrote the trace, `ours` is True, and nothing else is set."""

    def __init__(self, path):
        """Throws Failure if the file is no trace, or has no messages."""
        try:
            data = Path(path).read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            read = json.loads(data.decode(json.detect_encoding(data), "replace"))
            self.ours = "chapter" in read.get("otherData", {})
            if self.ours:
                return
            about = read.get("distributedInfo", {})
            slices = [event for event in read["traceEvents"] if event.get("ph") == "X"]
            self.rank, self.ranks = about.get("rank", 0), about.get("world_size", 1)
            self.on_gpu = any(event.get("cat") in ON_GPU for event in slices)
            names = {event["tid"]: re.sub(r"thread \d+ \((.*)\)", r"\1",
                                          event["args"]["name"].strip())
                     for event in read["traceEvents"] if event["name"] == "thread_name"}
            self.events = [*self.own(slices, names)]
            steps = [span(event) for event in slices if event["name"].startswith("ProfilerStep#")
                     and event.get("cat") == "user_annotation"]
        except (AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError,
                ValueError, zlib.error):
            raise Failure(f"{path} cannot be read as a trace, of these programs or of "
                          "torch.profiler", 3) from None
        if not any(kind(event) == "messages" and event["dur"] for event in self.events):
            raise Failure(f"{path} has no messages: neither kernels of NCCL nor gloo's. Profile a "
                          "step on several ranks, with ProfilerActivity.CUDA on a GPU", 3)
        self.marked, self.steps = bool(steps), len(steps) or 1
        # The host runs ahead of a GPU, so its marks do not say how long the GPU took.
        spans = merged(steps if steps and not self.on_gpu else map(span, self.events))
        self.period = (spans[-1][1] - spans[0][0]) / 1e3 / self.steps

    def own(self, slices, names):
        """Yields an event for each message, copy and computation. names: {stream: name}."""
        busy = defaultdict(float)  # by stream: when its last message ends
        for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
            category, name, args = event.get("cat"), event["name"], event.get("args", {})
            stream, what = args.get("stream", event["tid"]), None
            if category == "kernel" and name.startswith("nccl"):
                what, name = "collective", collective(name, args)
            elif not self.on_gpu and category == "user_annotation" and name.startswith("gloo:"):
                what, name = "collective", name[5:]
            elif category == "gpu_memcpy" and name[:11] in COPIES:
                what, name = "bus", COPIES[name[:11]]
            elif category in ON_GPU or (not self.on_gpu and name.startswith("aten::")):
                what = "compute" if event["ts"] >= busy[stream] else None
            if what == "collective":
                busy[stream] = event["ts"] + event["dur"]
            if what:
                yield {"name": name, "cat": what, "ts": event["ts"], "dur": event["dur"],
                       "stream": names.get(stream, f"stream {stream}")}


def collective(name, args):
    """Returns "all_gather" for ncclDevKernel_AllGather_RING_LL(...) or, in older versions of NCCL,
    ncclKernel_AllGather... A generic kernel has the collective's name in `args`, if anywhere."""
    found = re.match(r"nccl\w*?Kernel_([A-Za-z]+)", name)
    if not found or found[1] == "Generic":
        return args.get("Collective name", "generic")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()


def tables(profile):
    """Yields lines that say how long each kind of message and of copy was exposed, and hidden."""
    events, steps = profile.events, profile.steps
    parts = shares(events)
    yield (f"rank {profile.rank} of {profile.ranks}: {steps} step{'s' * (steps > 1)} of "
           f"{profile.period:.2f} ms, computation {parts.pop('computation', 0) / steps:.2f} ms"
           + ("" if profile.marked else "; the trace marks no step, so this is all of it"))
    for what, (alone, beside) in sorted(parts.items(), reverse=True):
        yield (f"{what} exposed {alone / steps:.2f} ms ({alone / steps / profile.period:.1%}), "
               f"hidden {beside / steps:z.2f} ms")
    by = defaultdict(list)
    for event, alone in exposed(events):
        by[kind(event), event["name"]].append((event["dur"], length(alone), event["stream"]))
    yield f"\n{'of a step':<20}{'number':>8}{'ms':>10}{'exposed':>10}{'hidden':>10}  on streams"
    for (_, name), own in sorted(by.items(), key=lambda row: (row[0][0] != "messages", row[0])):
        whole, alone = (sum(event[at] for event in own) / 1e3 / steps for at in (0, 1))
        streams = sorted({stream for *_, stream in own})
        yield (f"  {name:<18}{len(own) / steps:>8.1f}{whole:>10.2f}{alone:>10.2f}"
               f"{whole - alone:>z10.2f}  {', '.join(streams)}")
    yield ("\nA message lasts from when this rank began it: what it waits for later ranks is in "
           "it.\nMessages beside one another count once above the table.")
