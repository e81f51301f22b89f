# SPDX-License-Identifier: MIT
"""A recording: what one run wrote with --trace and --log, read or made for the views of it.

What an event of the trace says in `args` stands in notes/running.md."""
import argparse
import json
import tempfile
from pathlib import Path

from runs import Failure, Programs, Run, text_in


class Trace:
    """Of some steps: by rank its events, each with the name of its stream."""

    def __init__(self, path):
        try:
            read = json.loads(text_in(path))
            self.about, streams = read["otherData"], {}
            self.layers = self.about["layers"]
            self.events = [[] for _ in range(self.about["ranks"])]
            for event in read["traceEvents"]:
                if event["name"] == "thread_name":
                    streams[event["pid"], event["tid"]] = event["args"]["name"]
                elif event["ph"] in "Xi":
                    event["stream"] = streams[event["pid"], event["tid"]]
                    self.events[event["pid"]].append(event)
            self.steps = sorted({event["args"]["step"] for event in self.events[0]} - {0})
        except (LookupError, OSError, RecursionError, TypeError, ValueError):
            raise Failure(f"{path} cannot be read as a trace of these programs", 3) from None

    def program(self, rank, *steps):
        """The rank's work, and what it borrows and gives back, in the order of the program. Reads
        from a disk, and writes, of the tensors of one piece are one event."""
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


def recording(arguments, ranks, defaults, broken=False):
    """The trace and the log of the files TRACE LOG, or of a run that is made for it, of
    --run BUILD MPIEXEC CHAPTER [--ranks N] OPTION..., with the defaults that no option replaces.
    01, which is one process, has as many micro-batches as the others have ranks. A broken program
    writes both too, and then fails."""
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
    given = {word.partition("=")[0] for word in words}
    for name, value in (defaults | ({"--accumulate": options.ranks} if alone else {})).items():
        words += [] if name in given else [name, str(value)]
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
