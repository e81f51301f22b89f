# SPDX-License-Identifier: MIT
"""Pictures of one step from the files that --trace writes: memory over time, and who works when."""
import json
from dataclasses import dataclass
from pathlib import Path

import figures
import logs
import mountain
from compare import megabytes
from findings import Section, Table, listed, picture
from runs import Failure
from tables import spaced

WARM_UP = 3  # first steps that are left out where there are more
RANK = 0  # that is shown
COMPUTE, MESSAGES, EXPOSED, ADAM = (figures.CHAPTER_COLOURS[i] for i in (3, 0, 5, 4))
CORES = "host cores"  # the track of what computes beside the device
HOW = "A run started with --trace FILE has it: the first steps, as Perfetto shows them too."


@dataclass
class Step:
    """Of one rank; times in ms from its beginning."""
    number: int
    ms: float
    slices: list  # (category, or CORES for what these compute; name, begin, end)


def traced(runs):
    """[(run, path)] of the runs whose trace is there."""
    found = []
    for run in runs:
        name = Path(run.info["options"].get("trace") or "")
        path = next((p for p in (name, run.log.parent / name.name) if p.is_file()), None)
        found += [(run, path)] if path else []
    return found


def read(found, what):
    """[(run, what(path of its trace))]. Throws Failure where there are none, or a broken one."""
    if not found:
        raise Failure(f"No run here has a trace. {HOW}")
    answers = []
    for run, path in found:
        try:
            answers.append((run, what(path)))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Failure(f"{path} is no trace as these programs write it: {error!r}") from None
    return answers


def fastest_step(path):
    """Without the first ones."""
    events = [event for event in json.loads(path.read_text())["traceEvents"]
              if event["pid"] == RANK]
    cores = {event["tid"] for event in events
             if event["ph"] == "M" and event["args"].get("name") == CORES}
    slices = [event for event in events if event["ph"] == "X"]
    steps = {event["args"]["step"]: event for event in slices if event["cat"] == "step"}
    warm = sorted(steps)[WARM_UP if len(steps) > WARM_UP else 0:]
    number = min(warm, key=lambda step: steps[step]["dur"])
    length = steps[number]["dur"]
    begin, end = steps[number]["ts"], steps[number]["ts"] + length

    def ms(time):
        return (min(max(time, begin), end) - begin) / 1e3

    # Streams may still be at work for the step before; the last work of this one is then after it.
    within = [e for e in slices if e["ts"] < end and e["ts"] + e["dur"] > begin]
    return Step(number, length / 1e3, [
        (CORES if e["tid"] in cores and e["cat"] == "compute" else e["cat"], e["name"],
         ms(e["ts"]), ms(e["ts"] + e["dur"])) for e in within])


def mountains(study):
    steps = read(traced(study.runs), mountain.step_of)

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

    def least(step):
        return min(sum(held.values()) for _, course in step for held in course)

    rows = []
    for run, step in steps:
        most = mountain.peak(step)
        phases = dict.fromkeys(name for name, course in step
                               if most in (sum(held.values()) for held in course))
        rows.append([run.label, spaced(least(step)), spaced(most), spaced(most - least(step)),
                     ", ".join(phases)])
    highest, lowest = (choose(steps, key=lambda pair: mountain.peak(pair[1]))
                       for choose in (max, min))
    most, least_of_all = (megabytes(mountain.peak(step)) for _, step in (highest, lowest))
    title = f"{highest[0].label} rises to {most} MB in a step" + (
        f", {lowest[0].label} to {least_of_all} MB" if len(steps) > 1 else "")
    device = ", on a device," if any(run.on_host for run, _ in steps) else ""
    return Section(
        title, f"Rank {RANK}'s bytes in use{device} after every take and return of one step, in "
        "their order: the phases are drawn equally wide, all runs on one scale.", [draw],
        [Table(["run", "least", "most", "between", "most in"], rows, "Bytes in use in a step")])


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
                begin = max(begin, other_end)
        if begin < end:
            found.append([begin, end])
    return found


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def of(step, category):
    return joined((begin, end) for cat, _, begin, end in step.slices if cat == category)


def timelines(study):
    found = traced([*study.runs, *study.more])
    slow = [(run, path) for run, path in found
            if run.info["options"].get("link") or run.info["options"].get("bus")]
    steps = read(slow or found, fastest_step)
    shares = []
    for (_, step), label in zip(steps, logs.labels([run for run, _ in steps], 40)):
        computing, messages = of(step, "compute"), of(step, "collective")
        shares.append((label, step, computing, messages, without(messages, computing)))

    def draw():
        heights = [5 if of(step, "bus") else 3 for _, step in steps]  # tracks
        fig, axes = picture(720, 40 + 45 * len(steps) + 20 * sum(heights),
                            "What a rank does when, in one step", len(steps), squeeze=False,
                            sharex=True, height_ratios=heights)
        longest = max(step.ms for _, step in steps)
        for row, (label, step, computing, messages, exposed) in zip(axes[:, 0], shares):
            copies, cores = of(step, "bus"), of(step, CORES)
            phases = [s for s in step.slices if s[0] == "phase"]
            for i, (_, name, begin, end) in enumerate(phases):
                row.barh(0, end - begin, 0.8, begin, color=figures.INK, alpha=0.12 + 0.12 * (i % 2))
                if end - begin > longest / 12:
                    row.text((begin + end) / 2, 0, name, ha="center", va="center", size=11)
            for y, intervals, colour in (
                    (1, computing, COMPUTE), (2, messages, MESSAGES), (2, exposed, EXPOSED),
                    (3, copies, MESSAGES), (3, without(copies, computing), EXPOSED),
                    (4, cores, ADAM)):
                row.broken_barh([(b, e - b) for b, e in intervals], (y - 0.4, 0.8), color=colour,
                                linewidth=0)
            tracks = ("host", "compute", "communication", "copies", CORES)
            row.set_yticks(*zip(*enumerate(tracks[:5 if copies else 3])))
            row.invert_yaxis()
            row.grid(visible=False)
            row.set_title(label)
            row.set_xlim(0, longest)
        axes[-1, 0].set_xlabel("ms since the step's beginning")
        return fig

    rows = []
    for label, step, computing, messages, exposed in shares:
        copies = of(step, "bus")
        rows.append([label, step.number, *(f"{ms:.2f}" for ms in (
            step.ms, length(computing), length(messages), length(exposed),
            length(messages) - length(exposed), length(copies),
            length(without(copies, computing))))])
    talking = [(length(exposed), label, step.ms)
               for label, step, _, messages, exposed in shares if messages]
    title = "No run communicates"
    if talking:
        title = ", ".join(f"{label} waits {exposed:.1f} ms of its {ms:.1f} for messages" for
                          exposed, label, ms in dict.fromkeys((max(talking), min(talking))))

    def over(what, unit):
        speeds = sorted({run.info["options"].get(what) or 0 for run, _ in slow} - {0})
        named = [f"{speed:g}" for speed in speeds]
        return [f"a {what} of {listed(named)} {unit}"] if named else []

    ways = over("link", "Gbit/s") + over("bus", "GB/s")
    where = f" over {' or '.join(ways)}" if ways else ""
    return Section(
        title, f"Rank {RANK} in its fastest step{where}, all on one scale of time. "
        "Communication is red where nothing computes meanwhile: that is exposed, and makes the "
        "step longer; it is blue beside computing. So are copies over a bus; what the host's cores "
        "compute hides nothing.",
        [draw], [Table(["run", "step", "ms", "computing", "messages", "exposed", "hidden", "copies",
                        "exposed"], rows, "ms of the step")])
