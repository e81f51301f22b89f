# SPDX-License-Identifier: MIT
"""Tests every event of a trace, for every chapter on three ranks, against the log of the same run.

A slow link and a slow bus then show that as many gathers run beside computation as --prefetch
promises, and that gradients go to the host beside backward. On GPUs tests/gpu/overlap.cpp tests
this. --prefix simulated_gpu_ runs the rest on simulated GPUs, whose traces have no values.
"""
import itertools
import re
import sys
from collections import Counter

import memory
import narrate
import pytest
from overlap import overlap, tables
from programs import ALONE, CHAPTERS, KINDS, MIXED, ROOT, WINDOW, options_on, own_options
from recording import Memory, Trace, recording
from runs import Run, memory_of
from spans import span

LAYERS, STEPS = 3, 2
TINY = ["--task", "tiny", "--layers", LAYERS, "--steps", STEPS]
# The largest relative error of rounding a number to that dtype once.
ROUNDING = {"fp32": 2 ** -24, "bf16": 2 ** -8}
# (chapter, micro-batches, other options).
RUNS = [
    *((chapter, micro, []) for chapter in CHAPTERS if chapter not in WINDOW for micro in (1, 2)),
    *((chapter, micro, ["--prefetch", prefetch]) for chapter in WINDOW
      for micro, prefetch in ((1, 0), (2, 1), (1, 2))),
    *((chapter, 2, ["--dtype", "fp32"]) for chapter in MIXED),
    # With this scale gradients overflow, so both steps are skipped.
    *((chapter, 1, ["--dtype", "fp16", "--loss-scale", 1e38]) for chapter in CHAPTERS[6:]),
    # First a layer has more pieces than the host has room for; then the host has all of the state.
    ("08_infinity", 1, ["--piece", 8, "--align", 32]), ("08_infinity", 2, ["--state", "host"])]
# What the trainer's line calls, where that has another name than the task. A key is a task, or the
# kind of memory that is borrowed or given back.
CALLS = {"sums": "await_all_reduced", "sums for the host": "await_totals", "adam": "adam_.update",
         "all_gather": "(all_gather|unshard|all_reduce_mean)",
         "copy": "(all_gather|unshard)", "to_device": "(copy_to_device|unshard)",
         "reduce_scatter": "(reduce_scatter|all_reduce)_mean",
         "divide": r"(divide|divide_and_\w+)", "add": "reduce_scatter_mean",
         "to_host": "(divide_and_copy_to_host|reduce_scatter_mean)", "squared_norm":
         "(squared_norm|divide_and_square)", "clear": "(clear|divide_and_square)",
         "read": "(read_ahead|take)", "write": "put_back",
         "activations": r"model_.\w+", "parameters": r"(borrow\w*|unshard|reshard)",
         "gradients": "(borrow|borrow_grads|wait_for_gradients)",
         "communication": "(reduce_scatter|all_reduce)_mean"}
# A message takes 2.5 ms and a copy 2 to 4, while its thread sleeps. A layer's forward takes 10 ms
# on an idle core, and its backward longer. So what may begin with a layer's computation begins
# before the computation ends.
SLOW, SLOW_LINK_US, SLOW_BUS = 4, 2500, 0.001  # layers, microseconds, GB/s
OFTEN = 3  # of 16 steps; at a load of 18 on two cores each task passed beside its stream in 6 steps
# Chapter, its link or bus, a task, the stream (and task) beside which it runs, and which of a
# step's tasks, counted from 0, do so.
BESIDE = [
    # Layer 0's gather runs beside later layers' update, the last layer's second beside the loss.
    ("06_zero3", ["--latency", SLOW_LINK_US, "--prefetch", 0], "all_gather", "compute", {0, SLOW}),
    ("06_zero3", ["--latency", SLOW_LINK_US], "all_gather", "compute", set(range(2 * SLOW))),
    # All but the last reduce-scatter, layer 0's, after which no backward is left.
    ("06_zero3", ["--latency", SLOW_LINK_US], "reduce_scatter", "compute backward",
     set(range(SLOW - 1))),
    *((chapter, ["--bus", SLOW_BUS], "to_host", "compute backward", set(range(SLOW - 1)))
      for chapter in WINDOW[1:]),
    ("08_infinity", ["--bus", SLOW_BUS], "to_device", "compute", set(range(2 * SLOW))),
    # Three tensors of each of pieces 3 to 7: what is read ahead, 0 to 2, has the phase setup.
    ("08_infinity", ["--disk", SLOW_BUS, "--piece", 1040], "read", "writes", set(range(15)))]


@pytest.fixture
def way(programs):
    """How simulated GPUs communicate; None on the CPU."""
    return "mpi" if programs.prefix else None


@pytest.fixture
def recorded(programs, folder, way):
    """Runs a chapter; returns its trace and its log."""
    def run(ranks, chapter, *args):
        outcome = programs.run(0 if chapter == ALONE else ranks, chapter, *args, "--quiet",
                               *options_on(way, chapter), "--trace", "trace", "--log", "log",
                               cwd=folder)
        assert (outcome.code, outcome.out) == (0, ""), outcome
        run = Run(folder / "log")
        run.read()
        return Trace(folder / "trace"), run
    return run


def check_views(trace, rank):
    """A rank reads and writes only what it holds, or what is lent to that layer at that time."""
    padded = sum(layer["size"] for layer in trace.layers)
    is_shard = {of["of"]: of["elements"] < padded for of in trace.about["held"]}
    lent = {}
    for event in trace.program(rank, *range(STEPS + 1)):
        args = event["args"]
        for view in args.get("lent", []):
            if event["name"] == "borrow":
                assert lent.setdefault(view["slot"], view) is view, event
            else:
                assert lent.pop(view["slot"]) == view
        for view in args.get("reads", []) + args.get("writes", []):
            layer, begin = trace.layers[view["layer"]], view["start"]
            own = rank * layer["shard"] <= begin and \
                begin + view["size"] <= (rank + 1) * layer["shard"]
            assert own or 0 <= begin <= begin + view["size"] <= layer["size"]
            of = lent[view["slot"]] if view.get("place") == "device" else view
            assert (of["of"], of["layer"]) == (view["of"], view["layer"])
            assert own or "slot" in view or not is_shard[view["of"]], event
    assert not lent


def check_values(trace, run):
    """Copies and gathers move the owner's numbers, a reduce-scatter forms the mean of the ranks'
    gradients, and parameters are rounded master weights."""
    memories, reduced = [Memory(trace.layers) for _ in trace.events], set()

    def cells(views):
        return [[memory.layer(view)[view["start"]:view["start"] + view["size"]] for view in of]
                for memory, of in zip(memories, views)]

    for events in trace.moments(0, 1):
        task, layer = events[0]["task"], events[0]["layer"]
        reads, writes = ([of["args"].get(key, []) for of in events] for key in ("reads", "writes"))
        read, old = cells(reads), cells(writes)
        for its, of in zip(memories, writes):
            for view in of:
                its.write(view)
        now = cells(writes)
        if task in ("copy", "to_host", "to_device", "write"):
            assert now == read
        elif task == "read" and run.dtype != "fp32":  # set-up wrote these master weights
            assert [of[-1] for of in now] == [of[-1] for of in old]
        elif task == "all_gather":
            assert now == [[sum((own for own, in read), [])]] * run.ranks
        for rank, of in enumerate(writes if task in ("reduce_scatter", "add", "adam") else []):
            for i, value in enumerate(of[0]["values"]):
                if task == "reduce_scatter":
                    terms = [whole[of[0]["start"] + i] / run.ranks for whole, in read]
                    terms += [old[rank][0][i]] if layer in reduced and "slot" not in of[0] else []
                elif task == "add":
                    terms = [one[i] for one in read[rank]]
                else:  # Adam's fourth view is the weights' rounded copy
                    terms, value = [value], now[rank][3][i] if of[3:] else value
                # At most four roundings: two additions, a division, an addition to what was there.
                assert abs(value - sum(terms)) <= 4 * ROUNDING[run.dtype] * sum(map(abs, terms))
        reduced |= {layer} if task == "reduce_scatter" else set()


def check_places(trace, chapter):
    """An event's first line, the trainer's, calls what does the task, and its last line does it."""
    def line(place):
        file, number = place.split(":")
        path = next(path for path in (ROOT / file, ROOT / "common" / file) if path.exists())
        return path.read_text().splitlines()[int(number) - 1]

    for event in trace.program(0, *range(STEPS + 1)):
        task, at = event["task"], event["args"]["at"]
        if not at:  # set-up of what is held, and the end of a scope, have no line
            assert event["args"]["step"] == 0 or task == "give back"
            continue
        assert at[0].startswith(f"{chapter}/trainer.hpp:")
        call = CALLS.get(event["args"].get("kind", task), task)
        assert re.search(rf"\b{call}\(", line(at[0])), event
        assert event["ph"] == "i" or len({*at}) == 1 or \
            re.search(rf"\b({task}\w*|copy)\(", line(at[-1])), event


def check_work(trace, run, rank, micro):
    """There are as many phases and tasks as layers, micro-batches and steps demand."""
    for step in range(1, STEPS + 1):
        host = sorted((event["ts"], event["name"]) for event in trace.events[rank]
                      if event["args"]["step"] == step and event["cat"] == "phase")
        assert [name for _, name in host] == ["forward", "load", "backward"] * micro + ["update"]
        works = Counter(event["task"] for event in trace.program(rank, step))
        updates = 0 if run.summary["skipped_steps"] else sum(
            -(-of["shard"] // run.options.get("piece", of["shard"])) for of in trace.layers)
        assert [works[task] for task in ("load", "loss", "forward", "backward", "adam", "write")] \
            == [micro, micro, micro * LAYERS, micro * LAYERS, updates,
                updates * ("disk" in run.summary)]
        if "disk" in run.summary:  # while Adam updates a piece, two more are being read
            order = [event["task"] for event in trace.program(rank, step)]
            assert all(order[:at].count("read") >= min(order[:at].count("adam") + 3, updates)
                       for at, task in enumerate(order) if task == "adam")


def check_window(trace, run, rank, micro):
    """Only a window sends for a phase that has not begun. A kind's slots, if many, take turns."""
    prefetch, ahead, last = run.options.get("prefetch"), set(), {}
    one_room = {None: "gradients", 0: "parameters"}.get(prefetch)
    for event in trace.program(rank, *range(1, STEPS + 1)):
        args = event["args"]
        if event["cat"] == "collective" and args["phase"] != args["during"]:
            ahead.add((args["phase"], args["during"]))
        for view in args.get("writes", []):
            if "slot" in view and view["of"] != one_room:
                use = event["task"], view["of"], args["step"]
                assert last.get(use) != view["slot"], event
                last[use] = view["slot"]
    assert ahead == {*[("backward", "forward"), ("forward", "backward")][:micro if prefetch else 0]}


def check_counts(trace, run, rank):
    """Elements and bytes of events add up to the log's; after each step equal bytes are in use."""
    events = trace.program(rank, *range(STEPS + 1))
    passed, sent = Counter(), dict.fromkeys(("forward", "backward", "update"), 0)
    passes = {"to_host": ["backward"], "write": ["update"], "read": ["setup", "update"],
              "to_device": ["update"] if run.number == "07" else ["forward", "backward"]}
    for event in events:
        args, task = event["args"], event["task"]
        if event["cat"] == "bus":
            passed[task] += args["bytes"]
            assert args["phase"] in passes[task]
        elif event["cat"] == "collective":
            passed[task, args["phase"]] += args["elements"]
            sent = {phase: args["sent"][phase] for phase in sent}
    traffic = run.summary["traffic"]
    rows = {(task, phase): elements for task, row in traffic["collectives"].items()
            for phase, elements in row.items()}
    rows |= {way: row["counted"] for way, row in (run.bus | run.summary.get("disk", {})).items()}
    assert passed == Counter(rows | {("sums", "update"): traffic["scalars"]["counted"]})
    assert sent == {phase: row["counted"] for phase, row in traffic["phases"].items()}
    held = Counter()
    for of in trace.about["held"]:
        held[of["place"], of["kind"]] += of["bytes"]
    for (place, kind), total in held.items():
        assert memory_of(run.summary, place)[kind]["resident"] == total
    in_use = [event["args"]["in_use"] for event in events]
    for step in range(STEPS):
        assert trace.program(rank, step)[-1]["args"]["in_use"] == in_use[-1]
    for kind in KINDS:
        assert max(of[kind] for of in in_use) == run.memory[kind]["peak"]
    assert max(sum(of.values()) for of in in_use) == run.memory["total"]["peak"]


def check_times(trace, run):
    """The medians of `overlap` are those of the log, which is in whole microseconds. No rank ends a
    collective before the last rank begins it, by the clock of their host."""
    for events in trace.moments(0, *trace.steps):
        if events[0]["cat"] == "collective":
            assert min(event["ts"] + event["dur"] for event in events) >= \
                max(event["ts"] for event in events)
    found = overlap(trace)
    printed = [line.split() for line in tables(trace)] if found else []
    assert sorted(cell for row in printed if row[:1] == ["all"] for cell in row[1:]) == \
        sorted(f"{ms:.2f}" for (_, layer), both in found.items() if layer is None for ms in both)
    rows = run.summary["traffic"]["phases"] | run.bus | run.summary.get("disk", {})
    for name, row in rows.items():
        for ms, logged in zip(found.get((name, None), (0, 0)),
                              (row["exposed_ms"], row["hidden_ms"])):
            assert -1e-5 < ms - logged < 1e-3 + 1e-5, name


@pytest.mark.parametrize("chapter, micro, own", RUNS)
def test_recordings(recorded, way, chapter, micro, own):
    align = [] if "--align" in own else ["--align", 4]
    trace, run = recorded(3, chapter, *TINY, "--accumulate", micro, *align, *own)
    check_places(trace, chapter)
    check_times(trace, run)
    for rank in range(run.ranks):
        check_views(trace, rank)
        check_work(trace, run, rank, micro)
        check_window(trace, run, rank, micro)
        check_counts(trace, run, rank)
    [*memory.table(trace, run)]  # throws if a figure is not its formula
    told = narrate.told(trace, run).splitlines()
    assert ("disk_memory" in run.summary) == any(map(re.compile("  disk opt").match, told))
    rows = r"  (rank \d|all|layer \d) ( +(-?[\d.]+(e-\d\d)?|\u00b7|pad))+"  # as wide as a layer
    assert not [line for line in told if len(line) > 80 and not re.fullmatch(rows, line)]
    if not way and run.dtype != "fp16":
        check_values(trace, run)


@pytest.mark.parametrize("chapter, ranks, micro", ((ALONE, 1, 2), ("04_zero1", 2, 1)))
def test_a_run_is_made_for_a_view(programs, chapter, ranks, micro):
    """The run has the view's own model, changed by options; 01 takes micro-batches for ranks."""
    trace, run = recording(["--run", programs.build, programs.mpiexec, chapter, "--layers=1",
                            "--ranks", "2"], narrate.RANKS, narrate.TINY)
    assert (len(trace.events), run.ranks, run.options["accumulate"]) == (ranks, ranks, micro)
    assert (run.info["layers"], run.options["task"], len(run.steps)) == (1, "tiny", 1)


@pytest.mark.parametrize("micro, looked_at", ((4096, True), (4097, False)))
def test_many_micro_batches(programs, way, micro, looked_at):
    """Unasked, a CPU run logs exposed times up to 4096 layers x micro-batches, a GPU run none."""
    summary = programs.logged(
        2, "02_distributed_adam", "--task", "mlp", "--layers", 1, "--width", 1, "--batch", 1,
        "--steps", 1, "--accumulate", micro, *options_on(way, "02_distributed_adam"))[2]
    for phase in summary["traffic"]["phases"].values():
        assert (phase["exposed_ms"] is not None) == (looked_at and not way)


@pytest.mark.parametrize("ranks, prefetch, layers", ((2, 0, 2), (2, 1, 6), (2, 2, 5), (3, 1, 4)))
def test_peaks_of_a_window(programs, way, ranks, prefetch, layers):
    """06's peak less 05's is the formula of 06's page, for layers of 512 x 512 and biases. 07's
    peak is 06's without the optimizer state."""
    args = ["--task", "mlp", "--width", 512, "--layers", layers, "--batch", 2, "--steps", 1]
    zero2, zero3, offload = (
        programs.logged(ranks, chapter, *args, *own_options(chapter, "bf16", prefetch),
                        *options_on(way, chapter))[2]["memory"]["total"]["peak"]
        for chapter in CHAPTERS[4:7])
    layer = -(-512 * 513 // (8 * ranks)) * 8 * ranks
    part = layer * 2 // ranks
    assert zero3 - offload == 6 * layers * part, "12 bytes per parameter"
    assert zero3 - zero2 == part * (ranks * (prefetch + 2) - (ranks - 1) * (layers + 1))


@pytest.mark.parametrize("chapter, slow, task, beside, promised", BESIDE)
def test_what_is_slow_passes_beside_compute(recorded, chapter, slow, task, beside, promised):
    """What must never pass beside computation never does. What can does so in some of the 16 steps
    of two ranks, and OFTEN is few enough for cores that other programs use too."""
    trace, run = recorded(2, chapter, "--task", "mlp", "--layers", SLOW, "--batch", 32768,
                          "--width", 64, "--steps", 8, *slow)
    check_times(trace, run)
    seen = []
    for rank, step in itertools.product(range(2), range(1, 9)):
        computing = [span(event) for event in trace.events[rank]
                     if event["cat"] in ("compute", "bus")
                     and f"{event['stream']} {event['name']}".startswith(beside)]
        passing = sorted(span(event) for event in trace.events[rank]
                         if event["args"]["step"] == step and event["task"] == task
                         and event["args"]["phase"] != "setup")
        seen.append({place for place, (begin, end) in enumerate(passing)
                     if any(begin < stop and start < end for start, stop in computing)})
        assert seen[-1] <= promised, f"at most {promised}"
        assert task != "all_gather" or \
            all(end - begin > 0.999 * SLOW_LINK_US for begin, end in passing)
    often = Counter(place for places in seen for place in places)
    assert {place for place, steps in often.items() if steps >= OFTEN} == promised, often


@pytest.mark.parametrize("chapter", CHAPTERS[1:])
def test_a_page_follows_its_element(programs, chapter):
    """On the pages of 02 to 08 *The idea* shows what narrate prints today."""
    done = programs.start([sys.executable, ROOT / "tools/narrate.py", "--run", programs.build,
                           programs.mpiexec, chapter, "--follow", "1.2"])
    page = (ROOT / chapter / "README.md").read_text()
    assert f"$ ./tutorial narrate {chapter[:2]} --follow 1.2\n{done.out}```" in page, done
