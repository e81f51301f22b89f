# SPDX-License-Identifier: MIT
"""Reads a recording: what one run wrote with --trace and --log.

narrate, memory, overlap, watch and compare read recordings with it. notes/running.md explains the
`args` of an event."""
import argparse
import json
import tempfile
from pathlib import Path

from runs import Failure, Programs, Run, text_in


class Trace:
    """The events of some steps, by rank, as the file has them. Each event gets three more keys:
    `task`, what is done ("all_gather"), `layer`, the layer's number or None, and `stream`, the name
    of the stream. `ts` and `dur` are in microseconds. `steps` has the steps' numbers."""

    def __init__(self, path):
        """Throws Failure if the file is no trace of these programs."""
        try:
            read = json.loads(text_in(path))
            self.about, streams = read["otherData"], {}
            self.layers = self.about["layers"]
            self.events = [[] for _ in range(self.about["ranks"])]
            for event in read["traceEvents"]:
                if event["name"] == "thread_name":
                    streams[event["pid"], event["tid"]] = event["args"]["name"]
                elif event["ph"] in "Xi":
                    needs = {"cat", "ts"} if event["ph"] == "i" else {"cat", "ts", "dur"}
                    if not needs <= event.keys():
                        raise LookupError
                    event["task"] = event["name"].partition(" of layer ")[0]
                    event["layer"] = event["args"].get("layer")
                    event["stream"] = streams[event["pid"], event["tid"]]
                    self.events[event["pid"]].append(event)
            self.steps = sorted({event["args"]["step"] for event in self.events[0]} - {0})
        except (LookupError, OSError, RecursionError, TypeError, ValueError):
            raise Failure(f"{path} cannot be read as a trace of these programs", 3) from None

    def program(self, rank, *steps):
        """Returns what a rank does, borrows and gives back in these steps (0: before the first), in
        program order. The disk moves a piece tensor by tensor; here a piece is one event."""
        found = []
        for event in sorted((event for event in self.events[rank] if "order" in event["args"]
                             and event["args"]["step"] in steps),
                            key=lambda event: event["args"]["order"]):
            one, more = found[-1]["args"] if found else {}, event["args"]
            if found and event["stream"] in ("reads", "writes") and \
                    event["name"] == found[-1]["name"] and \
                    more["reads"][0]["of"] not in [view["of"] for view in one["reads"]]:
                found[-1] = found[-1] | {"args": one | {
                    key: one[key] + more[key] for key in ("elements", "bytes", "reads", "writes")}}
            else:
                found.append(event)
        return found

    def moments(self, *steps):
        """Returns tuples of an event of each rank, all at the same place of the program."""
        return zip(*(self.program(rank, *steps) for rank in range(len(self.events))), strict=True)


class Memory:
    """The numbers that one rank has written so far."""

    def __init__(self, layers):
        self.layers = layers
        self.cells = {}  # {(what is held, the slot if it is lent, layer): the layer's numbers}

    def layer(self, view):
        """Returns the numbers of the layer that the view is a part of; an unknown one is None."""
        place = view["of"], view.get("slot"), view["layer"]
        return self.cells.setdefault(place, [None] * self.layers[view["layer"]]["size"])

    def write(self, view):
        values = view.get("values", [None] * view["size"])  # none of a large model, none of padding
        pads = ["pad"] * (view["size"] - len(values))
        self.layer(view)[view["start"]:view["start"] + view["size"]] = [*values, *pads]


def recording(arguments, ranks, defaults, broken=False):
    """Returns (Trace, Run). `arguments` name the two files of a run, TRACE LOG, or ask for a run:
    --run BUILD MPIEXEC CHAPTER [--ranks N] OPTION... `ranks` and `defaults`, {option: value}, hold
    if these words do not say otherwise. 01 is one process, which takes a micro-batch for each rank
    of other chapters. With broken=True the program may fail after it has written its files."""
    if arguments[:1] != ["--run"]:
        if len(arguments) != 2:
            raise Failure("name the two files that a program wrote with --trace and --log", 2)
        run = Run(Path(arguments[1]))
        run.read()
        return Trace(arguments[0]), run
    parser = argparse.ArgumentParser(
        prog="tutorial", usage="./tutorial narrate|memory NN [--ranks N] [OPTION...]",
        allow_abbrev=False, description="OPTION is the program's: build/NN/NN --help lists them.")
    parser.add_argument("--ranks", type=int, default=ranks, help=f"processes to start ({ranks})")
    options, words = parser.parse_known_args(arguments[4:])
    if options.ranks < 1:
        raise Failure(f"--ranks {options.ranks}: at least one is needed", 2)
    build, mpiexec, chapter = arguments[1:4]
    alone = chapter == "01_adam"
    if alone:
        defaults = defaults | {"--accumulate": options.ranks}
    given = {word.partition("=")[0] for word in words}
    for name, value in defaults.items():
        if name not in given:
            words += [name, str(value)]
    with tempfile.TemporaryDirectory(prefix="recording_") as folder:
        programs, trace = Programs(Path(build), mpiexec, Path(folder)), f"{folder}/trace"
        launch = [] if alone else [*programs.mpiexec, "-n", str(options.ranks)]
        run = Run(Path(folder) / "log", command=[*launch, programs.program(chapter), *words,
                                                 "--trace", trace, "--log", f"{folder}/log"])
        try:
            run.execute()
        except Failure:
            if not broken:
                raise
            run.read()
        return Trace(trace), run
