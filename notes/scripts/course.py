# SPDX-License-Identifier: MIT
"""Draws a whole step of ZeRO-3 over time, from the trace that --trace writes."""
import json
import re
from dataclasses import dataclass

import traces
from figures import KIND_COLOURS, figure
from runs import Failure

LETTERS = {"all_gather": "g", "forward": "f", "backward": "b", "reduce_scatter": "r", "adam": "a"}
TRACKS = ("compute", "communication")
NARROW = 15  # pixels: a task that has no room for its name


@dataclass
class Task:
    """On one of TRACKS; times in ms."""
    track: str
    what: str  # a key of LETTERS, or what has no layer
    layer: int | None
    phase: str
    begin: float
    end: float
    own: bool = True  # of the step that is drawn


def step_of(path):
    """Rank 0's fastest step: its tasks, from the first gather to the last layer's Adam, and what
    the streams do of other steps meanwhile; times since the first of them."""
    events = [event for event in json.loads(path.read_text())["traceEvents"]
              if event["pid"] == traces.RANK]
    names = {event["tid"]: event["args"].get("name") for event in events if event["ph"] == "M"
             and event["name"] == "thread_name"}
    number = traces.fastest_step(path).number
    found, begun = [], None
    for event in sorted((event for event in events if event["ph"] == "X"),
                        key=lambda event: event["ts"]):
        track, begin = names.get(event["tid"]), event["ts"] / 1e3
        if track in TRACKS and event["cat"] in ("compute", "collective"):
            what, layer = re.fullmatch(r"(\S+)(?: of layer (\d+))?", event["name"]).groups()
            if what == "all_gather":
                begin, begun = begun or begin, None
            found.append(Task(track, what, int(layer) if layer else None, event["args"]["phase"],
                              begin, (event["ts"] + event["dur"]) / 1e3,
                              event["args"]["step"] == number))
        elif event["cat"] == "copy":
            begun = begin  # a gather's first part: the own shard goes into the slot
    own = [task for task in found if task.own and task.what in LETTERS]
    if not any(task.what == "all_gather" for task in own):
        raise Failure(f"{path}: step {number} gathers no layer")
    begin, end = min(task.begin for task in own), max(task.end for task in own)
    within = [task for task in found if task.end > begin and task.begin < end]
    for task in within:
        task.begin, task.end = max(task.begin, begin) - begin, min(task.end, end) - begin
    return sorted(within, key=lambda task: task.begin)


def lent(tasks, slots):
    """(row, layer, begin, end) of every whole layer: of parameters, in so many slots in turn, from
    the beginning of its gather until the layer is computed; of gradients, in two buffers, from the
    beginning of its backward until it is reduced."""
    def one(what, layer, phase):
        return next(task for task in tasks if task.own
                    and (task.what, task.layer, task.phase) == (what, layer, phase))

    rows, used = [], {"all_gather": 0, "reduce_scatter": 0}
    for task in tasks:
        if not task.own or task.what not in used:
            continue
        use, used[task.what] = used[task.what], used[task.what] + 1
        if task.what == "all_gather":
            rows.append((use % slots, task.layer, task.begin,
                         one(task.phase, task.layer, task.phase).end))
        else:
            rows.append((slots + use % 2, task.layer,
                         one("backward", task.layer, "backward").begin, task.end))
    return rows


def in_use(rows, slots, layer_bytes):
    """(time, bytes of whole layers of parameters, of gradients) at every change."""
    changes = sorted((time, row >= slots, sign) for row, _, begin, end in rows
                     for time, sign in ((begin, 1), (end, -1)))
    steps, held = [(0, 0, 0)], [0, 0]
    for time, kind, sign in changes:
        held[kind] += sign * layer_bytes
        steps.append((time, *held))
    return steps


def bars(ax, y, begin, end, colour, words, wide, alpha=1):
    ax.broken_barh([(begin, end - begin)], (y - 0.4, 0.8), facecolor=colour, alpha=alpha,
                   edgecolor="white", linewidth=0.5)
    if end - begin > wide:
        ax.text((begin + end) / 2, y, words, color="white", size=10.5, ha="center", va="center")


def draw(tasks, slots, shards, layer_bytes, model, rest):
    """shards: bytes of parameters and of gradients that the rank holds; layer_bytes: of a whole
    layer; model, and the rest of what is held: for the subtitle."""
    end = max(task.end for task in tasks)
    computing, messages = (traces.joined((t.begin, t.end) for t in tasks if chosen(t))
                           for chosen in (lambda t: t.what in LETTERS and t.track == "compute",
                                          lambda t: t.what in LETTERS and t.track != "compute"))
    exposed = traces.length(traces.without(messages, computing))
    fig, axes = figure(
        720, 580, 3, title=f"Of {traces.length(messages):.0f} ms of messages this step of ZeRO-3 "
        f"waits for {exposed:.0f} (red)",
        subtitle=f"{model}. By layer: g gather,\nf forward, b backward, r reduce-scatter of its "
        "gradient, a Adam on the shard (pale: another step's).\nBelow: the window; parameters and "
        f"gradients in use. Not shown: {rest}", sharex=True,
        height_ratios=(2.2, 2 + slots, 4.2))
    wide = NARROW * end / 590
    for task in tasks:
        if task.what in LETTERS:
            colour = traces.MESSAGES if task.track != "compute" else (
                traces.ADAM if task.what == "adam" else traces.COMPUTE)
            bars(axes[0], TRACKS.index(task.track), task.begin, task.end, colour,
                 f"{LETTERS[task.what]}{task.layer}", wide, 1 if task.own else 0.35)
    for begin, until in traces.without(messages, computing):
        axes[0].broken_barh([(begin, until - begin)], (1.44, 0.12), facecolor=traces.EXPOSED)
    rows = lent(tasks, slots)
    for row, layer, begin, until in rows:
        bars(axes[1], row, begin, until, KIND_COLOURS[row >= slots], f"layer {layer}", 3 * wide)
    for ax, names in ((axes[0], TRACKS),
                      (axes[1], [*(f"slot {i + 1}" for i in range(slots)),
                                 *(f"gradients {i + 1}" for i in range(2))])):
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.grid(visible=False)
        ax.tick_params(axis="both", length=0)
    times, parameters, gradients = zip(*in_use(rows, slots, layer_bytes), (end, 0, 0))
    heights = [[count / 1e6 for count in counts] for counts in (
        [shards[0]] * len(times), [shards[1]] * len(times), parameters, gradients)]
    axes[2].stackplot(
        times, *heights, step="post", linewidth=0,
        colors=[colour + light for light in ("", "90") for colour in KIND_COLOURS[:2]],
        labels=[f"{what} of {kind}" for what in ("shards", "whole layers")
                for kind in ("parameters", "gradients")])
    axes[2].set(xlim=(0, end), ylim=(0, 1.4 * max(map(sum, zip(*heights)))),
                ylabel="in use (MB)", xlabel="ms since the first gather began")
    axes[2].legend(loc="upper left", ncols=2, fontsize=11)
    for ax in axes[:2]:
        ax.spines["left"].set_visible(False)
        ax.spines["bottom"].set_visible(False)
    return fig
