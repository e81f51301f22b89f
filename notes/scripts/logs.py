# SPDX-License-Identifier: MIT
"""Logs of runs that others started: read, named, and set beside a reference."""
import json
from pathlib import Path

from runs import CHAPTERS, Failure, Run

# Options that name no run: where it writes, and what is told otherwise.
UNTOLD = ("log", "trace", "data", "quiet", "dtype", "device", "timeout")
UNLIMITED = ("link", "latency", "bus", "device-memory")  # if 0: there is no word for it


def load(path, show):
    """The run that a log tells of; throws Failure (3) where it is not one of a finished run.
    show: does with the run all that will be done with it; what it cannot do that with is no log."""
    run = Run("", 0, None, [], [], Path(path))
    try:
        if not run.log.read_bytes().startswith(b'{"run":'):
            raise Failure(f"{path} is no log: it does not begin as what --log writes", 3)
        run.read()
        run.chapter, run.ranks = run.info["chapter"], run.info["ranks"]
        show(run)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", 3) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise Failure(f"{path} is incomplete: its end is cut off", 3) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Failure(f"{path} is no log as these programs write it: {error!r}", 3) from None
    return run


def labels(runs, widest=24):
    """For each run the shortest name that tells it from the others."""
    options = [{name: value for name, value in run.info["options"].items() if name not in UNTOLD}
               for run in runs]

    def told(own):
        """What is not the same in all, and how it is asked for."""
        return [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in own.items() if (value or name not in UNLIMITED)
                and any(name in other and other[name] != value for other in options)]

    plain = [f"{run.number} {run.dtype}" for run in runs]
    for found in (plain, [" ".join([name, *told(own)]) for name, own in zip(plain, options)],
                  [f"{run.number} {run.log.stem}" for run in runs]):
        if len(set(found)) == len(runs) and max(map(len, found)) <= widest:
            return found
    return [f"{place}: {run.number} {run.log.stem}"[:widest] for place, run in enumerate(runs, 1)]


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
