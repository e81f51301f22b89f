# SPDX-License-Identifier: MIT
"""Pictures of one step from the files that --trace writes: memory over time, and who works when."""
import json
from dataclasses import dataclass
from pathlib import Path

import figures
import mountain
from compare import megabytes
from findings import Section, Table, labels, listed, picture
from runs import Failure
from tables import spaced

WARM_UP = 3  # first steps that are left out where there are more
RANK = 0  # that is shown
COMPUTE, MESSAGES, EXPOSED, ADAM = (figures.CHAPTER_COLOURS[i] for i in (3, 0, 5, 4))
CORES = "host cores"  # the track of what computes beside the device


@dataclass
class Step:
    """Of one rank; times in ms from its beginning."""
    number: int
    ms: float
    slices: list  # (category, or CORES for what these compute; name, begin, end)

    def during(self, category):
        """Intervals in which something of it is under way."""
        return joined((begin, end) for cat, _, begin, end in self.slices if cat == category)

    def exposed(self, category):
        """Those parts of them in which nothing computes."""
        return without(self.during(category), self.during("compute"))


def joined(intervals):
    """Intervals as few, in order, none of which overlap."""
    found = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return found


def without(intervals, others):
    """The parts of intervals that lie in none of the others; both joined."""
    found = []
    for begin, end in intervals:
        for other_begin, other_end in others:
            if other_end > begin and other_begin < end:
                if other_begin > begin:
                    found.append([begin, other_begin])
                begin = other_end
        if begin < end:
            found.append([begin, end])
    return found


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def read(runs, what):
    """[(run, what(path of its trace))] of the runs whose trace is there. Throws Failure where there
    are none, or a broken one."""
    answers = []
    for run in runs:
        name = Path(run.info["options"].get("trace") or "")
        path = next((p for p in (name, run.log.parent / name.name) if p.is_file()), None)
        try:
            answers += [(run, what(path))] if path else []
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Failure(f"{path} is no trace as these programs write it: {error!r}") from None
    if not answers:
        raise Failure("No run here has a trace. A run started with --trace FILE has it: the first "
                      "steps, as Perfetto shows them too.")
    return answers


def fastest_step(path):
    """Without the first ones."""
    events = [event for event in json.loads(path.read_text())["traceEvents"]
              if event["pid"] == RANK]
    cores = {event["tid"] for event in events
             if event["ph"] == "M" and event["args"].get("name") == CORES}
    slices = [event for event in events if event["ph"] == "X"]
    steps = [event for event in slices if event["cat"] == "step"]
    step = min(steps[WARM_UP if len(steps) > WARM_UP else 0:], key=lambda step: step["dur"])
    begin, end = step["ts"], step["ts"] + step["dur"]

    def ms(time):
        return (min(max(time, begin), end) - begin) / 1e3

    # Streams may still be at work for the step before; the last work of this one is then after it.
    return Step(step["args"]["step"], ms(end), [
        (CORES if e["tid"] in cores and e["cat"] == "compute" else e["cat"], e["name"],
         ms(e["ts"]), ms(e["ts"] + e["dur"]))
        for e in slices if e["ts"] < end and e["ts"] + e["dur"] > begin])


# ---- Memory ----------------------------------------------------------------------------------

def mountains(study):
    steps = read(study.runs, mountain.step_of)

    def draw():
        columns = min(3, len(steps))
        rows = -(-len(steps) // columns)
        height = 60 + 200 * rows
        fig, axes = picture(720, height, "Bytes in use through a step, by kind", rows, columns,
                            squeeze=False, sharey=True)
        for ax, (run, step) in zip(axes.flat, steps):
            mountain.draw_step(ax, step)
            ax.set_title(run.label)
            if len(step) > 3:  # several micro-batches: the first letters find room
                ax.set_xticks(ax.get_xticks(), [name[0] for name, _ in step])
        for ax in axes.flat[len(steps):]:
            ax.set_visible(False)
        for ax in axes[:, 0]:
            ax.set_ylabel("decimal MB")
        shown = {name: handle for ax in axes.flat
                 for handle, name in zip(*ax.get_legend_handles_labels())}
        fig.legend(shown.values(), shown.keys(), loc="upper left", ncols=4)
        fig.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 50 / height))
        return fig

    rows = []
    for run, step in steps:
        sums = [(name, sum(held.values())) for name, course in step for held in course]
        least, most = (choose(count for _, count in sums) for choose in (min, max))
        rows.append([run.label, *map(spaced, (least, most, most - least)),
                     ", ".join(dict.fromkeys(name for name, count in sums if count == most))])
    peaks = {run.label: mountain.peak(step) for run, step in steps}
    high, low = (choose(peaks, key=peaks.get) for choose in (max, min))
    title = f"{high} rises to {megabytes(peaks[high])} MB in a step" + (
        f", {low} to {megabytes(peaks[low])} MB" if low != high else "")
    device = ", on a device," if any(run.on_host for run, _ in steps) else ""
    return Section(
        title, f"Rank {RANK}'s bytes in use{device} after every take and return of one step, in "
        "their order: the phases are drawn equally wide, all runs on one scale.", [draw],
        [Table(["run", "least", "most", "between", "most in"], rows, "Bytes in use in a step")])


# ---- Time ------------------------------------------------------------------------------------

def draw_timelines(names, steps):
    heights = [5 if step.during("bus") else 3 for step in steps]  # tracks
    fig, axes = picture(720, 40 + 45 * len(steps) + 20 * sum(heights),
                        "What a rank does when, in one step", len(steps), squeeze=False,
                        sharex=True, height_ratios=heights)
    longest = max(step.ms for step in steps)
    for row, label, step, height in zip(axes[:, 0], names, steps, heights):
        phases = [slice[1:] for slice in step.slices if slice[0] == "phase"]
        for i, (name, begin, end) in enumerate(phases):
            row.barh(0, end - begin, 0.8, begin, color=figures.INK, alpha=0.12 + 0.12 * (i % 2))
            if end - begin > longest / 12:
                row.text((begin + end) / 2, 0, name, ha="center", va="center", size=11)
        for y, intervals, colour in (
                (1, step.during("compute"), COMPUTE), (2, step.during("collective"), MESSAGES),
                (2, step.exposed("collective"), EXPOSED), (3, step.during("bus"), MESSAGES),
                (3, step.exposed("bus"), EXPOSED), (4, step.during(CORES), ADAM)):
            row.broken_barh([(b, e - b) for b, e in intervals], (y - 0.4, 0.8), color=colour,
                            linewidth=0)
        tracks = ("host", "compute", "communication", "copies", CORES)
        row.set_yticks(*zip(*enumerate(tracks[:height])))
        row.invert_yaxis()
        row.grid(visible=False)
        row.set_title(label)
        row.set_xlim(0, longest)
    axes[-1, 0].set_xlabel("ms since the step's beginning")
    return fig


def timelines(study):
    runs = [*study.runs, *study.more]
    traced = read(runs, fastest_step)
    slow = [pair for pair in traced
            if any(pair[0].info["options"].get(what) for what in ("link", "bus"))]
    shown, steps = zip(*(slow or traced))
    names = labels(shown, 40)
    rows = []
    for label, step in zip(names, steps):
        messages, exposed = (length(step.during("collective")), length(step.exposed("collective")))
        rows.append([label, step.number, *(f"{ms:.2f}" for ms in (
            step.ms, length(step.during("compute")), messages, exposed, messages - exposed,
            length(step.during("bus")), length(step.exposed("bus"))))])
    talking = [(length(step.exposed("collective")), label, step.ms)
               for label, step in zip(names, steps) if step.during("collective")]
    waits = [f"{label} waits {exposed:.1f} ms of its {ms:.1f} for messages"
             for choose in (max, min) if talking for exposed, label, ms in [choose(talking)]]
    ways = []
    for what, unit in (("link", "Gbit/s"), ("bus", "GB/s")):
        speeds = {run.info["options"].get(what) or 0 for run in shown} - {0}
        if speeds:
            ways.append(f"a {what} of {listed([f'{speed:g}' for speed in sorted(speeds)])} {unit}")
    where = f" over {' or '.join(ways)}" if ways else ""
    return Section(
        ", ".join(dict.fromkeys(waits)) or "No run communicates",
        f"Rank {RANK} in its fastest step{where}, all on one scale of time. "
        "Communication is red where nothing computes meanwhile: that is exposed, and makes the "
        "step longer; it is blue beside computing. So are copies over a bus; what the host's cores "
        "compute hides nothing.", [lambda: draw_timelines(names, steps)],
        [Table(["run", "step", "ms", "computing", "messages", "exposed", "hidden", "copies",
                "exposed"], rows, "ms of the step")])
