# SPDX-License-Identifier: MIT
"""A picture of memory over one step from the files that --trace writes."""
from pathlib import Path

import mountain
from compare import megabytes
from findings import Section, Table, picture
from runs import Failure
from tables import spaced


def read(runs):
    """[(run, its step)] of the runs whose trace is there. Throws Failure where there are none, or a
    broken one."""
    answers = []
    for run in runs:
        name = Path(run.info["options"].get("trace") or "")
        path = next((p for p in (name, run.log.parent / name.name) if p.is_file()), None)
        try:
            answers += [(run, mountain.step_of(path))] if path else []
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Failure(f"{path} is no trace as these programs write it: {error!r}") from None
    if not answers:
        raise Failure("No run here has a trace. A run started with --trace FILE has it: the first "
                      "steps, as Perfetto shows them too.")
    return answers


def mountains(study):
    steps = read(study.runs)

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
        title, f"Rank 0's bytes in use{device} after every take and return of one step, in "
        "their order: the phases are drawn equally wide, all runs on one scale.", [draw],
        [Table(["run", "least", "most", "between", "most in"], rows, "Bytes in use in a step")])
