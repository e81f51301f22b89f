#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""--trace, read back: what its format promises, what the chapter had to do, what the log counted.

Then, on a link slow enough to be sure, that as many gathers run under compute as --prefetch
promises; and on such a bus, that gradients go down beside backward. With --prefix simulated_gpu_
all of it on simulated GPUs.
"""
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

sys.dont_write_bytecode = True
from expected import WINDOW, expect  # noqa: E402
from programs import (ALONE, KINDS, Programs, gpu_options, options_of, read_log)  # noqa: E402
from trace_file import Trace  # noqa: E402
from traces import joined  # noqa: E402

LAYERS = 4
TRACED = 8  # steps
BYTES = {"fp32": 4, "bf16": 2}
SMALL = ["--task", "mlp", "--layers", LAYERS, "--batch", 4]
NARROW = ["--width", 24]
# Ranks (0: without mpirun), program, micro-batches, steps, own options. Adam of wide layers takes
# long beside copies up, which it must not hide.
RUNS = [
    (0, ALONE, 2, 3, []),
    (2, "02_distributed_adam", 1, 3, []),
    (3, "04_zero1", 2, 2, ["--link", "0.1"]),
    (2, "05_zero2", 1, 10, []),
    (3, "05_zero2", 2, 5, ["--dtype", "fp32"]),
    (2, "06_zero3", 1, 5, ["--prefetch", 0]),
    (3, "06_zero3", 2, 5, ["--prefetch", 1, "--latency", 100]),
    (2, "06_zero3", 1, 9, ["--prefetch", 2]),
    (2, "07_offload", 1, 5, ["--bus", 0.1, "--width", 400]),
    (3, "07_offload", 2, 5, ["--bus", 0.01, "--link", 1, "--prefetch", 2]),
    (2, "07_offload", 3, 4, ["--dtype", "fp32", "--prefetch", 0]),
]
# In the order in which a trainer makes them.
STREAMS = {"06_zero3": ["compute", "communication"],
           "07_offload": ["compute", "copies", "host cores", "communication"]}
# A message takes 5 ms, in which its thread sleeps, and a layer takes longer: so a message that may
# begin with a layer's computation is under way before that ends.
SLOW_LINK_US = 5000
ON_CPU = ["--batch", 32768, "--width", 64]  # forward, the shorter: 10 ms on an idle core
ON_SIMULATED = ["--batch", 4, "--width", 24]
SLOW_BUS = ["--bus", 0.001]  # GB/s: a copy of 2 to 4 ms
LATE_KERNELS = {"SIMULATED_CUDA_DELAY_US": "20000,0"}  # of the first stream: of compute


# ---- What the format promises ------------------------------------------------------------------

def check_tracks(trace, tracks):
    for rank in trace.ranks:
        expect(list(trace.tracks[rank]) == tracks, f"tracks of rank {rank}: {trace.tracks[rank]}")
        expect(trace.names["process_name", rank, 0] == f"rank {rank}", "the rank's name")
        for tid, name in enumerate(tracks):
            expect(trace.names["thread_name", rank, tid] == name, f"track {tid}: {trace.names}")
            expect(trace.tracks[rank][name], f"nothing on track {name} of rank {rank}")
    expect(set(trace.tracks) == set(trace.ranks), f"ranks: {set(trace.tracks)}")


# What lies directly within what.
WITHIN = {("phase", "step"), ("phase", "phase"), ("wait", "phase"), ("wait", "collective"),
          ("wait", "bus")}


def check_nesting(track):
    """In the file what comes first began first, and contains what begins with it."""
    within = []
    for slice in track:
        while within and within[-1].end <= slice.begin:
            within.pop()
        if within:
            outer = within[-1]
            expect(outer.begin <= slice.begin and slice.end <= outer.end,
                   f"overlap: {outer} {slice}")
            expect((slice.cat, outer.cat) in WITHIN, f"{slice} is within {outer}")
        within.append(slice)
    for slice in track:
        expect(slice.cat != "wait" or slice.end - slice.begin >= 1000, f"too short: {slice}")
        waits = slice.name.startswith("waits for ")
        expect((slice.cat == "wait") == waits, f"only a wait is named so: {slice}")


def check_host(track, steps, micro, runs_ahead):
    """Phases within steps; the one wait of a step, for the sums, takes time where streams do."""
    for step in range(1, steps + 1):
        of_step = [slice for slice in track if slice.args["step"] == step]
        around = [slice for slice in of_step if slice.cat == "step"]
        phases = [slice for slice in of_step if slice.cat == "phase"]
        expect([slice.name for slice in around] == [f"step {step}"], f"{around}")
        expect([slice.name for slice in phases] ==
               ["forward", "load", "backward"] * micro + ["update"], f"{phases}")
        expect(around[0].begin == phases[0].begin and around[0].end == phases[-1].end,
               f"around its phases: {around}")
        waits = [slice.name for slice in of_step if slice.cat == "wait"
                 and slice.args["phase"] == "update"]
        expect(waits == ["waits for compute"] or not runs_ahead, f"the host's waits: {waits}")
    expect({slice.args["step"] for slice in track} <= set(range(steps + 1)), "steps of the host")


def check_together(trace, exact):
    """By one clock: no collective ends on a rank before it has begun on all; of a GPU's clock,
    which the host's is set by when it sees the GPU get somewhere, the order alone."""
    errors = trace.about["clock_error_us"]
    expect(len(errors) == len(trace.ranks) and errors[0] == 0 and min(errors) >= 0, f"{errors}")
    of_ranks = [[slice for slice in trace.streams(rank) if slice.cat == "collective"]
                for rank in trace.ranks]
    for same in zip(*of_ranks, strict=True):
        expect(len({slice.name for slice in same}) == 1, f"collectives in one order: {same}")
        late = (max(s.begin for s in same) - min(s.end for s in same)) / 1000
        expect(not exact or late <= 2 * max(errors),
               f"ended {late} us before it began elsewhere: {same}")


# ---- What the chapter had to do, and what the log says -----------------------------------------

def check_tasks(trace, rank, chapter, micro, steps, mixed):
    """As many tasks a layer as layers, micro-batches and steps demand."""
    gathers, scatters = {"01": (0, 0), "05": (1, micro), "06": (2 * micro, micro),
                         "07": (2 * micro, micro)}.get(chapter[:2], (1, 1))
    copies = int(chapter == "07_offload")
    a_step = {"forward": micro, "backward": micro, "adam": 1, "squared_norm": 1,
              "all_gather": gathers, "reduce_scatter": scatters, "down": copies, "up": copies}
    expected = Counter({(0, f"initialise of layer {layer}"): 1 + mixed for layer in range(LAYERS)})
    for step in range(1, steps + 1):
        for layer in range(LAYERS):
            expected.update({(step, f"{task} of layer {layer}"): n for task, n in a_step.items()})
        expected.update({(step, "load"): micro, (step, "loss"): micro, (step, "clear"): 1})
    seen = Counter((slice.args["step"], slice.name) for slice in trace.streams(rank))
    expected = Counter({key: n for key, n in expected.items() if n})
    wrong = {key: (seen[key], n) for key, n in expected.items() if seen[key] != n}
    expect(not wrong, f"seen and expected: {wrong}")
    more = {key for key in seen if key[1].split(" of layer")[0] in a_step} - set(expected)
    expect(not more, f"too many: {more}")
    for slice in trace.streams(rank):
        words = slice.name.split(" of layer ")
        layer = slice.args.get("layer")
        expect(words[1:] == ([] if layer is None else [str(layer)]), f"its layer: {slice}")


def check_traffic(trace, rank, log):
    """Bytes of collectives are the elements that were counted, times their width."""
    run, _, summary = log
    sent = Counter()
    for slice in trace.streams(rank):
        if slice.cat == "collective" and slice.name != "sums":
            sent[slice.name.split()[0], slice.args["phase"]] += slice.args["bytes"]
            width = slice.args["bytes"] / slice.args["elements"]
            expect(width == BYTES[run["dtype"]], f"bytes an element: {slice}")
    for collective, phases in summary["traffic"]["collectives"].items():
        for phase, elements in phases.items():
            expect(sent[collective, phase] == elements * BYTES[run["dtype"]],
                   f"{collective}, {phase}: {sent}, {elements} elements counted")


def check_bus(trace, rank, log):
    """Bytes over the bus are those that were counted; a gradient comes down when it is reduced, in
    backward, and its parameters go up when the host's cores have made them, in the update."""
    last = defaultdict(dict)
    for slice in trace.streams(rank):
        if slice.cat != "wait" and "layer" in slice.args:
            last[slice.args["step"], slice.args["layer"]][slice.name.split()[0]] = slice
    copied = Counter()
    for slice in trace.of(rank, "bus"):
        way = slice.name.split()[0]
        copied[way] += slice.args["bytes"]
        before = last[slice.args["step"], slice.args["layer"]][
            {"down": "reduce_scatter", "up": "adam"}[way]]
        expect(before.end <= slice.begin, f"{slice} begins before the end of {before}")
        expect(slice.args["phase"] == {"down": "backward", "up": "update"}[way], f"{slice}")
    counted = {way: row["counted"] for way, row in log[2].get("bus", {}).items()}
    expect(copied == counted, f"bytes over the bus: {copied}, counted {counted}")
    cores = trace.tracks[rank].get("host cores", [])
    expect({slice.name.split()[0] for slice in cores if slice.cat == "compute"} <= {"adam"},
           f"on the host's cores: {cores}")
    expect(bool(cores) == bool(counted), "Adam runs on them where there is a bus")


def check_memory(trace, log):
    """The largest of the counters is the log's peak."""
    for kind in KINDS:
        values = [bytes[kind] for rank in trace.ranks for _, bytes in trace.counters[rank]]
        expect(max(values) == log[2]["memory"][kind]["peak"], f"peak of {kind}: {max(values)}")
    for counted in trace.counters.values():
        times = [time for time, _ in counted]
        expect(times == sorted(times), "bytes change in order")


def median(times):
    """As the report has it: in microseconds, without the first three steps where there are more."""
    times = sorted(time // 1000 for time in times[3 if len(times) > 3 else 0:])
    return times[len(times) // 2]


def check_times(trace, log, steps):
    """Exposed and hidden milliseconds of messages and of copies, of the slowest rank, are the
    log's. Only what the device computes hides them."""
    rows = [(f"{phase}, messages", row, "collective", lambda slice, p=phase:
             slice.args["phase"] == p) for phase, row in log[2]["traffic"]["phases"].items()]
    rows += [(way, row, "bus", lambda slice, w=way: slice.name.startswith(w))
             for way, row in log[2].get("bus", {}).items()]
    for name, logged, cat, is_of in rows:
        exposed, hidden = [], []
        for rank in trace.ranks:
            under, alone = [0] * steps, [0] * steps
            # On two streams at once it hides once.
            computing = joined((slice.begin, slice.end) for slice in trace.of(rank, "compute"))
            for slice in filter(is_of, trace.of(rank, cat)):
                covered = sum(max(0, min(slice.end, end) - max(slice.begin, begin))
                              for begin, end in computing)
                under[slice.args["step"] - 1] += covered
                alone[slice.args["step"] - 1] += slice.end - slice.begin - covered
            exposed.append(median(alone))
            hidden.append(median(under))
        for what, times in (("exposed_ms", exposed), ("hidden_ms", hidden)):
            expect(round(1000 * logged[what]) == max(times),
                   f"{name}, {what}: {logged[what]}, by the trace {max(times) / 1000}")


# ---- Runs --------------------------------------------------------------------------------------

def gathers_under_compute(trace, steps):
    """For each rank and step, which of the step's gathers had compute beside them."""
    for rank in trace.ranks:
        computing = trace.of(rank, "compute")
        for step in range(1, steps + 1):
            gathers = [slice for slice in trace.tracks[rank]["communication"]
                       if slice.args["step"] == step and slice.name.startswith("all_gather")]
            yield {place for place, gather in enumerate(gathers)
                   if any(gather.overlap(other) for other in computing)}


class Test:
    def __init__(self, programs, way):
        self.programs, self.way = programs, way

    def device(self, chapter):
        return gpu_options(chapter, self.way) if self.way else ["--device", "cpu"]

    def traced(self, ranks, chapter, *args, **variables):
        """The trace and the log of a run."""
        device = self.device(chapter)
        with tempfile.TemporaryDirectory(prefix="trace_") as folder:
            files = Path(folder) / "trace", Path(folder) / "log"
            outcome = self.programs.start(
                self.programs.command(ranks, chapter, *args, *device, "--quiet", "--trace",
                                      files[0], "--log", files[1]), **variables)
            expect((outcome.code, outcome.out) == (0, ""), f"{outcome}")
            return Trace(files[0]), read_log(files[1])

    def check(self, ranks, chapter, micro, steps, args):
        trace, log = self.traced(ranks, chapter, *SMALL, "--accumulate", micro, "--steps", steps,
                                 *([] if "--width" in args else NARROW), *args)
        run, traced = log[0], min(steps, TRACED)
        facts = {"chapter": chapter, "ranks": max(ranks, 1), "dtype": run["dtype"]}
        expect(facts.items() <= trace.about.items(), f"{facts} expected: {trace.about}")
        check_tracks(trace, ["host", *STREAMS.get(chapter, ["compute"])])
        check_together(trace, exact=not self.way)
        check_memory(trace, log)
        for rank in trace.ranks:
            for track in trace.tracks[rank].values():
                check_nesting(track)
            check_host(trace.tracks[rank]["host"], traced, micro, chapter in WINDOW)
            check_tasks(trace, rank, chapter, micro, traced, "dtype" in run["options"])
            if steps <= TRACED:
                check_traffic(trace, rank, log)
                check_bus(trace, rank, log)
        if steps <= TRACED:
            check_times(trace, log, steps)

    def check_large(self):
        """A step of very many layers is not looked at, unless it is asked for."""
        many = ["--task", "mlp", "--layers", 1, "--width", 1, "--batch", 1, "--steps", 1]
        for micro, looked_at in ((4096, True), (4097, False)):
            *_, summary = self.programs.logged(2, "02_distributed_adam", *many, "--accumulate",
                                               micro, *self.device("02_distributed_adam"))
            times = [phase["exposed_ms"] for phase in summary["traffic"]["phases"].values()]
            expect(all((time is not None) == (looked_at and not self.way) for time in times),
                   f"{micro} micro-batches: {times}")

    def check_overlap(self, prefetch):
        """What never runs under compute is a matter of order, and exact. What may does it in every
        step where kernels are late; on cores that others use too, in one of the ranks' steps."""
        steps = 4 if self.way else TRACED
        trace, _ = self.traced(2, "06_zero3", "--task", "mlp", "--layers", LAYERS, "--steps", steps,
                               "--latency", SLOW_LINK_US, "--prefetch", prefetch,
                               *(ON_SIMULATED if self.way else ON_CPU), **LATE_KERNELS)
        # The first is beside the update of later layers; the last layer's second beside the loss.
        promised = {0, LAYERS} if prefetch == 0 else set(range(2 * LAYERS))
        seen = list(gathers_under_compute(trace, steps))
        expect(all(places <= promised for places in seen), f"at most {promised}: {seen}")
        under = set.intersection(*seen) if self.way else set.union(*seen)
        expect(under == promised, f"under compute {promised}: {seen}")
        for slice in trace.streams(0):
            expect(slice.cat != "collective" or slice.end - slice.begin > 999 * SLOW_LINK_US,
                   f"faster than the link: {slice}")

    def check_copies(self):
        """All gradients but the first layer's, the last to come, go down beside backward; where
        kernels are late in every step, else in one of the ranks' steps."""
        steps = 4 if self.way else TRACED
        trace, _ = self.traced(2, "07_offload", "--task", "mlp", "--layers", LAYERS, "--steps",
                               steps, *SLOW_BUS, *(ON_SIMULATED if self.way else ON_CPU),
                               **LATE_KERNELS)
        seen = []
        for rank in trace.ranks:
            backward = [s for s in trace.of(rank, "compute") if s.name.startswith("backward")]
            for step in range(1, steps + 1):
                seen.append({s.args["layer"] for s in trace.of(rank, "bus")
                             if s.name.startswith("down") and s.args["step"] == step
                             and any(s.overlap(other) for other in backward)})
        promised = set(range(1, LAYERS))
        expect(all(layers <= promised for layers in seen), f"at most {promised}: {seen}")
        beside = set.intersection(*seen) if self.way else set.union(*seen)
        expect(beside == promised, f"beside backward {promised}: {seen}")


def main():
    options = options_of(__doc__, prefix={"default": "", "help": "of the programs' names"})
    test = Test(Programs(options.build, options.mpiexec, prefix=options.prefix),
                "mpi" if options.prefix else "")
    for ranks, chapter, micro, steps, args in RUNS:
        test.check(ranks, chapter, micro, steps, args)
        print(f"{chapter} {' '.join(map(str, args))} on {ranks} ranks, {steps} steps of {micro}: "
              "as promised", flush=True)
    test.check_large()
    for prefetch in (0, 1, 2):
        test.check_overlap(prefetch)
        print(f"prefetch {prefetch}: the gathers that can are under compute", flush=True)
    test.check_copies()
    print("gradients go down beside backward", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
