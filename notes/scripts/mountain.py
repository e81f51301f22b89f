# SPDX-License-Identifier: MIT
"""The bytes in use through one step, read from a trace of --trace, as a picture's layers."""
import json
import math

from figures import INK, KIND_COLOURS
from runs import KINDS, Failure

PHASES = ("forward", "backward", "update")


def step_of(path):
    """Rank 0's last traced step: its phases in order, each as (name, bytes in use), the bytes a
    dict by kind, on entering and after each take and return."""
    events = sorted((event for event in json.loads(path.read_text())["traceEvents"]
                     if event["pid"] == 0 and "ts" in event), key=lambda event: event["ts"])
    phases = [event for event in events
              if event.get("cat") == "phase" and event["name"] in PHASES]
    counters = [event for event in events if event["ph"] == "C"]
    if not phases or not counters:
        raise Failure(f"{path} has no phases, or no bytes in use")
    step = []
    for phase in phases:
        if phase["args"]["step"] == phases[-1]["args"]["step"]:
            begin, end = phase["ts"], phase["ts"] + phase["dur"]
            before = [event["args"] for event in counters if event["ts"] < begin]
            within = [event["args"] for event in counters if begin <= event["ts"] < end]
            step.append((phase["name"], before[-1:] + within))
    return step


def peak(step):
    return max(sum(bytes_in_use.values()) for _, course in step for bytes_in_use in course)


def borrowed(step):
    """The step without what is held all through it."""
    held = {kind: min(bytes_in_use[kind] for _, course in step for bytes_in_use in course)
            for kind in KINDS}
    return [(name, [{kind: bytes_in_use[kind] - held[kind] for kind in KINDS}
                    for bytes_in_use in course]) for name, course in step]


def draw_step(ax, step):
    """A band for each phase, equally wide, whose takes and returns lie equally far apart."""
    x = [band + i / len(course) for band, (_, course) in enumerate(step)
         for i in range(len(course))]
    above = [0] * len(x)
    for order, (kind, colour) in enumerate(zip(KINDS, KIND_COLOURS)):
        heights = [bytes_in_use[kind] / 1e6 for _, course in step for bytes_in_use in course]
        if any(heights):
            above = [a + b for a, b in zip(above, heights)]
            # From the ground, behind the kinds before it; with points where something changes.
            tops = [top if own else None for top, own in zip(above, heights)]
            changes = [i for i in range(len(x)) if i == 0 or tops[i] != tops[i - 1]]
            ax.stairs([math.nan if tops[i] is None else tops[i] for i in changes],
                      [*(x[i] for i in changes), len(step)], fill=True, color=colour, linewidth=0,
                      label=kind, zorder=1 - order / 100)
    ax.vlines(range(1, len(step)), 0, max(above), color=INK, alpha=0.6, linewidth=1,
              linestyle=(0, (2, 2)))
    ax.set_xticks([band + 0.5 for band in range(len(step))], [name for name, _ in step], size=11)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(0, len(step))
    ax.set_ylim(bottom=0)
