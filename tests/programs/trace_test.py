# SPDX-License-Identifier: MIT
"""--trace, read back: what its format promises, what the chapter had to do, what the log counted.

Then, on a link and a bus slow enough to be sure, that as many gathers run under compute as
--prefetch promises, and that gradients go down beside backward; on GPUs that is overlap.cpp's. With
--prefix simulated_gpu_ the rest on simulated GPUs.
"""
import itertools
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import ALONE, KINDS, options_on, read_log

LAYERS = 4
TRACED = 8  # steps
SMALL = ["--task", "mlp", "--layers", LAYERS, "--batch", 4]
# Ranks (0: without mpirun), program, micro-batches, steps, width, own options. Adam of wide layers
# takes long beside copies up, which it must not hide.
RUNS = [
    (0, ALONE, 2, 3, 24, []),
    (2, "02_distributed_adam", 1, 10, 24, []),
    (3, "04_zero1", 2, 2, 24, ["--link", "0.1"]),
    (2, "05_zero2", 2, 5, 24, []),
    (2, "06_zero3", 1, 5, 24, ["--prefetch", 0]),
    (3, "06_zero3", 2, 5, 24, ["--prefetch", 1, "--latency", 100]),
    (2, "07_offload", 1, 5, 400, ["--bus", 0.1]),
    (3, "07_offload", 2, 5, 24, ["--bus", 0.01, "--link", 1, "--prefetch", 2]),
    (2, "07_offload", 3, 4, 24, ["--dtype", "fp32", "--prefetch", 0])]
# A message takes 5 ms, a copy 2 to 4, in which its thread sleeps; a layer, of which forward is the
# shorter, takes 10 ms on an idle core: so what may begin with a layer's computation is under way
# before that ends.
SLOW_LINK_US = 5000
SLOW_BUS = 0.001  # GB/s
# Program, its link or bus, what passes, beside what it is to pass, and which of a step's do.
BESIDE = [
    # The first is beside the update of later layers; the last layer's second beside the loss.
    ("06_zero3", ["--latency", SLOW_LINK_US, "--prefetch", 0], "all_gather", "", {0, LAYERS}),
    ("06_zero3", ["--latency", SLOW_LINK_US, "--prefetch", 1], "all_gather", "",
     set(range(2 * LAYERS))),
    # All but the first layer's, the last to come.
    ("07_offload", ["--bus", SLOW_BUS], "to_host", "backward", set(range(LAYERS - 1)))]


@dataclass
class Slice:
    """Times in nanoseconds."""
    name: str
    cat: str
    begin: int
    end: int
    args: dict


class Trace:
    """One file: the slices by rank and track, the ranks' bytes in use; in the order of the file."""

    def __init__(self, path):
        read = json.loads(Path(path).read_text(), parse_constant=int)  # which throws
        assert set(read) == {"displayTimeUnit", "traceEvents", "otherData"}
        self.about = read["otherData"]
        self.ranks = range(self.about["ranks"])
        self.tracks, self.counters, self.names = defaultdict(dict), [], {}
        for event in read["traceEvents"]:
            rank, tid, args = event["pid"], event["tid"], event["args"]
            if event["ph"] == "M":
                self.names[event["name"], rank, tid] = args["name"]
                if event["name"] == "thread_name":
                    self.tracks[rank][args["name"]] = []
            elif event["ph"] == "C":
                self.counters.append(args)
            else:
                assert event["ph"] == "X", event
                begin, length = (round(event[key] * 1000) for key in ("ts", "dur"))
                self.tracks[rank][self.names["thread_name", rank, tid]].append(
                    Slice(event["name"], event["cat"], begin, begin + length, args))

    def streams(self, rank):
        return [slice for name, track in self.tracks[rank].items() if name != "host"
                for slice in track]

    def of(self, rank, cat):
        """Of that category; of those that compute, on the device."""
        return [slice for name, track in self.tracks[rank].items()
                if name not in ("host", "host cores") for slice in track if slice.cat == cat]


# ---- What the format promises; its times, and which waits it leaves out, are report_test.cpp's ---

def check_nesting(track):
    """In the file what comes first began first, and contains what begins with it."""
    within = []
    for slice in track:
        while within and within[-1].end <= slice.begin:
            within.pop()
        if within:
            outer = within[-1]
            assert outer.begin <= slice.begin and slice.end <= outer.end, f"{outer} {slice}"
        within.append(slice)


def check_host(track, steps, micro):
    assert {slice.args["step"] for slice in track} <= set(range(steps + 1))
    for step in range(1, steps + 1):
        of_step = [slice for slice in track if slice.args["step"] == step]
        around, = (slice for slice in of_step if slice.cat == "step")
        phases = [slice for slice in of_step if slice.cat == "phase"]
        assert around.name == f"step {step}"
        assert (around.begin, around.end) == (phases[0].begin, phases[-1].end)
        assert ([slice.name for slice in phases] ==
                ["forward", "load", "backward"] * micro + ["update"])


def check_tasks(trace, rank, micro, steps):
    """As many as layers, micro-batches and steps demand."""
    seen = Counter((slice.args["step"], slice.name) for slice in trace.streams(rank))
    tasks = {"load": micro, "loss": micro}
    for layer in range(LAYERS):
        tasks |= {f"forward of layer {layer}": micro, f"backward of layer {layer}": micro,
                  f"adam of layer {layer}": 1}
    for step, (task, count) in itertools.product(range(1, steps + 1), tasks.items()):
        assert seen[step, task] == count


def check_traffic(trace, rank, log):
    """Bytes of collectives are the elements that were counted, times their width."""
    width, sent = 4 if log[0]["dtype"] == "fp32" else 2, Counter()
    for slice in trace.streams(rank):
        if slice.cat == "collective" and slice.name != "sums":
            sent[slice.name.split()[0], slice.args["phase"]] += slice.args["bytes"]
            assert slice.args["bytes"] == width * slice.args["elements"]
    for collective, phases in log[2]["traffic"]["collectives"].items():
        for phase, elements in phases.items():
            assert sent[collective, phase] == elements * width


def check_bus(trace, rank, log):
    """Bytes over the bus are those that were counted: gradients come down in backward, parameters
    go up in the update. After what they do so is the schedules' (tests/ranks)."""
    copied = Counter()
    for slice in trace.of(rank, "bus"):
        way = slice.name.split()[0]
        copied[way] += slice.args["bytes"]
        assert slice.args["phase"] == {"to_host": "backward", "to_device": "update"}[way]
    counted = {way: row["counted"] for way, row in log[2].get("bus", {}).items()}
    assert copied == counted
    cores = [slice for slice in trace.tracks[rank].get("host cores", []) if slice.cat == "compute"]
    assert {slice.name.split()[0] for slice in cores} == ({"adam"} if counted else set())


def check_times(trace, log):
    """Where nothing passes, in a phase or a direction of the bus, the log has no time; where layers
    pass, it has some (the two sums alone may take less than it counts). What is hidden of it is
    trace_test.cpp's, the slowest rank's median report_test.cpp's."""
    rows = [("collective", phase, row) for phase, row in log[2]["traffic"]["phases"].items()]
    rows += [("bus", way, row) for way, row in log[2].get("bus", {}).items()]
    passed = {(slice.cat, what) for rank in trace.ranks for slice in trace.streams(rank)
              for what in (slice.args["phase"], slice.name.split()[0])}
    for cat, what, row in rows:
        time, counted = row["exposed_ms"] + row["hidden_ms"], row["counted"]
        assert time == 0 or (cat, what) in passed, what
        if cat == "collective" or log[0]["options"]["bus"] > 0:  # else a copy may take no time
            assert time > 0 or not counted, what


@pytest.fixture
def way(programs):
    """Of talking, on simulated GPUs; None on the CPU."""
    return "mpi" if programs.prefix else None


@pytest.fixture
def traced(programs, folder, way):
    """The trace and the log of a run."""
    def run(ranks, chapter, *args):
        outcome = programs.run(ranks, chapter, *args, *options_on(way, chapter), "--quiet",
                               "--trace", "trace", "--log", "log", cwd=folder)
        assert (outcome.code, outcome.out) == (0, ""), outcome
        return Trace(folder / "trace"), read_log(folder / "log")
    return run


@pytest.mark.parametrize("ranks, chapter, micro, steps, width, args", RUNS)
def test_traces(traced, ranks, chapter, micro, steps, width, args):
    trace, log = traced(ranks, chapter, *SMALL, "--accumulate", micro, "--steps", steps,
                        "--width", width, *args)
    run, traced_steps = log[0], min(steps, TRACED)
    facts = {"chapter": chapter, "ranks": max(ranks, 1), "dtype": run["dtype"]}
    assert facts.items() <= trace.about.items()
    assert set(trace.tracks) == set(trace.ranks)
    for kind in KINDS:
        assert max(of[kind] for of in trace.counters) == log[2]["memory"][kind]["peak"], kind
    for rank in trace.ranks:
        assert trace.names["process_name", rank, 0] == f"rank {rank}"
        for name, track in trace.tracks[rank].items():
            assert track, f"nothing on {name}, whose place is schedules_test.cpp's"
            check_nesting(track)
        check_host(trace.tracks[rank]["host"], traced_steps, micro)
        check_tasks(trace, rank, micro, traced_steps)
        if steps <= TRACED:
            check_traffic(trace, rank, log)
            check_bus(trace, rank, log)
    check_times(trace, log)


@pytest.mark.parametrize("micro, looked_at", ((4096, True), (4097, False)))
def test_many_micro_batches(programs, way, micro, looked_at):
    """A step of very many layers is not looked at, unless it is asked for."""
    summary = programs.logged(
        2, "02_distributed_adam", "--task", "mlp", "--layers", 1, "--width", 1, "--batch", 1,
        "--steps", 1, "--accumulate", micro, *options_on(way, "02_distributed_adam"))[2]
    for phase in summary["traffic"]["phases"].values():
        assert (phase["exposed_ms"] is not None) == (looked_at and not way)


@pytest.mark.parametrize("chapter, slow, what, task, promised", BESIDE)
def test_what_is_slow_passes_beside_compute(traced, chapter, slow, what, task, promised):
    """What never does is a matter of order, and exact. What may does it in one of the ranks' steps,
    on cores that others use too."""
    trace, _ = traced(2, chapter, "--task", "mlp", "--layers", LAYERS, "--batch", 32768, "--width",
                      64, "--steps", TRACED, *slow)
    seen = []
    for rank, step in itertools.product(trace.ranks, range(1, TRACED + 1)):
        computing = [slice for slice in trace.of(rank, "compute") if slice.name.startswith(task)]
        passing = [slice for slice in trace.streams(rank)
                   if slice.args["step"] == step and slice.name.startswith(f"{what} of layer")]
        seen.append({place for place, slice in enumerate(passing)
                     if any(slice.begin < other.end and other.begin < slice.end
                            for other in computing)})
        assert seen[-1] <= promised, f"at most {promised}"
    assert set.union(*seen) == promised, seen
    for slice in trace.streams(0):
        if slice.cat == "collective" and what == "all_gather":
            assert slice.end - slice.begin > 999 * SLOW_LINK_US, slice
