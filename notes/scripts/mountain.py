# SPDX-License-Identifier: MIT
"""Draws the bytes in use through one step of each chapter, from the traces of --trace."""
import json

from figures import INK, KIND_COLOURS, figure
from runs import KINDS, Failure

PHASES = ("forward", "backward", "update")


def step_of(path):
    """Rank 0's last traced step: its phases in order, each as (name, bytes in use), the bytes a
    dict by kind, on entering and after each take and return."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["pid"] == 0]
    phases = sorted((event for event in events if event.get("cat") == "phase"
                     and event["name"] in PHASES), key=lambda event: event["ts"])
    counters = sorted((event for event in events if event["ph"] == "C"),
                      key=lambda event: event["ts"])
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


def draw_step(ax, step):
    """A band for each phase, equally wide, whose takes and returns lie equally far apart."""
    x = [band + i / len(course) for band, (_, course) in enumerate(step)
         for i in range(len(course))] + [len(step)]
    below = [0] * len(x)
    for kind, colour in zip(KINDS, KIND_COLOURS):
        heights = [bytes_in_use[kind] / 1e6 for _, course in step for bytes_in_use in course]
        if any(heights):
            above = [a + b for a, b in zip(below, heights + heights[-1:])]
            ax.fill_between(x, below, above, step="post", color=colour, linewidth=0, label=kind)
            below = above
    ax.vlines(range(1, len(step)), 0, max(below), color=INK, alpha=0.6, linewidth=1,
              linestyle=(0, (2, 2)))
    ax.set_xticks([band + 0.5 for band in range(len(step))], [name for name, _ in step], size=11)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(0, len(step))
    ax.set_ylim(bottom=0)


def borrowed(step):
    """The step without what is held all through it."""
    held = {kind: min(bytes_in_use[kind] for _, course in step for bytes_in_use in course)
            for kind in KINDS}
    return [(name, [{kind: bytes_in_use[kind] - held[kind] for kind in KINDS}
                    for bytes_in_use in course]) for name, course in step]


def draw(traces, ranks, model):
    """traces: (chapter, dtype, path, bytes with the host) of six chapters, the last of which
    borrows as much as any; model: for the subtitle. MB are decimal."""
    steps = [step_of(path) for _, _, path, _ in traces]
    peaks = [peak(step) / 1e6 for step in steps]
    fig, axes = figure(
        720, 720, 3, 3, title=f"Through a whole step memory is a plateau: {peaks[1]:.0f} MB in "
        f"{traces[1][0][:2]}, {peaks[-1]:.0f} MB in {traces[-1][0][:2]}",
        subtitle=f"Rank 0 of {ranks}, {model}. Left to right: every take and return of memory in"
        "\none step, in their order; the phases are drawn equally wide")
    for ax, step, most, (chapter, dtype, _, host) in zip(axes.flat, steps, peaks, traces):
        draw_step(ax, step)
        ax.set_title(f"{chapter[:2]}, {dtype}: peak {most:.1f} MB")
        if host:
            ax.text(0.5, 0.8, f"on a device; on its\nhost {host / 1e6:.1f} MB", size=11,
                    ha="center", transform=ax.transAxes)
        ax.set_ylim(0, 1.05 * max(peaks))
        ax.tick_params(labelleft=ax in axes[:, 0])
    handles, names = axes[0, 0].get_legend_handles_labels()
    axes[2, 2].set_axis_off()
    axes[2, 2].legend(handles[::-1], names[::-1], loc="center")
    for ax in axes[2, :2]:
        ax.remove()
    below = fig.add_subplot(axes[2, 0].get_gridspec()[2, :2])
    draw_step(below, borrowed(steps[-1]))
    below.set_title(f"{traces[-1][0][:2]} alone: what is borrowed, on a scale of its own")
    for ax in (*axes[:2, 0], below):
        ax.set_ylabel("in use (MB)")
    return fig
