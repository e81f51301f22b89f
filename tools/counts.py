# SPDX-License-Identifier: MIT
"""What logs count: bytes held, elements sent, bytes copied to a host and back, a step's time."""
import figures
from findings import Section, Table
from runs import (BYTES, KINDS, SIZES, STATE, elements_sent, kinds_of, sized, unit_of, wrong_bytes,
                  wrong_traffic)


def state(held, what="resident"):
    return sum(held[kind][what] for kind in STATE)


def bytes_table(study, unit):
    kinds = kinds_of(study.runs)
    named = [(run, *row) for run in study.runs for row in (
        (run.label, run.memory, "resident"), ("  peak", run.memory, "peak"),
        ("  on its host", run.on_host, "resident"))]
    rows = [[name, *(sized(held[kind][what], unit) for kind in [*kinds, "total"]),
             sized(run.ranks * held["total"][what], unit)]
            for run, name, held, what in named if held]
    host = " On its host: all of it throughout; the run's other rows are its device's." \
        if any(run.on_host for run in study.runs) else ""
    return Table(["run: resident", *kinds, "all", "all\nranks"], rows, f"Every kind, in {unit}",
                 "Of the rank that has most; all ranks: so often. The kinds peak at different "
                 f"moments, so the peak of all is at most the sum of the peaks.{host}")


def data_parallel(run, runs):
    """The bytes of which the run's are shares: of 02 or 03, of the same dtype and parameters."""
    alike = [other for other in runs if other.number in ("02", "03") and other.ranks > 1 and
             all(other.info[what] == run.info[what] for what in ("dtype", "padded_parameters"))]
    return min(alike, key=lambda other: other.number).memory if alike else None


def saved(held, what, whole):
    return f"{100 * (1 - state(held, what) / state(whole, what)):.2f}" if whole else ""


def state_table(study):
    """Formula beside count: of state, and of what is sent in a step."""
    unit = unit_of(study.exact, *(state(held, "peak") for run in study.runs for held in run.places))
    rows = []
    for run in study.runs:
        whole, passed = data_parallel(run, study.runs), run.summary["traffic"]["phases"].values()
        for held in run.places:
            here = held is run.memory
            row = [run.label if here else "  on its host"]
            for both in (("predicted_resident", "resident"), ("predicted", "peak")):
                row += [*(sized(state(held, what), unit) for what in both),
                        saved(held, both[1], here and whole)]
            for counts in ([way[what] for way in passed] for what in ("predicted", "counted")):
                row.append("" if not here else "–" if None in counts else
                           sized(sum(counts) * BYTES[run.dtype] / len(run.steps), unit))
            rows.append(row)
    head = ["run", "held:\nformula", "\ncounted", "saved\n%", "peak:\nformula", "\ncounted",
            "saved\n%", "sent:\nformula", "\ncounted"]
    note = ("Held: all the time. Peak: at most, with what a step borrows. Saved: against data "
            "parallelism, 02 in fp32 and 03 in 16 bits. MB and kB are decimal.")
    return Table(head, rows, "What a rank holds of parameters, gradients and optimizer state, and "
                 f"what it sends in a step, in {unit}", note)


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
    axes.set_xlabel(f"{unit} of the rank that has most")
    fig.legend(loc="upper left", ncols=4)
    fig.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 50 / height))
    return fig


def memory(study):
    unit = unit_of(study.exact, *(at["total"]["peak"] for run in study.runs for at in run.places))
    tables = [state_table(study), bytes_table(study, unit)]
    if known := [(run, whole) for run in study.runs if (whole := data_parallel(run, study.runs))]:
        run, whole = min(known, key=lambda pair: state(pair[0].memory) / state(pair[1]))
        held, peak = (saved(run.memory, what, whole) for what in ("resident", "peak"))
        title = (f"{run.label} saves {held} % of data parallelism's state"
                 f"{' on a device' if run.on_host else ''}, and {peak} % at its peaks")
    else:
        title = "What a rank holds"
    return Section(title, "Above what is resident, held all the time; below the peaks, with what "
                   "is borrowed inside a step. Strokes: the formulas.",
                   [lambda: bytes_figure(study, unit)], tables,
                   [[said] for said in wrong_bytes(study.runs)])


def ms(rows, what):
    """Milliseconds a step, exposed or hidden; a dash where the log does not tell."""
    known = [row[what] for row in rows if row.get(what) is not None]
    return f"{sum(known):.2f}" if known else "–"


def traffic(study):
    rows = [[run.label, elements_sent(run)[1], f"{run.summary['median_ms']:.1f}",
             *(ms(run.summary["traffic"]["phases"].values(), what)
               for what in ("exposed_ms", "hidden_ms"))] for run in study.runs]
    head = ["run", "elements a\nparameter", "ms\na step", "ms\nexposed", "ms\nhidden"]
    note = ("Sent by one rank. Step: median, slowest rank. Exposed: communication during which "
            "nothing was computed; hidden: beside computing.")
    table = Table(head, rows, "What a rank sends, and the time of a step", note)
    wrong = wrong_traffic(study.runs)
    sent = {run.label: elements_sent(run) for run in study.runs}
    most = max(sent, key=lambda label: sent[label][0])
    least = min((run.label for run in study.runs if run.ranks > 1), default=most,
                key=lambda label: sent[label][0])
    title = f"{most} sends {sent[most][1]} elements a parameter and step" \
        if sent[most][0] else "No rank sends anything"
    if least != most:
        title += f", {least} {sent[least][1]}"
    title += "; the counts differ from the formulas" if wrong else ", as the formulas say"
    return Section(title, "The elements that left a rank, counted where they left it.", [], [table],
                   [[said] for said in wrong])


def copies(study):
    """None where no run has a host beside its device."""
    runs = [run for run in (*study.runs, *study.more) if run.bus]
    if not runs:
        return None
    rows, waits = [], []
    unit = unit_of(study.exact, *(run.bus[way]["counted"] / len(run.steps)
                                  for run in runs for way in run.bus))
    for run in runs:
        bus, both = run.options["bus"], [run.bus[way] for way in ("to_host", "to_device")]
        rows.append([f"{run.number} {run.dtype}", run.ranks, f"{bus:g}" if bus else "–",
                     run.options.get("prefetch", "–"),
                     *(sized(way["counted"] / len(run.steps), unit) for way in both),
                     f"{run.summary['median_ms']:.1f}",
                     *(ms([way], what) for what in ("exposed_ms", "hidden_ms") for way in both)])
        waits.append(sum(way["exposed_ms"] or 0 for way in both))
    head = ["run", "ranks", "bus\nGB/s", "pre-\nfetch", f"{unit}\ndown", f"{unit}\nup",
            "ms\na step", "exposed\ndown", "\nup", "hidden\ndown", "\nup"]
    note = ("Bus: its --bus, – is without a limit. Exposed: copies beside which the device "
            "computed nothing; hidden: the others. What the host's cores do hides nothing. Each "
            "the largest of the ranks' medians.")
    table = Table(head, rows, "What a rank copies in a step, and the ms of it", note)
    name, _, bus, prefetch, *_ = row = rows[waits.index(max(waits))]
    title = (f"{name}, {'unlimited bus' if bus == '–' else f'bus {bus} GB/s'}, prefetch {prefetch}:"
             f" a step waits {max(waits):.1f} ms of its {row[6]} for copies")
    words = ("A bus lies between a device and its host: gradients go down, Adam runs on the host's "
             "cores, parameters come up.")
    return Section(title, words, [], [table], study.story)
