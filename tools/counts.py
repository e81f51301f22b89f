# SPDX-License-Identifier: MIT
"""Makes four sections of compare's report: bytes held, elements sent, a step over time, the end."""
import pictures
from findings import Section, Table, short
from overlap import slices_of
from recording import Trace
from runs import (BYTES, KINDS, SIZES, STATE, elements_sent, on, sent, sent_in, sized, unit_of,
                  wrong_bytes, wrong_traffic)
from spans import exposed

COLOURS = dict(zip(STATE, pictures.KIND_COLOURS))
PHASES = {"forward": "#5696ed", "backward": "#13a78d", "update": "#7355be"}
OTHER, WAITS = "#8a8f9999", "#c6200f"


def state(held, what="resident"):
    """Returns the bytes of parameters, gradients and optimizer state in a place. held: that
    place's {kind: {what: bytes}}; what: "resident" or "peak"."""
    return sum(held[kind][what] for kind in STATE)


def rest(held):
    """Returns a place's bytes beside the state: the sum of all other kinds' peaks."""
    return sum(held[kind]["peak"] for kind in KINDS if kind not in STATE)


def data_parallel(run, runs):
    """Returns, of `runs`, one of 02 or 03 on several ranks with `run`'s dtype and number of
    parameters: its ranks hold the whole state. None if there is no such run."""
    alike = [other for other in runs if other.number in ("02", "03") and other.ranks > 1 and
             all(other.info[what] == run.info[what] for what in ("dtype", "padded_parameters"))]
    return min(alike, key=lambda other: other.number) if alike else None


def saved(held, whole, what="resident", form=".2f"):
    """Returns, as text, the percentage of run `whole`'s state that is not held; "" for None."""
    if whole is None:
        return ""
    return format(100 * (1 - state(held, what) / state(whole.memory, what)), form)


def memory(study):
    """Makes the finding on bytes, with a bar for each run and place: in strong colours what is
    held, in weak ones what is borrowed, in grey the rest."""
    places = [(run, held, on(place), None if on(place) else data_parallel(run, study.runs))
              for run in study.runs for place, held in run.places.items()]
    most = max(state(held, "peak") + rest(held) for _, held, *_ in places)
    unit, wrong, title = unit_of(study.exact, most), wrong_bytes(study.runs), "What a rank holds"

    def picture(dtype, runs):
        rows = []
        for run, held, where, whole in places:
            if run not in runs:
                continue
            share = saved(held, whole, form=".0f")
            less = f", {share} % saved" if share not in ("", "0") else ""
            parts = []
            for kind, colour in COLOURS.items():
                resident, peak = held[kind]["resident"], held[kind]["peak"]
                parts += [(resident, colour), (peak - resident, colour + pictures.WEAK)]
            rows.append((f"\u2003and{where}" if where else short(run, runs),
                         f"{sized(state(held), unit)} {unit}{less}", [*parts, (rest(held), OTHER)]))
        return pictures.bars(f"Memory of one rank in {dtype}", rows, most, SIZES[unit], unit)

    rows = [[f" {where}" if where else run.label,
             *(sized(held[kind]["resident"], unit) for kind in STATE), sized(state(held), unit),
             saved(held, whole), sized(state(held, "peak"), unit),
             saved(held, whole, "peak"), sized(rest(held), unit)]
            for run, held, where, whole in places]
    table = Table(["run", *STATE, "held", "saved\n%", "peak", "saved\n%", "the\nrest"], rows,
                  f"What one rank holds, in {unit}", "Held: parameters, gradients and optimizer "
                  "state, all the time. Peak: with what a step borrows of them. The rest: "
                  "activations, room for messages, data. Saved: of what data parallelism needs, "
                  "02 in fp32 and 03 in 16 bits. MB and kB are decimal.")
    if known := [(run, held, whole) for run, held, _, whole in places
                 if whole and saved(held, whole) > "0.00"]:
        run, held, whole = min(known, key=lambda place: state(place[1]) / state(place[2].memory))
        title = (f"{run.label} saves {saved(held, whole)} % of what data parallelism holds"
                 f"{' on a device' if run.on_host else ''}, and {saved(held, whole, 'peak')} % at "
                 "its peak")
    figure = study.panels(
        "What one rank holds of parameters, gradients and optimizer state, and how much of it is "
        "saved. Weak colours: borrowed within a step. Grey: activations, room for messages, data.",
        COLOURS | {"the rest": OTHER}, picture)
    return Section(title, "" if wrong else "All bytes are those of the formulas.", [figure],
                   [table], [[said] for said in wrong])


def in_step(run):
    """Returns, by phase, the bytes that one rank sends in a step."""
    return [BYTES[run.dtype] / run.summary["steps"] * sent_in(phase)
            for phase in run.summary["traffic"]["phases"].values()]


def times(run):
    """Returns, in ms of a step, [messages exposed, messages hidden, the rest]."""
    both = [sum(row.get(what) or 0 for row in run.summary["traffic"]["phases"].values())
            for what in ("exposed_ms", "hidden_ms")]
    return [*both, max(0, run.summary["median_ms"] - sum(both))]


def traffic(study):
    """Makes the finding on messages: how much one rank sends in a step, how long a step takes."""
    runs, wrong = study.runs, wrong_traffic(study.runs)
    unit = unit_of(study.exact, max(sum(in_step(run)) for run in runs))

    def panels(caption, colours, lengths, says):
        """Returns a figure: lengths(run) are the parts of a run's bar, says(run) is beside it."""
        most = max(sum(lengths(run)) for run in runs) or 1

        def bars(dtype, alike):
            rows = [(short(run, alike), says(run), zip(lengths(run), colours.values()))
                    for run in alike]
            return pictures.bars(f"{caption}, in {dtype}", rows, most)
        return study.panels(caption, colours, bars)

    def time_of(run):
        waits = f", {times(run)[0]:.1f} exposed" if times(run)[0] else ""
        return f"{run.summary['median_ms']:.1f} ms{waits}"

    rows = [[run.label, elements_sent(run)[1], *(sized(count, unit) for count in in_step(run)),
             f"{run.summary['median_ms']:.1f}", *(f"{ms:.2f}" for ms in times(run)[:2])]
            for run in runs]
    # Ranks that share a CPU's cores wait for each other, so their times say little of GPUs.
    weak = any(run.info["device"] == "cpu" and run.ranks > 1 for run in runs)
    table = Table(["run", "elements per\nparameter", *PHASES, "ms per\nstep", "ms\nexposed",
                   "ms\nhidden"], rows,
                  f"What one rank sends in a step, in {unit}, and how long the step takes",
                  "Step: the median, of the slowest rank. Exposed: messages beside which nothing "
                  "was computed. Hidden: beside computation.", (5, 6, 7) if weak else ())
    each = {run.label: elements_sent(run) for run in runs}
    top = max(each, key=each.get)
    least = min((run.label for run in runs if run.ranks > 1), default=top, key=each.get)
    other = f", {least} {each[least][1]}" if least != top else ""
    title = f"{top} sends {each[top][1]} elements per parameter and step{other}"
    if not each[top][0]:
        title = "No rank sends anything"
    words = "Elements are counted where they leave a rank."
    took = panels("How long a step takes", {"messages, exposed: nothing is computed": WAITS,
                                            "hidden: beside computation": PHASES["forward"],
                                            "the rest": OTHER}, times, time_of)
    if weak:
        words += (" Look at times last, and only among themselves: these ranks share the cores of "
                  "one machine, so a rank that waits for a message waits for a core too.")
        took = f'<div class="weak">{took}</div>'
    if any("02" <= run.number <= "05" for run in runs):
        words += (" In 02 to 05 messages never pass beside computation, by choice; "
                  "notes/changing/overlap.md lets them.")
    return Section(
        title + ("; the counts differ from the formulas" if wrong else ", as the formulas say"),
        words, [panels("What one rank sends in a step, by phase", PHASES, in_step,
                       lambda run: f"{sized(sum(in_step(run)), unit)} {unit}"), took],
        [table], [[said] for said in wrong])


def timeline(study):
    """Makes the finding on the shortest traced step of each run; None if no run has a trace."""
    figures, points = [], []
    for run in (*study.runs, *study.more):
        run.trace = run.log.parent / run.options.get("trace", "").rpartition("/")[2]
        if not run.trace.is_file():
            continue
        trace = Trace(run.trace)
        works = [*slices_of(trace)]
        traced = {step for *_, step in works}
        timed = [(row["ms"], row["step"]) for row in run.steps if row["step"] in traced]
        if (trace.about["chapter"], trace.about["ranks"]) != (run.chapter, run.ranks) or not timed:
            continue  # this is the trace of another run
        step = min(timed)[1]
        own = [work for work in works if work[-1] == step]
        first, last = min(own)[0], max(end for _, end, *_ in own)
        turn = min((begin for begin, *_, name, _ in own if name[0] == "b"), default=last)
        moved = [(event["dur"], pieces) for event, pieces in exposed(trace.events[0])
                 if event["args"]["step"] == step]
        waits = [piece for _, pieces in moved for piece in pieces]
        alone = sum(end - begin for begin, end in waits) / 1e3
        every = max(alone, sum(dur for dur, _ in moved) / 1e3)
        copies = " and copies" if run.bus else ""
        points.append([f"{run.chapter}: of {every:.1f} ms of messages{copies} {every - alone:.1f} "
                       f"pass beside computation, for {alone:.1f} it waits."])
        bus = ", d down to the host, a Adam there, u up" if run.bus else ""
        disk = ", i in from the disk, o out to it" if run.on_disk else ""
        slices = [(*work, number != step) for *work, number in works]
        figures.append(pictures.figure(
            f"Step {step} of {run.chapter}, one of {run.ranks} ranks. By layer: f forward, "
            f"b backward, g gather, r reduce-scatter{bus}{disk}. Weak: another step's.",
            {name: colour for name, colour in pictures.STREAMS.items()
             if name in {one[2] for one in slices}} | {"waits": WAITS},
            [(f"{name}, {(end - begin) / 1e3:.1f} ms", pictures.timeline(
                f"{name}. {points[-1][0]}", begin, end, slices, waits))
                for name, begin, end in (("forward", first, turn),
                                         ("backward and update", turn, last)) if begin < end]))
    words = ("Short runs of their own, on a link, a bus and a disk so slow that it shows."
             if any(run.log.parent.name == "more" for run in study.more) else "")
    return Section("A step over time: what passes beside computation, and what is waited for",
                   words, figures, [], points) if points else None


NEXT = {"lesson 04": "which lines of code make the first saving",
        "narrate 06": "a whole step, told with its numbers",
        "memory 06": "the same bytes, phase by phase",
        "exercise 04": "write those lines yourself",
        "plan --params 7B --gpu 24GB": "which chapter your own model needs"}


def ending(study):
    """Makes the last section: what all findings say together, and which commands to run next."""
    points = []
    for run in study.runs:
        if run.number >= "06" and (base := data_parallel(run, study.runs)):
            unit = unit_of(study.exact, state(base.memory))
            held = ", ".join(sized(state(held), unit) + (on(place) or f" {unit} of state")
                             for place, held in run.places.items())
            times = f"{float(sent(run) / sent(base)):.3g} times"
            points.append([f"In {run.dtype} a rank of {run.chapter} holds {held}, and sends "
                           f"{times} what data parallelism sends, which holds "
                           f"{sized(state(base.memory), unit)}."])
    if {c.same for c in study.compared if c.run.dtype == c.reference.dtype} == {True}:
        points.append(["What they compute is the same, bit by bit: ZeRO changes who holds what, "
                       "and not the arithmetic."])
    traces = {f"overlap {run.trace}": f"a step of {run.number} over time, layer by layer"
              for run in (*study.runs, *study.more) if run.trace.is_file()}  # set by timeline()
    points += [[f"$ ./tutorial {command}", why] for command, why in (NEXT | traces).items()]
    return Section("What you saw, and what next", "", [], [], points)
