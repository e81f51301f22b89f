# SPDX-License-Identifier: MIT
"""What the programs' formulas say of other links, layers and micro-batches than a run had."""
from dataclasses import dataclass
from fractions import Fraction

import figures
from compare import elements_sent
from counts import STATE, resident
from findings import Section, Table, listed, picture
from logs import place
from runs import Failure
from tables import spaced

SPEEDS = (0.1, 1, 10, 100)  # Gbit/s
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


@dataclass
class Line:
    """A chapter's step over the link: without one it takes `alone` ms, and its collectives add."""
    run: object
    label: str
    prefetch: bool | None  # None: the chapter has none
    points: list  # runs on a link
    plans: object

    @property
    def alone(self):
        return fastest(self.run)

    def ms(self, speed, latency):
        """speed: in Gbit/s; latency: of a message, in microseconds."""
        micro_batches = option(self.run, "accumulate")
        chapter = self.plans.like(self.run, accumulate=micro_batches, link=speed,
                                  latency=latency)[self.run.chapter]
        messages = chapter["communication_ms"]
        if not self.prefetch:
            return self.alone + messages
        # The last reduce-scatter, which moves as much as a gather, has nothing after it.
        last = chapter["phases"]["forward"]["ms"] / self.run.info["layers"] / micro_batches
        return last + max(self.alone, messages - last)


def lines(study):
    """Of the chapters that ran over links, and else of all."""
    runs = [*study.runs, *study.more]
    over_link = {model(run) for run in runs if option(run, "link")}
    found = []
    for run in alike([run for run in runs if model(run) in over_link] or study.runs):
        same = [r for r in runs if (r.chapter, model(r), option(r, "accumulate")) ==
                (run.chapter, model(run), option(run, "accumulate"))]
        has_prefetch = "prefetch" in run.info["options"]
        for prefetch in sorted({option(r, "prefetch") > 0 for r in same}):
            points = [r for r in same
                      if option(r, "link") and not option(r, "bus")
                      and (option(r, "prefetch") > 0) == prefetch]
            label = f" with{'' if prefetch else 'out'} prefetch" * has_prefetch
            found.append(Line(run, run.number + label, prefetch if has_prefetch else None,
                              points, study.plans))
    return found


def link(study):
    found = lines(study)
    latencies = [option(r, "latency") for line in found for r in line.points] or [0]
    latency = max(set(latencies), key=latencies.count)
    places = [0.1 * 10 ** (i / 8) for i in range(25)]
    slow, quick = (choose(found, key=lambda line: line.ms(1, latency))
                   for choose in (max, min))

    def draw():
        fig, axes = picture(720, 420, "Step time of every chapter over the speed of the link")
        for line in found:
            colour = figures.CHAPTER_COLOURS[place(line.run)]
            axes.plot(places, [line.ms(x, latency) for x in places], color=colour,
                      linestyle=":" if line.prefetch is False else "-",
                      label=line.label)
            points = [(option(r, "link"), fastest(r)) for r in line.points
                      if option(r, "latency") == latency]
            axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linestyle="",
                      marker=figures.CHAPTER_MARKERS[place(line.run)], markersize=8,
                      fillstyle="none" if line.prefetch is False else "full")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(figures.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.set_xlabel("link (Gbit/s)")
        axes.set_ylabel("a step (ms)")
        axes.legend(title="chapter")
        return fig

    rows = []
    for line in found:
        row = [line.label, f"{line.alone:.1f}"]
        for speed in SPEEDS:
            measured = [fastest(r) for r in line.points
                        if (option(r, "link"), option(r, "latency")) == (speed, latency)]
            row.append(f"{line.ms(speed, latency):.1f}"
                       + "".join(f" / {ms:.1f}" for ms in measured))
        rows.append(row)
    times = [f"{line.ms(1, latency):.0f} ms in {line.label}" for line in (quick, slow)]
    return Section(
        f"Over a link of 1 Gbit/s a step takes {', '.join(dict.fromkeys(times))}, by formula",
        f"{found[0].run.info['ranks']} ranks, {option(found[0].run, 'batch')} samples each. "
        "Lines: what a step takes without a link, and what its collectives take over one, each "
        f"(N - 1) (latency + bytes / (N bandwidth)), with a latency of {latency:g} microseconds. "
        "With prefetch the longer of both, before the last reduce-scatter. "
        "Points: measured with --link. All of the fastest step.", [draw],
        [Table(["chapter", "no link", *(f"{speed:g} Gbit/s" for speed in SPEEDS)], rows,
               "ms of the fastest step, by formula / measured")])


def layers(study):
    runs = [run for run in alike(study.runs, linked=True) if run.number > "03"]
    if not runs:
        raise Failure("This needs a run of a chapter that shards: 04, 05, 06 or 07.")
    kinds = (*STATE, "communication")
    last = runs[-1]
    parameters, ranks = last.info["parameters"], last.info["ranks"]

    def saved(of_chapter, whole):
        return 100 * (1 - sum(of_chapter[kind]["peak"] for kind in kinds) / resident(whole))

    def planned(count):
        answer = study.plans.ask(params=parameters, layers=count, ranks=ranks, dtype=last.dtype,
                                 device=last.info["device"])
        return {chapter["name"]: chapter["kinds"] for chapter in answer["chapters"]}

    whole, *_ = (chapter["kinds"] for chapter in study.plans.like(last).values())
    plans = {count: planned(count) for count in LAYERS}
    curves = {r.chapter: [saved(plan[r.chapter], next(iter(plan.values())))
                          for plan in plans.values()] for r in runs}
    own = {r.chapter: saved(r.memory, whole) for r in runs}

    def draw():
        fig, axes = picture(720, 400, "Saving over the number of layers")
        for r in runs:
            colour = figures.CHAPTER_COLOURS[place(r)]
            axes.plot(LAYERS, curves[r.chapter], color=colour, label=r.number)
            axes.plot([r.info["layers"]], [own[r.chapter]], color=colour, markersize=9,
                      marker=figures.CHAPTER_MARKERS[place(r)])
        axes.set_xscale("log", base=2)
        axes.set_xticks(LAYERS, LAYERS)
        axes.minorticks_off()
        axes.set_ylim(min(0, *(min(points) for points in curves.values())), 100)
        axes.set_xlabel("layers")
        axes.set_ylabel("saved (% of data parallelism's state)")
        axes.legend(title="chapter")
        return fig

    return Section(
        f"In {last.info['layers']} layers {last.number} saves {own[last.chapter]:.1f} % at its "
        f"peaks{' on a device' if last.on_host else ''}, in {LAYERS[-1]} it would save "
        f"{curves[last.chapter][-1]:.1f} %",
        f"Lines: by formula, {spaced(parameters)} parameters in {last.dtype} on "
        f"{ranks} ranks, cut into so many equal layers; what is saved is what data "
        f"parallelism holds, less the peaks of {listed(kinds)}"
        f"{', on a device' if last.on_host else ''}. Points: the runs.", [draw],
        [Table(["chapter", "run", *map(str, LAYERS)],
               [[r.number, f"{own[r.chapter]:.1f}", *(f"{y:.1f}" for y in curves[r.chapter])]
                for r in runs], "% saved, of the run and by formula at so many layers")])


def accumulation(study):
    runs = alike(study.runs, linked=True)

    n, padded = runs[0].info["ranks"], runs[0].info["padded_parameters"]
    plans = [study.plans.like(runs[0], accumulate=count) for count in MICRO_BATCHES]
    formula = {run.chapter: [float(Fraction(plan[run.chapter]["sent_elements"] * n,
                                            padded * (n - 1))) for plan in plans] for run in runs}
    def counted(run):
        """{micro-batches: elements sent a parameter, in units of (N - 1) / N}"""
        return {option(r, "accumulate"): float(elements_sent(r)[0] / Fraction(n - 1, n))
                for r in (*study.more, *study.runs)
                if (r.chapter, r.info["ranks"]) == (run.chapter, n)}

    points = {run.chapter: counted(run) for run in runs}

    def draw():
        fig, axes = picture(720, 380, "Elements sent over micro-batches a step")
        for i, run in enumerate(runs):
            colour = figures.CHAPTER_COLOURS[place(run)]
            axes.plot(MICRO_BATCHES, formula[run.chapter], color=colour, label=run.number,
                      linewidth=2 + 2 * (len(runs) - 1 - i))
            axes.plot(*zip(*sorted(points[run.chapter].items())), color=colour, linestyle="",
                      marker=figures.CHAPTER_MARKERS[place(run)], markersize=9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(MICRO_BATCHES, MICRO_BATCHES)
        axes.set_yticks((2, 4, 8, 16, 32, 64), (2, 4, 8, 16, 32, 64))
        axes.minorticks_off()
        axes.set_xlabel("micro-batches a step")
        axes.set_ylabel("elements sent a parameter, x (N - 1)/N")
        axes.legend(title="chapter")
        return fig

    most, least = (choose(runs, key=lambda run: formula[run.chapter][-1]) for choose in (max, min))
    sent, times = formula[most.chapter][-1], formula[most.chapter][-1] / formula[least.chapter][-1]
    return Section(
        f"At {MICRO_BATCHES[-1]} micro-batches a step {most.number} sends " + (
            f"{times:g} times what {least.number} sends" if times > 1 else
            f"{sent:g} x (N - 1)/N elements a parameter"),
        "Lines: by formula; points: counted in a run.", [draw],
        [Table(["chapter", *(f"A = {a}" for a in MICRO_BATCHES)],
               [[run.number, *(f"{f:g}" + (f" / {points[run.chapter][a]:g}"
                                           if a in points[run.chapter] else "")
                               for a, f in zip(MICRO_BATCHES, formula[run.chapter]))]
                for run in runs],
               "elements sent a parameter and step, x (N - 1)/N: by formula / counted")])
