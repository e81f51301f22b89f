# SPDX-License-Identifier: MIT
"""What the programs' formulas say of other links, layers and micro-batches than a run had."""
from fractions import Fraction

from compare import elements_sent
from counts import STATE, state
from figures import Curve, curves
from findings import Section, Table, listed
from runs import Failure
from tables import spaced

SPEEDS = [0.1 * 10 ** (i / 8) for i in range(25)]  # Gbit/s; every eighth has a tick and a column
LAYERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MICRO_BATCHES = (1, 4, 16)


def option(run, name):
    return run.info["options"].get(name) or 0


def model(run):
    return run.dtype, run.info["ranks"], run.info["padded_parameters"], option(run, "batch")


def alike(runs, linked=False):
    """Runs of one dtype and model on several ranks: that of most chapters, one run of each, without
    a link or a slow bus unless `linked` allows them. Throws Failure where there is none."""
    groups = {}
    for run in runs:
        on_link = option(run, "link") or option(run, "latency") or option(run, "bus")
        if run.info["ranks"] > 1 and (linked or not on_link):
            groups.setdefault(model(run), {}).setdefault(run.chapter, run)
    if not groups:
        without = "" if linked else ", without --link and --bus"
        raise Failure(f"This needs a run on several ranks{without}.")
    return list(max(groups.values(), key=len).values())


def fastest(run):
    """ms of a step in which the machine had little else to do."""
    return min(step["ms"] for step in run.steps)


def step_ms(plans, run, prefetch, speed, latency):
    """Over a link, in Gbit/s, with a latency of a message in microseconds: without one a step takes
    its time alone, and collectives add to it."""
    micro_batches = option(run, "accumulate")
    chapter = plans.like(run, accumulate=micro_batches, link=speed, latency=latency)[run.chapter]
    messages = chapter["communication_ms"]
    if not prefetch:
        return fastest(run) + messages
    # The last reduce-scatter, which moves as much as a gather, has nothing after it.
    last = chapter["phases"]["forward"]["ms"] / run.info["layers"] / micro_batches
    return last + max(fastest(run), messages - last)


def link(study):
    """Of the chapters that ran over links, and else of all."""
    runs = [*study.runs, *study.more]
    on_link = [run for run in runs if option(run, "link") and not option(run, "bus")]
    latencies = [option(run, "latency") for run in on_link] or [0]
    latency = max(set(latencies), key=latencies.count)
    models = set(map(model, on_link))
    found = []
    for run in alike([run for run in runs if model(run) in models] or study.runs):
        same = [r for r in runs if (r.chapter, model(r), option(r, "accumulate")) ==
                (run.chapter, model(run), option(run, "accumulate"))]
        has_prefetch = "prefetch" in run.info["options"]
        for prefetch in sorted({option(r, "prefetch") > 0 for r in same}):
            found.append(Curve(
                run, run.number + f" with{'' if prefetch else 'out'} prefetch" * has_prefetch,
                [step_ms(study.plans, run, prefetch, speed, latency) for speed in SPEEDS],
                [(option(r, "link"), fastest(r)) for r in same if r in on_link
                 and (option(r, "prefetch") > 0, option(r, "latency")) == (prefetch, latency)],
                has_prefetch and not prefetch))
    rows = [[curve.label, f"{fastest(curve.run):.1f}", *curve.cells(SPEEDS, ".1f")[::8]]
            for curve in found]
    at_one = sorted((curve.heights[8], curve.label) for curve in found)
    times = [f"{ms:.0f} ms in {label}" for ms, label in (at_one[0], at_one[-1])]
    return Section(
        f"Over a link of 1 Gbit/s a step takes {', '.join(dict.fromkeys(times))}, by formula",
        f"{found[0].run.info['ranks']} ranks, {option(found[0].run, 'batch')} samples each. "
        "Lines: what a step takes without a link, and what its collectives take over one, each "
        f"(N - 1) (latency + bytes / (N bandwidth)), with a latency of {latency:g} microseconds. "
        "With prefetch the longer of both, before the last reduce-scatter. "
        "Points: measured with --link. All of the fastest step.",
        [lambda: curves("Step time of every chapter over the speed of the link", found, SPEEDS,
                        SPEEDS[::8], "link (Gbit/s)", "a step (ms)")],
        [Table(["chapter", "no link", *(f"{speed:g} Gbit/s" for speed in SPEEDS[::8])], rows,
               "ms of the fastest step, by formula / measured")])


def layers(study):
    runs = [run for run in alike(study.runs, linked=True) if run.number > "03"]
    if not runs:
        raise Failure("This needs a run of a chapter that shards: 04, 05, 06 or 07.")
    kinds = (*STATE, "communication")
    last = runs[-1]
    parameters, ranks = last.info["parameters"], last.info["ranks"]

    def saved(of_chapter, whole):
        return 100 * (1 - state(of_chapter, "peak", kinds) / state(whole))

    def planned(count):
        answer = study.plans.ask(params=parameters, layers=count, ranks=ranks, dtype=last.dtype,
                                 device=last.info["device"])
        return {chapter["name"]: chapter["kinds"] for chapter in answer["chapters"]}

    whole, *_ = (chapter["kinds"] for chapter in study.plans.like(last).values())
    plans = [planned(count) for count in LAYERS]
    drawn = [Curve(run, run.number, [saved(plan[run.chapter], next(iter(plan.values())))
                                     for plan in plans],
                   [(run.info["layers"], saved(run.memory, whole))]) for run in runs]
    (_, own), *_ = drawn[-1].points
    return Section(
        f"In {last.info['layers']} layers {last.number} saves {own:.1f} % at its "
        f"peaks{' on a device' if last.on_host else ''}, in {LAYERS[-1]} it would save "
        f"{drawn[-1].heights[-1]:.1f} %",
        f"Lines: by formula, {spaced(parameters)} parameters in {last.dtype} on "
        f"{ranks} ranks, cut into so many equal layers; what is saved is what data "
        f"parallelism holds, less the peaks of {listed(kinds)}"
        f"{', on a device' if last.on_host else ''}. Points: the runs.",
        [lambda: curves("Saving over the number of layers", drawn, LAYERS, LAYERS, "layers",
                        "saved (% of data parallelism's state)", log=False)],
        [Table(["chapter", "run", *map(str, LAYERS)],
               [[curve.label, f"{curve.points[0][1]:.1f}", *(f"{y:.1f}" for y in curve.heights)]
                for curve in drawn], "% saved, of the run and by formula at so many layers")])


def accumulation(study):
    runs = alike(study.runs, linked=True)
    n, padded = runs[0].info["ranks"], runs[0].info["padded_parameters"]
    plans = [study.plans.like(runs[0], accumulate=count) for count in MICRO_BATCHES]

    def counted(run):
        """{micro-batches: elements sent a parameter, in units of (N - 1) / N}"""
        return {option(r, "accumulate"): float(elements_sent(r)[0] / Fraction(n - 1, n))
                for r in (*study.more, *study.runs)
                if (r.chapter, r.info["ranks"]) == (run.chapter, n)}

    drawn = [Curve(run, run.number, [float(Fraction(
        plan[run.chapter]["sent_elements"] * n, padded * (n - 1))) for plan in plans],
        sorted(counted(run).items())) for run in runs]
    rows = [[curve.label, *curve.cells(MICRO_BATCHES, "g")] for curve in drawn]
    most, least = (choose(drawn, key=lambda curve: curve.heights[-1]) for choose in (max, min))
    times = most.heights[-1] / least.heights[-1]
    return Section(
        f"At {MICRO_BATCHES[-1]} micro-batches a step {most.label} sends " + (
            f"{times:g} times what {least.label} sends" if times > 1 else
            f"{most.heights[-1]:g} x (N - 1)/N elements a parameter"),
        "Lines: by formula; points: counted in a run.",
        [lambda: curves("Elements sent over micro-batches", drawn, MICRO_BATCHES, MICRO_BATCHES,
                        "micro-batches a step", "elements sent a parameter, x (N - 1)/N")],
        [Table(["chapter", *(f"A = {a}" for a in MICRO_BATCHES)], rows,
               "elements sent a parameter and step, x (N - 1)/N: by formula / counted")])
