# SPDX-License-Identifier: MIT
"""What offload buys and costs: a device on which a run fits, and copies over the bus."""
from compare import megabytes
from findings import Section, Table
from tables import spaced


def option(run, name):
    return run.info["options"].get(name) or 0


def story(refused, sentence, run):
    """The refused run, and that which takes its place on the same device, once it has ended."""
    total = run.memory["total"]
    return [[f"$ {refused.shown}", f"It is refused: {sentence}."],
            [f"$ {run.shown}",
             f"It runs: at most {spaced(total['peak'])} bytes at one moment on a device, "
             f"{spaced(sum(kind['peak'] for kind in run.on_host.values()))} on its host, "
             f"{run.summary['median_ms']:.1f} ms a step."]]


def times(run, what):
    """ms a step of copies down and up; None where the log does not tell."""
    return [run.bus[direction][f"{what}_ms"] for direction in ("down", "up")]


def exposed(run):
    return sum(ms or 0 for ms in times(run, "exposed"))


def name(run):
    bus = f"bus {option(run, 'bus'):g} GB/s" if option(run, "bus") else "unlimited bus"
    return f"{run.number} {run.dtype}, {bus}, prefetch {option(run, 'prefetch')}"


def table(runs):
    rows = []
    for run in runs:
        copied = [run.bus[way]["counted"] / len(run.steps) for way in ("down", "up")]
        rows.append([f"{run.number} {run.dtype}", run.info["ranks"],
                     f"{option(run, 'bus'):g}" if option(run, "bus") else "–",
                     option(run, "prefetch"), *map(megabytes, copied),
                     f"{run.summary['median_ms']:.1f}",
                     *("–" if ms is None else f"{ms:.2f}"
                       for ms in times(run, "exposed") + times(run, "hidden"))])
    return Table(["run", "ranks", "bus\nGB/s", "pre-\nfetch", "MB\ndown", "MB\nup", "ms\na step",
                  "exposed\ndown", "\nup", "hidden\ndown", "\nup"], rows,
                 "What a rank copies in a step, and the ms of it",
                 "Bus: its --bus, – is without a limit. Exposed: copies beside which the device "
                 "computed nothing; hidden: the others. What the host's cores do hides nothing. "
                 "Each the largest of the ranks' medians.")


def section(study):
    """None where no run has a host beside its device."""
    runs = [run for run in (*study.runs, *study.more) if run.bus]
    if not runs:
        return None
    most = max(runs, key=exposed)
    title = f"{name(most)}: a step waits {exposed(most):.1f} ms of its " \
            f"{most.summary['median_ms']:.1f} for copies"
    return Section(title, "A bus lies between a device and its host: gradients go down, Adam runs "
                   "on the host's cores, parameters come up.",
                   tables=[table(runs)], points=study.story)
