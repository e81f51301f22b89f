# SPDX-License-Identifier: MIT
"""Logs of runs that others started: read, checked, named, and set beside a reference."""
import json
from pathlib import Path

from runs import CHAPTERS, KINDS, Failure, Run, bits

WIDEST = 24  # of a label that tells options or a file


def load(path):
    """The run that a log tells of; throws Failure (3) where it is not one of a finished run."""
    run = Run("", 0, None, [], [], Path(path))
    try:
        if not run.log.read_bytes().startswith(b'{"run":'):
            raise Failure(f"{path} is no log: it does not begin as what --log writes", 3)
        run.read()
        check(run)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", 3) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise Failure(f"{path} is incomplete: its end is cut off", 3) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Failure(f"{path} is no log as these programs write it: {error!r}", 3) from None
    run.chapter, run.ranks = run.info["chapter"], run.info["ranks"]
    return run


def check(run):
    """Touches all that a comparison needs; throws what Python throws where it is not there."""
    options, traffic, total = run.info["options"], run.summary["traffic"], run.memory["total"]
    numbers = [run.info[name] for name in ("ranks", "parameters", "padded_parameters", "layers")]
    numbers += [options[name] for name in ("batch", "accumulate", "clip")]
    numbers += [run.memory[kind][what] for kind in KINDS
                for what in ("predicted", "predicted_resident", "resident", "peak", "reserved")]
    numbers += [total["resident"], total["peak"], run.summary["median_ms"]]
    numbers += [kind[what] for kind in run.on_host.values()
                for what in ("predicted", "predicted_resident", "resident", "peak")]
    numbers += [copied[what] for copied in run.bus.values() for what in ("predicted", "counted")]
    if bool(run.on_host) != bool(run.bus) or run.bus and not {"down", "up"} <= set(run.bus):
        raise LookupError("a host has memory and a bus")
    rows = [traffic["phases"][phase] for phase in ("forward", "backward", "update")]
    numbers += [row["predicted"] for row in [*rows, traffic["padding"], traffic["scalars"]]]
    words = [run.info[name] for name in ("chapter", "dtype", "family", "device")]
    words += [run.summary["digest"], *run.summary["layer_digests"]]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise TypeError("what should be a number is none")
    if not all(isinstance(word, str) for word in words) or not run.steps:
        raise TypeError("what should be a word is none, or there is no step")
    for step in run.steps:
        bits(step["loss"]), step["step"] + 0, step["ms"] + 0
    run.info["mpi"], run.info["gpu"], run.info["comm"]


def labels(runs, widest=WIDEST):
    """For each run the shortest name that tells it from the others."""
    def options(run):
        return {name: value for name, value in run.info["options"].items()
                if name not in ("log", "trace", "data", "quiet", "dtype", "device", "timeout")}

    named = [options(run) for run in runs]
    varying = [name for name in dict.fromkeys(name for values in named for name in values)
               if len({values[name] for values in named if name in values}) > 1]
    plain_names = [f"{run.number} {run.dtype}" for run in runs]
    for found in (plain_names,
                  [" ".join([plain, *(f"{name} {short_number(values[name])}" for name in varying
                                      if name in values and told(name, values[name]))])
                   for plain, values in zip(plain_names, named)],
                  [f"{run.number} {run.log.stem}" for run in runs]):
        if len(set(found)) == len(runs) and max(map(len, found)) <= widest:
            return found
    return [f"{place}: {run.number} {run.log.stem}"[:widest] for place, run in enumerate(runs, 1)]


def told(name, value):
    """What is without a limit has no word for it."""
    return value or name not in ("link", "latency", "bus", "device-memory")


def short_number(value):
    return f"{value:g}" if isinstance(value, float) else value


def short(run, runs):
    """Its chapter's number, where that tells it from the others."""
    return run.number if [r.number for r in runs].count(run.number) == 1 else run.label


def reference(run, runs):
    """The first run of its dtype, or else the first of all; None for the first of all."""
    first = next(r for r in runs if r.dtype == run.dtype)
    return first if run is not first else runs[0] if run is not runs[0] else None


def plain(run, runs):
    """The data-parallel run whose bytes those of a run are shares of: 02 or 03, of the same dtype
    and the same parameters; None where there is none."""
    return next((r for number in ("02", "03") for r in runs
                 if (r.number, r.dtype, r.ranks > 1) == (number, run.dtype, True) and
                 r.info["padded_parameters"] == run.info["padded_parameters"]), None)


def place(run):
    """Of its chapter among the chapters, for a colour; one that is not known has the first's."""
    return CHAPTERS.index(run.chapter) if run.chapter in CHAPTERS else 0
