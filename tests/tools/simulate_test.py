# SPDX-License-Identifier: MIT
"""A step that simulate.py plays lasts as long as the formula says, keeps every wait, and repeats a
trace. ./tutorial overlap also reads torch.profiler's traces."""
import gzip
import itertools
import json
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import programs  # noqa: F401 (the way to tools/)
import pytest
import simulate
from planner.plan import PLANS, deepspeed_card
from recording import Trace
from replay import Replay, measured, usual
from runs import ROOT
from simulate import Machine, Streams, play

HERE = Path(__file__).parent


def overlap(*words, code=0):
    """Returns what ./tutorial overlap prints, which must end with `code`."""
    done = subprocess.run([sys.executable, "-B", ROOT / "tools/overlap.py", *map(str, words)],
                          capture_output=True, text=True)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


@pytest.mark.parametrize("layers", (2, 3, 8, 32))
def test_a_step_is_as_long_as_the_page_on_streams_says(layers):
    for g, r, c, b in itertools.product((1, 6, 11), (1, 6, 11), (3, 10), (6, 15, 20)):
        ms = {"forward": c, "backward": b, "all_gather": g, "reduce_scatter": r}
        for prefetch, step in enumerate((
                layers * (g + c + g + b + r),
                g + layers * max(c, g) + max(b, g) + (layers - 2) * max(b, g + r) + max(b, r) + r)):
            streams = play(PLANS["06"], layers, lambda what, *_, ms=ms: [ms.get(what, 0)],
                           prefetch=prefetch)
            assert streams.figures()[0] == pytest.approx(step, rel=1e-12)
        deeper = play(PLANS["06"], layers, lambda what, *_, ms=ms: [ms.get(what, 0)], prefetch=2)
        assert step - g - 1e-9 <= deeper.figures()[0] <= step + 1e-9


def test_a_message_waits_for_the_later_rank():
    """Rank 1's forward of layer 1 takes longer; the other rank's message is longer by that."""
    ms = {"forward": 1, "backward": 1, "all_gather": 2, "reduce_scatter": 1}

    def times(what, layer, step):
        return [1, 5] if (what, layer) == ("forward", 1) else [ms.get(what, 0)] * 2

    streams = play(PLANS["06"], 2, times, 2, prefetch=0)
    assert [streams.figures(rank)[0] for rank in (0, 1)] == [18, 18]
    assert [streams.figures(rank)[1]["messages"][0] for rank in (0, 1)] == [14, 10]


def broken_waits(card, slices, layers, many, prefetch, slots=3):
    """Returns which tasks of one rank's third step did not keep a wait of notes/streams.md. many:
    micro-batches; slots: pieces for which the host has room."""
    at = defaultdict(list)
    for each in slices:
        what, layer = each["name"].split()[0], each["args"]["layer"]
        at[each["args"]["step"], what, layer].append((each["ts"], each["ts"] + each["dur"]))
    order = [(m, phase, l) for m in range(many) for phase, of in (
        ("forward", range(layers)), ("backward", range(layers)[::-1])) for l in of]

    def of(what, l, which=-1, step=3):
        return at[step, what, l][which]

    def waits(later, earlier):
        return [later] if at_begin(*later) < at_end(*earlier) - 1e-6 else []

    def at_begin(*key):
        return of(*key)[0]

    def at_end(*key):
        return of(*key)[1]

    # comes: whether each micro-batch's gradients come to the host.
    broken, window, comes = [], card.prefetches, card.copied["to_host"][1]
    up = "to_device" if card.copied["to_device"][1] else "all_gather"
    for use, (m, phase, l) in enumerate(order):
        gathered = 2 * m + (phase == "backward")
        if window:
            broken += waits((phase, l, m), ("all_gather", l, gathered))
            if up == "to_device":
                broken += waits(("all_gather", l, gathered), (up, l, gathered))
            new = "to_device" if card.copied["to_device"][0] else "adam"
            broken += waits((up, l, 0), (new, l, -1, 2))
            if use > prefetch:
                before = order[use - prefetch - 1]
                broken += waits((up, l, gathered), (before[1], before[2], before[0]))
        elif card.sent["update"][0]:
            broken += waits((phase, l, m), ("all_gather", l, -1, 2))
    grads = [(m, l) for m, phase, l in order if phase == "backward"]
    for at_grad, (m, l) in enumerate(grads):
        if not comes and not card.sent["backward"][1] and m < many - 1:
            continue  # gradients of all micro-batches leave at once
        sent = m if card.sent["backward"][1] else 0
        broken += waits(("reduce_scatter", l, sent), ("backward", l, m))
        last = "to_host" if comes else "reduce_scatter"
        if at_grad >= 2 and card.sent["backward"][1]:
            earlier = grads[at_grad - 2]
            broken += waits(("backward", l, m), (last, earlier[1], earlier[0]))
        if comes:
            broken += waits(("to_host", l, m), ("reduce_scatter", l, m))
            if m:
                broken += waits(("add", l, m - 1), ("to_host", l, m))
                if at_grad >= layers + 2:
                    earlier = grads[at_grad - 2]
                    broken += waits(("to_host", l, m), ("add", earlier[1], earlier[0] - 1))
    for l in range(layers):
        end = "to_host" if card.offloads else "reduce_scatter"
        if comes:
            broken += waits(("divide", l), ("add", l) if many > 1 else ("to_host", l))
            broken += waits(("add_squares", None), ("squared_norm", l))
        else:
            broken += [one for other in range(layers)
                       for one in waits(("squared_norm", l), (end, other))]
        if card.offloads and not comes:
            broken += waits(("to_host", l), ("reduce_scatter", l))
        broken += waits(("adam", l, 0), ("sums", None))
        if (3, "all_reduce", l) in at:
            broken += waits(("all_reduce", l), ("reduce_scatter", l))
            broken += waits(("squared_norm", 0), ("all_reduce", l))
        if not window and card.sent["update"][0]:
            broken += waits(("all_gather", l), ("adam", l))
        if card.copied["to_device"][0]:
            broken += waits(("to_device", l), ("adam", l))
    pieces = [(l, i) for l in range(layers) for i in range(len(at[3, "read", l]))]
    for number, (l, i) in enumerate(pieces):
        broken += waits(("adam", l, i), ("read", l, i)) + waits(("write", l, i), ("adam", l, i))
        if number >= slots:
            broken += waits(("read", l, i), ("write", *pieces[number - slots]))
    return broken


SETTINGS = [*itertools.product(("04", "05", "06", "07", "08", "zero1_offload"), (1, 2), (0, 1, 2),
                               range(4))]


def breaks(layers=4):
    """Returns whether a step of SETTINGS, whose tasks last at random, breaks a wait."""
    for name, many, prefetch, seed in SETTINGS:
        card, chance = PLANS[name], random.Random(seed)

        def times(what, *_, chance=chance):
            return [(what != "wait") * chance.choice((0.001, 0.1, 0.9))]

        pieces = [2] * layers * (card.place("optimizer") == "disk")
        streams = play(card, layers, times, 1, many, prefetch, True, pieces, steps=3)
        if broken_waits(card, streams.slices[0], layers, many, prefetch):
            return True
    return False


def test_a_step_keeps_every_wait(monkeypatch):
    """Without any one of the events for which simulate.py lets a task wait, a wait is broken."""
    run, seen = Streams.run, set()

    def without(taken):
        def fewer(self, stream, what, layer, times, *after):
            line = sys._getframe(2).f_lineno  # of Schedule, which calls its own run()
            seen.update((line, place) for place, event in enumerate(after) if event)
            return run(self, stream, what, layer, times, *(
                None if (line, place) == taken else event for place, event in enumerate(after)))
        return fewer

    monkeypatch.setattr(Streams, "run", without(None))
    assert not breaks()
    assert len(seen) == 18
    for wait in sorted(seen):
        monkeypatch.setattr(Streams, "run", without(wait))
        assert breaks(), f"simulate.py:{wait[0]}: nothing misses its event {wait[1]}"


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
@pytest.mark.parametrize("optimizer", ("none", "cpu", "nvme"))
@pytest.mark.parametrize("param", ("none", "cpu", "nvme"))
def test_deepspeed_swaps_one_sub_group_after_the_other(stage, optimizer, param):
    """At stage 3 a sub-group on NVMe is read, updated and written before the next one is read."""
    card = deepspeed_card(stage, optimizer, param)
    pieces = [1, 3, 2] if card.place("optimizer") == "disk" else ()
    slices = play(card, 3, lambda *_: [1], pieces=pieces, ends=True).slices[0]
    swaps = [each for each in slices if each["args"]["step"] == 2 and
             each["name"].startswith(("read", "adam", "write"))]
    assert len(swaps) == (3 * sum(pieces) or 3)
    if pieces:
        ends = [each["ts"] + each["dur"] for each in sorted(swaps, key=lambda each: each["ts"])]
        assert ends[1:] == pytest.approx([ends[1] + 1000 * at for at in range(len(ends) - 1)])


def test_buckets_fill_in_the_reverse_order_of_layers():
    assert simulate.closed([5, 5, 5], 7) == [(8, 2), (7, 1), (0, 0)]
    assert simulate.closed([20, 3], 7) == [(23, 4), (0, 0)]


def test_a_message_over_nodes():
    """NCCL counts N - 1 hops, of which (number of nodes) - 1 are between nodes. A group of four
    lies in a node of eight, which has two such groups."""
    machine = Machine(link=8, latency=10, node=4, node_link=80, node_latency=1)
    assert machine.ring(16e6, 16) == pytest.approx(15 / 16 * 16 / 4 + 3 * 10e-3 + 12e-3)
    assert machine.ring(16e6, 4) == pytest.approx(3 / 4 * 16 / 10 + 3e-3)
    assert machine.ring(16e6, 16, 1) == pytest.approx(15 * (10e-3 + 1))
    machine = Machine(link=8, latency=10, node=8, node_link=80, node_latency=1)
    work = simulate.Work(PLANS["06"], 32, [4e6], [4e6], [0], [0], shards=4)
    ms = work.times(machine)
    assert ms("reduce_scatter", 0, 1) == [pytest.approx(machine.ring(8e6, 4))]
    assert ms("all_reduce", 0, 1) == [pytest.approx(2 * machine.ring(2e6, 8, 2))]
    work = simulate.Work(PLANS["06"], 32, [4e6] * 2, [4e6] * 2, [0] * 2, [0] * 2, near=8)
    near = work.times(machine)
    assert [near("all_gather", l, 1)[0] for l in (0, 1, 1, 0, 0)] == pytest.approx(
        [machine.ring(8e6, 32)] * 2 + [machine.ring(8e6, 8)] * 3)
    lora = simulate.Work(PLANS["06"], 32, [4e6], [1e6], [0], [0], near=8).times(machine)
    assert lora("all_gather", 0, 1) == [machine.ring(2e6, 32) + machine.ring(6e6, 8)]


def recorded(folder, chapter="06_zero3", beside=False):
    """Writes a trace of two ranks with two layers, prefetch 1 and four steps; returns its path, and
    the Streams. A gather takes 2 ms, a layer's forward 4, its backward 6, a reduce-scatter 3; in
    the first step all take ten times that. Rank 1's forward of layer 1 takes 1 ms more."""
    ms = {"forward": 4, "backward": 6, "all_gather": 2, "reduce_scatter": 3, "sums": 0.5,
          "copy": 0.25, "adam": 1}

    def times(what, layer, step):
        late = (what, layer) == ("forward", 1)
        return [ms.get(what, 0) * (10 if step == 1 else 1) + late * rank for rank in (0, 1)]

    streams, events = play(PLANS[chapter], 2, times, 2, beside=beside, steps=4), []
    order = {"sums": "sums"}
    for rank, slices in enumerate(streams.slices):
        for number, each in enumerate(slices):
            name = order.get(each["name"].split()[0], each["name"])
            args = {key: value for key, value in each["args"].items() if value is not None}
            events.append({"ph": "X", "pid": rank, "tid": ["compute", "communication"].index(
                each["stream"]), **{key: each[key] for key in ("ts", "dur", "cat")}, "name": name,
                "args": args | {"order": number, "phase": "forward"}})
    names = [{"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}
             for rank in (0, 1) for tid, name in enumerate(("compute", "communication"))]
    held = [{"of": "parameters", "elements": 8, "bytes": 16, "place": "device"}]
    about = {"chapter": chapter, "ranks": 2, "held": held,
             "layers": [{"parameters": 10 ** 6, "size": 10 ** 6, "shard": 5 * 10 ** 5}] * 2}
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": names + events, "otherData": about}))
    return path, streams


def test_a_trace_is_played_again(folder):
    """A trace is played as it was; on another link by the link's formula; and without prefetch."""
    path, streams = recorded(folder)
    trace = Trace(path)
    again = Replay(trace, Machine())
    assert (again.accumulate, again.prefetch, again.card.name) == (1, 1, "06_zero3")
    for own, other in zip(measured(trace), again.steps(), strict=True):
        assert other[0] == pytest.approx(own[0])
        assert other[1]["messages"] == pytest.approx(own[1]["messages"])
    assert usual(again.steps())["step"] == pytest.approx(streams.figures()[0])
    link = Replay(trace, Machine(link=0.8))  # 10 ms a message: no computation is as long
    step = usual(link.steps())
    assert step["messages exposed"] + step["messages hidden"] == pytest.approx(6 * 10 + 16e-5, 0.1)
    assert link.handshakes and min(link.handshakes) == pytest.approx(2 - 10)
    slower = usual(Replay(trace, Machine(), prefetch=0).steps())
    assert slower["step"] > usual(again.steps())["step"] + 2
    said = overlap(path, "--link", "0.8", "--latency", "5")
    assert "played, as asked" in said and max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("beside", (False, True))
def test_a_trace_of_04_is_played_on_as_many_streams_as_it_has(folder, beside):
    path, streams = recorded(folder, "04_zero1", beside)
    again = Replay(Trace(path), Machine())
    assert again.beside == beside
    assert usual(again.steps())["step"] == pytest.approx(streams.figures()[0])


def test_a_trace_of_pytorch(folder):
    """torch.profiler wrote this trace on a CPU, of DDP on two ranks with gloo; `args` are left out.
    A trace may be packed. Computation within a message counts as part of the message."""
    path = HERE / "profiled.trace.json"
    said = overlap(path)
    assert "rank 0 of 2: 1 step of 32.16 ms, computation 8.17 ms" in said
    events = json.loads(path.read_text())["traceEvents"]
    sent = [event["dur"] for event in events if event["name"] == "gloo:all_reduce"]
    assert f"{len(sent):.1f}{sum(sent) / 1e3:>10.2f}" in said and "pt_gloo_runloop" in said
    (folder / "packed.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert overlap(folder / "packed.gz") == said


def kernel(name, stream, begin, dur, cat="kernel", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": dur,
            "args": {"stream": stream} | args}


def test_a_trace_of_pytorch_on_a_gpu(folder):
    """NCCL's kernels are known by name. Each of two steps has one gather hidden and one exposed."""
    end = "_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}}]
    for step in (0, 1):
        at = 10000 * step
        events += [
            # The host's mark runs ahead of the GPU.
            kernel(f"ProfilerStep#{step + 3}", 1, 9 * step, 9, "user_annotation"),
            kernel(f"ProfilerStep#{step + 3}", 7, 0, 9e9, "gpu_user_annotation"),
            kernel("aten::mm", 1, at, 9000, "cpu_op"), kernel("gloo:all_reduce", 1, at, 9000,
                                                              "user_annotation"),
            kernel(f"ncclDevKernel_AllGather{end}", 22, at, 2000),
            kernel("ampere_bf16_gemm", 7, at + 2000, 4000),
            kernel(f"ncclDevKernel_AllGather{end}", 22, at + 3000, 2000),
            kernel("Memcpy DtoD (Device -> Device)", 7, at + 6000, 500, "gpu_memcpy"),
            kernel(f"ncclDevKernel_ReduceScatter_Sum_bf16{end}", 26, at + 6000, 3000),
            kernel("Memcpy DtoH (Device -> Pinned)", 30, at + 9000, 500, "gpu_memcpy"),
            kernel("ncclDevKernel_Generic_4", 26, at + 9500, 500, **{"Collective name": "send"})]
    (folder / "trace").write_text(json.dumps({
        "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": events}))
    said = overlap(folder / "trace")
    for words in ("rank 3 of 8: 2 steps of 10.00 ms, computation 4.50 ms",
                  "messages exposed 5.00 ms (50.0%), hidden 2.50 ms",
                  "copies exposed 0.50 ms (5.0%), hidden 0.00 ms",
                  "  all_gather             2.0      4.00      2.00      2.00  stream 22",
                  "  reduce_scatter         1.0      3.00      2.50      0.50  stream 26"):
        assert words in said
    for dropped in ("nccl", "traceEvents"):
        text = (folder / "trace").read_text().replace(dropped, "other")
        (folder / "none").write_text(text)
        assert f"{folder}/none " in overlap(folder / "none", code=3)
    assert "torch.profiler's" in overlap(folder / "trace", "--link", "3", code=2)


@pytest.mark.parametrize("words, said", [
    ("--link 0", "--link: 0 is not a number"), ("--prefetch 3", "from 0 to 2"),
    ("--speed 3", "unrecognized arguments: --speed 3"), ("--bus", "--bus: expected one argument")])
def test_refused(folder, words, said):
    path, _ = recorded(folder)
    assert said in overlap(path, *words.split(), code=2)
