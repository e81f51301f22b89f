# SPDX-License-Identifier: MIT
"""What logs count: bytes held, elements sent, bytes copied to a host and back, a step's time."""
import figures
from findings import Section, Table
from runs import (KINDS, SIZES, STATE, elements_sent, kinds_of, sent, sized, spaced, unit_of,
                  wrong_bytes, wrong_traffic)

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}  # of an element that is sent


def state(held, what="resident", kinds=STATE):
    """Bytes of kinds together."""
    return sum(held[kind][what] for kind in kinds)


def bytes_table(study, unit):
    kinds = kinds_of(study.runs)
    rows = []
    for run in study.runs:
        named = [(run.label, run.memory, "resident"), ("  peak", run.memory, "peak")]
        named += [("  on its host", held, "resident") for held in run.places[1:]]
        for name, held, what in named:
            rows.append([name, *(sized(held[kind][what], unit) for kind in [*kinds, "total"]),
                         sized(run.ranks * held["total"][what], unit)])
    host = " On its host: all of it throughout; the run's other rows are its device's." \
        if any(run.on_host for run in study.runs) else ""
    return Table(["run: resident", *kinds, "all", "all\nranks"], rows, f"Bytes in decimal {unit}",
                 "Of the rank that has most; all ranks: so often. Resident: held all the time. "
                 "Peak: with what is borrowed inside a step. The kinds peak at different moments, "
                 f"so the peak of all is at most the sum of the peaks.{host}")


def shares(study):
    """[(run, bytes of the data-parallel run that they are shares of)]: of 02 or 03, of the same
    dtype and parameters; without the runs for which there is none."""
    def alike(run, other):
        return (other.number in ("02", "03") and other.ranks > 1 and other.dtype == run.dtype and
                other.info["padded_parameters"] == run.info["padded_parameters"])

    return [(run, min(beside, key=lambda other: other.number).memory) for run in study.runs
            for beside in [[other for other in study.runs if alike(run, other)]] if beside]


def percent(a, b):
    return f"{100 * a / b:.1f}"


def share_table(known):
    rows = []
    for run, whole in known:
        for name, held in zip((run.label, "  on its host"), run.places):
            resident, peak = ([percent(state(held, what, kinds), state(whole, what, kinds))
                               for kinds in (*([kind] for kind in STATE), STATE)]
                              for what in ("resident", "peak"))
            theory = percent(state(held, "predicted_resident"), state(whole))
            rows.append([name, *map(" / ".join, zip(resident, peak)), theory])
    note = ("Data parallelism: 02 in fp32, 03 in 16 bits. Theory: the chapter's formula of what is "
            "held, which knows no borrowed layers.")
    return Table(["run", *STATE, "all three", "theory"], rows,
                 "Resident / peak bytes of a rank in % of those of data parallelism", note)


def bytes_figure(study, unit):
    """Of each run a bar of what is resident, and below it one of the peaks."""
    kinds = kinds_of(study.runs)
    held = {f"{run.label}{place}": memory for run in study.runs
            for place, memory in zip(("", ", host"), run.places)}
    height = 90 + 40 * len(held)
    fig, axes = figures.figure(720, height)
    fig.set_label("Resident and peak bytes by kind of every run")
    for i, memory in enumerate(held.values()):
        for y, what, predicted in ((i - 0.2, "resident", "predicted_resident"),
                                   (i + 0.2, "peak", "predicted")):
            left = formula = 0
            for kind in kinds:
                length = memory[kind][what] / SIZES[unit]
                axes.barh(y, length, 0.375, left, color=figures.KIND_COLOURS[KINDS.index(kind)],
                          label=kind if (i, what) == (0, "resident") else None)
                left, formula = left + length, formula + memory[kind][predicted] / SIZES[unit]
                axes.plot([formula] * 2, [y - 0.15, y + 0.15], color=figures.INK, linewidth=1.5)
    axes.set_yticks(range(len(held)), held)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    axes.set_xlabel(f"decimal {unit} of the rank that has most")
    fig.legend(loc="upper left", ncols=4)
    fig.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 50 / height))
    return fig


def memory(study):
    unit = unit_of(*(held["total"]["peak"] for run in study.runs for held in run.places))
    tables = [bytes_table(study, unit)]
    if known := shares(study):
        tables.insert(0, share_table(known))
        run, whole = min(known, key=lambda pair: state(pair[0].memory) / state(pair[1]))
        held, peak = (percent(state(run.memory, what), state(whole))
                      for what in ("resident", "peak"))
        title = (f"{run.label} holds {held} % of data parallelism's state"
                 f"{' on a device' if run.on_host else ''}, and {peak} % at its peaks")
    else:
        run = min(study.runs, key=lambda r: r.memory["total"]["resident"])
        title = (f"{run.label} holds the fewest bytes{' on its device' if run.on_host else ''}: "
                 f"{sized(run.memory['total']['resident'], unit)} {unit}")
    return Section(title, "Above what is resident, held all the time; below the peaks, with what "
                   "is borrowed inside a step. Strokes: the formulas.",
                   [lambda: bytes_figure(study, unit)], tables,
                   [[said] for said in wrong_bytes(study.runs)])


def ms(rows, what):
    """Milliseconds a step, exposed or hidden; a dash where the log does not tell."""
    known = [row[what] for row in rows if row.get(what) is not None]
    return f"{sum(known):.2f}" if known else "–"


def traffic(study):
    rows, all_sent = [], [float(sum(sent(run).values())) for run in study.runs]
    unit = unit_of(*(n * BYTES[run.dtype] for n, run in zip(all_sent, study.runs)))
    for run, elements in zip(study.runs, all_sent):
        phases = run.summary["traffic"]["phases"]
        rows.append([run.label, spaced(round(elements)), elements_sent(run)[1],
                     sized(elements * BYTES[run.dtype], unit), f"{run.summary['median_ms']:.1f}",
                     *(ms(phases.values(), what) for what in ("exposed_ms", "hidden_ms"))])
    head = ["run", "elements\na step", "a\nparameter", f"{unit}\na step", "ms\na step",
            "ms\nexposed", "ms\nhidden"]
    note = (f"Sent by one rank, and its decimal {unit} in the run's dtype. Step: median, slowest "
            "rank. Exposed: communication during which nothing was computed; hidden: beside "
            "computing.")
    table = Table(head, rows, "What a rank sends, and the time of a step", note)
    wrong = wrong_traffic(study.runs)
    most = max(study.runs, key=lambda run: elements_sent(run)[0])
    least = min((run for run in study.runs if run.ranks > 1), default=most,
                key=lambda run: elements_sent(run)[0])
    title = f"{most.label} sends {elements_sent(most)[1]} elements a parameter and step" \
        if elements_sent(most)[0] else "No rank sends anything"
    if least is not most:
        title += f", {least.label} {elements_sent(least)[1]}"
    title += "; the counts differ from the formulas" if wrong else ", as the formulas say"
    return Section(title, "The elements that left a rank, counted where they left it.", [], [table],
                   [[said] for said in wrong])


def copies(study):
    """None where no run has a host beside its device."""
    runs = [run for run in (*study.runs, *study.more) if run.bus]
    if not runs:
        return None
    rows, waits = [], []
    unit = unit_of(*(way["counted"] / run.taken for run in runs for way in run.bus.values()))
    for run in runs:
        bus, both = run.options["bus"], [run.bus[way] for way in ("down", "up")]
        rows.append([f"{run.number} {run.dtype}", run.ranks, f"{bus:g}" if bus else "–",
                     run.options.get("prefetch", "–"),
                     *(sized(way["counted"] / run.taken, unit) for way in both),
                     f"{run.summary['median_ms']:.1f}",
                     *(ms([way], what) for what in ("exposed_ms", "hidden_ms") for way in both)])
        waits.append(sum(way["exposed_ms"] or 0 for way in both))
    head = ["run", "ranks", "bus\nGB/s", "pre-\nfetch", f"{unit}\ndown", f"{unit}\nup",
            "ms\na step", "exposed\ndown", "\nup", "hidden\ndown", "\nup"]
    note = ("Bus: its --bus, – is without a limit. Exposed: copies beside which the device "
            "computed nothing; hidden: the others. What the host's cores do hides nothing. Each "
            "the largest of the ranks' medians.")
    table = Table(head, rows, "What a rank copies in a step, and the ms of it", note)
    most = runs[waits.index(max(waits))]
    bus = most.options["bus"]
    title = (f"{most.number} {most.dtype}, {f'bus {bus:g} GB/s' if bus else 'unlimited bus'}, "
             f"prefetch {most.options.get('prefetch', '–')}: a step waits {max(waits):.1f} ms of "
             f"its {most.summary['median_ms']:.1f} for copies")
    words = ("A bus lies between a device and its host: gradients go down, Adam runs on the host's "
             "cores, parameters come up.")
    return Section(title, words, [], [table], study.story)
