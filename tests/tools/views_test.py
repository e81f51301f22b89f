# SPDX-License-Identifier: MIT
"""Tests what narrate and memory show of recordings that are made up."""
import json
from types import SimpleNamespace

import programs  # noqa: F401 (the way to tools/)
import memory
import narrate
import pytest
from recording import Trace, recording
from runs import KINDS, Failure

KIND_BYTES = dict.fromkeys(KINDS, 0)


def event(rank, name, order, during="forward", step=1, cat="compute", tid=1, **more):
    args = {"step": step, "phase": during, "during": during, "order": order, "at": [],
            "elements": 2, "in_use": KIND_BYTES} | more
    if " of layer " in name:
        args["layer"] = int(name[-1])
    return {"ph": "X", "pid": rank, "tid": tid, "ts": 0, "dur": 0, "name": name, "cat": cat,
            "args": args}


@pytest.fixture(name="before", params=(0, 2))
def steps_before(request):
    """The step after which the traced run was resumed; 0: it was not."""
    return request.param


def made(folder, events, before=0, ranks=2, layers=((3, 4),)):
    """Writes and reads a trace. layers: pairs (parameters, elements with padding)."""
    for args in (event["args"] for event in events):
        args["step"] += before * (args["step"] > 0)
    names = [{"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}
             for rank in range(ranks) for tid, name in enumerate(("host", "compute", "copies"))]
    held = [{"kind": "optimizer", "of": of, "place": place, "elements": 2, "dtype": "fp32",
             "bytes": 8} for of, place in (("momentum", "device"), ("variance", "disk"))]
    about = {"chapter": "06_zero3", "ranks": ranks, "held": held,
             "layers": [{"parameters": used, "size": size, "shard": size // ranks}
                        for used, size in layers]}
    (folder / "trace").write_text(json.dumps({"traceEvents": names + events, "otherData": about}))
    return Trace(folder / "trace")


def run_of(**more):
    """Returns what stands for a log that is read."""
    info = {"parameters": 3, "padded_parameters": 4, "layers": 1}
    options = {"task": "mlp", "batch": 1, "width": 5, "lr": 0.5, "align": 1, "prefetch": 1}
    memory = {kind: {"predicted": 0, "predicted_resident": 0, "formula": ""} for kind in KINDS}
    return SimpleNamespace(**{
        "chapter": "06_zero3", "dtype": "fp32", "ranks": 2, "info": info, "memory": memory,
        "options": options | {"accumulate": 1},
        "steps": [{"step": step, "loss": 0.75 / step, "grad_norm": 2} for step in (1, 2, 3)],
        "summary": {"steps": 2, "traffic": {"phases": {
            "forward": {"formula": "1 x 3", "predicted": 6}}}}} | more)


def test_a_step_is_told(folder, before):
    """Events come in the program's order, with the numbers that each rank has by then."""
    own = [{"of": "parameters", "layer": 0, "start": 2 * rank, "size": 2} for rank in (0, 1)]
    whole = {"of": "parameters", "layer": 0, "start": 0, "size": 4, "slot": 7}
    at = ["06_zero3/trainer.hpp:43", "06_zero3/layer_window.hpp:9"]
    events = []
    for rank, values in ((1, [-3]), (0, [1.5, 2])):
        events += [
            event(rank, "forward of layer 0", 4, at=at, reads=[whole], writes=[],
                  samples=[[-0.0001, -0.0]]),
            event(rank, "all_gather of layer 0", 3, cat="collective", tid=2, phase="backward",
                  reads=[own[rank]], writes=[whole | {"values": [1.5, 2, -3]}]),
            event(rank, "initialise of layer 0", 1, "setup", 0,
                  writes=[own[rank] | {"values": values}]),
            event(rank, "borrow", 2, cat="memory", tid=0, kind="parameters", bytes=16, lent=[whole],
                  in_use=KIND_BYTES | {"parameters": 24}) | {"ph": "i"},
            event(rank, "give back", 6, "update", cat="memory", tid=0, kind="parameters", bytes=-16,
                  lent=[whole]) | {"ph": "i"},
            event(rank, "adam of layer 0", 5, "update", at=at[:1],
                  writes=[own[rank] | {"values": [x - 1 for x in values]}])]
    trace = made(folder, events, before)
    assert narrate.decimal(-154.25) == " -154.250"  # a blank parts it from the number before
    assert [*narrate.followed(trace, run_of(), 0, 2)] == f"""\
06_zero3, fp32: element 2 of layer 0, in rank 1's part
in program order: layers may be gathered ahead, the last one twice in a row
{'':<52}   rank 0   rank 1
start     initialise              parameters{'':<8}        \u00b7   -3.000
forward   borrow                  parameter slot 0
          all_gather for backward parameter slot 0     -3.000   -3.000
          forward                 parameter slot 0     -3.000   -3.000
update    adam                    parameters{'':<8}        \u00b7   -4.000
          give back               parameter slot 0""".splitlines()
    told = narrate.told(trace, run_of()).split("\n\n")
    assert "  layer 0      0      0      1    pad" in told[1]
    assert told[-1].endswith("\n  in forward          1 x 3 = 3")
    assert told[3:5] == ["all_gather: on a stream of their own, copies\n"
                         "told in program order: layers may be gathered ahead of use", f"""\
forward
  borrow parameter slot 0 for layer 0, 16 bytes: 24 in use
  layer 0 all_gather for backward: 2 to each other rank
  all      1.500  2.000 -3.000    pad
{'  layer 0 forward: with these parameters (as above)':<75}  43
  rank 0   y -1e-04  0.000
  rank 1   y -1e-04  0.000
update
{'  layer 0 adam: the new weights, in fp32':<75}  43
  rank 0   0.500  1.000      \u00b7      \u00b7
  rank 1       \u00b7      \u00b7 -4.000    pad
  give back parameter slot 0 of layer 0, 16 bytes: 0 in use (its scope ends)
the mean loss is {0.75 / (1 + before):.5f}, the norm of the mean gradient 2.00000"""]
    assert told[2].splitlines() == [
        "held throughout, by each rank", "  optimizer, momentum   2 of 4 in fp32, 8 bytes",
        "  optimizer, variance   2 of 4 in fp32, 8 bytes, on its disk"]
    assert "; 1 sample per rank and step," in told[0]


@pytest.mark.parametrize("words", ([], ["1"], ["x.2"]))
def test_no_element_to_follow(monkeypatch, words):
    monkeypatch.setattr("sys.argv", ["narrate.py", "--follow", *words])
    with pytest.raises(Failure, match="--follow needs a layer and an element of it, as"):
        narrate.main()


def test_numbers_that_two_layers_share_are_told_of_both(folder):
    events = [event(rank, f"forward of layer {at}", at, writes=[
        {"of": "parameters", "layer": at, "start": 0, "size": 4, "values": [1, 2, 3]}])
              for rank in (0, 1) for at in (0, 1)]
    told = narrate.told(made(folder, events, layers=((3, 4),) * 2), run_of())
    assert told.count("  all      1.000  2.000  3.000    pad") == 2


def test_figures_of_a_step_are_told(folder):
    """One of three measured steps was skipped: so a step has a third of what was sent in forward,
    but half of what was sent in update."""
    rows = {"resident": 16, "peak": 24, "predicted": 24, "predicted_resident": 16,
            "formula": "8 x 2 + 8"}
    phases = {of: {"formula": f"1 x {of}", "predicted": 12} for of in ("forward", "update")}
    one = {"step": 1, "loss": 0.25, "grad_norm": 2}  # the step before it was not measured
    run = run_of(steps=[{"step": 0, "skipped": True}, one, {"skipped": True}, {}],
                 summary={"memory": {"parameters": rows}, "traffic": {"phases": phases},
                          "steps": 3})
    run.options["accumulate"] = 2
    told = narrate.told(made(folder, [event(rank, "adam of layer 0", 1) for rank in (0, 1)]), run)
    for words in ("; 2 samples per rank and step,", "parameters          8 x 2 + 8 = 24\n",
                  "in forward          1 x forward = 4\n", "in update           1 x update = 6"):
        assert words in told


def test_ranks_of_a_recording():
    for ranks in ("0", "-3"):
        with pytest.raises(Failure, match=f"--ranks {ranks}: at least one"):
            recording(["--run", "build", "mpiexec", "06_zero3", "--ranks", ranks], 4, {})
    with pytest.raises(SystemExit) as done:
        recording(["--run", "build", "mpiexec", "06_zero3", "--help"], 4, {})
    assert done.value.code == 0


def test_memory_by_phase(folder, before):
    """Two ranks with a layer of 4 elements in fp32 hold 4 x 4/2 bytes of parameters, of gradients
    and of each moment. Prefetch 1 adds two slots of 16 bytes."""
    held = KIND_BYTES | {"parameters": 8, "gradients": 8, "optimizer": 16}
    course = [(0, "setup", {}), (1, "load", {"activations": 20}),
              (1, "forward", {"parameters": 40, "activations": 20}),
              (1, "forward", {"parameters": 24, "activations": 32}),
              (1, "backward", {"gradients": 24}), (1, "update", {"gradients": 24}),
              (1, "update", {})]
    run = run_of()
    run.memory["activations"] |= {"predicted": 32, "formula": "4 x 8"}
    nothing = {kind: {"resident": 0} for kind in KINDS}
    run.places = {"device": run.memory,
                  "disk": nothing | {"optimizer": {"resident": 9, "formula": "3 x 3"}}}
    events = [event(rank, "x", order, during, step, in_use=held | more if rank else held)
              for rank in (0, 1) for order, (step, during, more) in enumerate(course)]
    lines = [*memory.table(made(folder, events, before), run)]
    head = next(at for at, line in enumerate(lines) if "figures" in line)
    assert "17 of 17 figures equal" in lines[head]
    cells = {line[:15].strip(): line[15:].split() for line in lines[:head]}
    assert cells["activations"] == ["0", "20", "32", "0", "0"]
    assert cells["change"] == ["32", "20", "28", "-32", "-16"]
    assert cells["peak within"] == ["32", "52", "84", "80", "48"]
    assert cells["their peaks"] == ["64", "84", "116", "112", "80"]
    assert cells["all ranks"] == ["64", "84", "112", "80", "64"] and "on rank 1," in lines[1]
    assert "  parameters     + 1 x 4 x 4 = 16, after forward" in lines
    assert lines[-2:] == ["all the time on the disk, by their formulas",
                          "  optimizer      3 x 3 = 9"]
    again = [event(rank, "x", order, during, 2 + before, in_use=held | more if rank else held)
             for rank in (0, 1) for order, (_, during, more) in enumerate(course[1:], len(course))]
    changes = [line.split()[1:] for line in memory.table(made(folder, events + again), run)
               if line.startswith("  change")]
    assert changes[1] == changes[0][1:], "the second step begins with what the first left"
    run.memory["activations"]["predicted"] = 33
    for task, says in (("mlp", "forward of step {}: 32 in use, 33"),
                       ("toy", f"load of step {{}}: 20 in use, {4 * 128}")):  # toy has 128 inputs
        run.options["task"] = task
        with pytest.raises(Failure, match=says.format(1 + before)):
            [*memory.table(Trace(folder / "trace"), run)]
