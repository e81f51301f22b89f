# SPDX-License-Identifier: MIT
"""Draws the figures of measured numbers, as SVG. Each function of FIGURES gets the results of its
block as `of`, as the functions of tables.py do."""
import math

import tables
from drawings import MIDDLE, Plot, element, line, picture, text
from overlap import slices_of
from pictures import CHAPTER_COLOURS, KIND_COLOURS, STREAMS
from runs import CHAPTERS, KINDS, Failure, elements_sent, sent, spaced
from tables import PEAK, RESIDENT, saved

PHASES = ("forward", "backward", "update")
LINKS = (0.25, 0.5, 1, 2, 5, 10, 20)  # Gbit/s
# Shapes of points, as paths around (0, 0). They differ, because not everyone tells colours apart.
DISC, SQUARE, DIAMOND = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-6L6 0 0 6-6 0z"
TRIANGLE, CROSS = "M0-6L5.5 4h-11z", "M-5-3L-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0z"


def layers(of):
    """Draws what share of 16 bytes per parameter a rank of 06 saves, over the number of layers."""
    counts, _, *runs = zip(*tables.curve(of.block("layers")))  # two rows of runs: fp32 and bf16
    peaks = [[100 * saved(run, PEAK) for run in of_dtype] for of_dtype in runs]
    places = [2.7 * 20 ** (i / 100) for i in range(101)]  # layers, evenly on a logarithmic axis
    ranks, theory = tables.CURVE_RANKS, 100 * (1 - 1 / tables.CURVE_RANKS)
    plot = Plot(60, 100, 712, 390, (places[0], places[-1]), (0, 85), math.log)
    parts = [*plot.axes({count: count for count in counts},
                        {share: f"{share} %" for share in range(0, 90, 10)}, "layers", "saved"),
             plot.curve([(places[0], theory), (places[-1], theory)], stroke_dasharray="6 3",
                        stroke_width=1.5, opacity=0.5),
             plot.marks([(count, 100 * saved(run, RESIDENT)) for count, run in
                         zip(counts, runs[0])], DISC, fill="none", stroke="#1f2328", opacity=0.6),
             text(plot.x(counts[0]), plot.y(theory + 3), "theory, and what is resident: 1 - 1/N = "
                  f"{theory:.0f} %", 13)]
    for dtype, peak, x, y, anchor, colour, shape in (
            ("fp32", peaks[0], 6.4, 52, "start", CHAPTER_COLOURS[1], SQUARE),
            ("bf16", peaks[1], 5.6, 66, "end", CHAPTER_COLOURS[2], DISC)):
        parts += [plot.curve([(count, 100 * tables.curve_formula(count, dtype))
                              for count in places], stroke=colour),
                  plot.marks(zip(counts, peak), shape, fill=colour),
                  text(plot.x(x), plot.y(y), f"peak in {dtype}", 13, fill=colour,
                       text_anchor=anchor),
                  text(plot.x(1.05 * counts[0]), plot.y(peak[0] - 4), f"{peak[0]:.0f} %", 13,
                       fill=colour)]
    return picture(
        435, f"In fp32 ZeRO-3 saves {peaks[0][0]:.0f} % with {counts[0]} layers, "
        f"{peaks[0][-1]:.0f} % with {counts[-1]}; theory: {theory:.0f} %",
        f"Share of 16 bytes per parameter that one of {ranks} ranks does not need: the same "
        f"{runs[0][0].parameters / 1e6:.2f} million\nparameters in {counts[0]} to {counts[-1]} "
        "layers. Lines: formula; points: measured", *parts)


def step_of(trace):
    """Returns rank 0's second step as {phase: (bytes of each of KINDS before the phase, changes)}.
    A change is (index in KINDS, bytes more)."""
    in_use, courses = None, {}
    for event in trace.program(0, 1, 2):
        args = event["args"]
        now = [args["in_use"][kind] for kind in KINDS]
        phase = "forward" if args["during"] == "load" else args["during"]
        if args["step"] == 2 and phase in PHASES:
            _, changes = courses.setdefault(phase, (in_use, []))
            changes += [(kind, bytes - in_use[kind]) for kind, bytes in enumerate(now)
                        if bytes != in_use[kind]]
        in_use = now
    return courses


def levels(step):
    """Yields (x, bytes in use of each of KINDS). The first phase lies from x = 0 to 1, the second
    from 1 to 2 and so on. The changes of a phase are equally far apart."""
    for band, (before, changes) in enumerate(step.values()):
        in_use = [*before]
        yield band, [*in_use]
        for at, (kind, more) in enumerate(changes, 1):
            in_use[kind] += more
            yield band + at / (len(changes) + 1), [*in_use]


def draw_step(plot, step, borrowed=False):
    """Yields a picture of MB in use, by kind. borrowed: leaves out what is held all the time."""
    every, drawn = [*levels(step)], []
    above = [0] * len(every)
    for kind, colour in enumerate(KIND_COLOURS):
        least = min(in_use[kind] for _, in_use in every) if borrowed else 0
        if not any(in_use[kind] > least for _, in_use in every):
            continue
        above = [below + (in_use[kind] - least) / 1e6 for below, (_, in_use) in zip(above, every)]
        path, last = f"M{plot.left} {plot.bottom}", None
        for (x, _), top in zip(every, above):
            if top != last:
                path += f"H{plot.x(x):.5g}V{plot.y(top):.4g}"
            last = top
        drawn.append(element("path", d=f"{path}H{plot.right}V{plot.bottom}z", fill=colour,
                             shape_rendering="crispEdges"))
    yield from reversed(drawn)  # each area reaches down to 0, behind the kinds before it
    for band, phase in enumerate(step):
        yield text(plot.x(band + 0.5), plot.bottom + 15, phase, 11, opacity=0.8, **MIDDLE)
        if band:
            yield line((plot.x(band), plot.y(max(above))), (plot.x(band), plot.bottom),
                       opacity=0.6, stroke_dasharray="2 2")


def mountain(of):
    """Draws the MB in use throughout one step of each chapter."""
    def counted(chapter):
        def measure(programs):
            trace, run = programs.traced(chapter, 4, *tables.EQUAL_LAYERS, "--steps", 2)
            return tables.held(run) | {"step": step_of(trace)}
        return of.get(chapter, measure)

    runs = {chapter: counted(chapter) for chapter in CHAPTERS[1:]}
    peaks = {chapter: run["memory"]["device"]["total"][PEAK] / 1e6 for chapter, run in runs.items()}
    top, parts = 1.05 * max(peaks.values()), []
    for at, (chapter, run) in enumerate(runs.items()):
        left, above = 48 + 235 * (at % 3), 100 + 212 * (at // 3)
        plot = Plot(left, above, left + 194, above + 170, (0, len(run["step"])), (0, top))
        parts += [*plot.axes({}, {mb: mb if at % 3 == 0 else "" for mb in range(0, 61, 20)}),
                  *draw_step(plot, run["step"]),
                  text(left, above - 6, f"{chapter[:2]}, {run['dtype']}: peak "
                       f"{peaks[chapter]:.1f} MB", 13, opacity=0.8)]
        if max(sum(in_use) for _, in_use in levels(run["step"])) != \
                run["memory"]["device"]["total"][PEAK]:
            raise Failure(f"{chapter}: the peak of its trace is not that of its log")
        others = [(place, kinds["total"][PEAK] / 1e6) for place, kinds in run["memory"].items()
                  if place != "device"]
        parts += [text(left + 97, above + 14 + 15 * below, f"its {place} {mb:.1f} MB", 11, **MIDDLE)
                  for below, (place, mb) in enumerate(others)]
    colours = {kind: colour for kind, colour in zip(KINDS, KIND_COLOURS)
               if any(kind in run["memory"]["device"] for run in runs.values())}
    for y, (kind, colour) in zip(range(above + 137, above, -19), colours.items()):
        parts += [element("rect", x=left + 40, y=y, width=22, height=11, fill=colour),
                  text(left + 70, y + 10, kind, 13)]
    plot = Plot(283, above, 712, above + 170, (0, len(run["step"])), (0, 2.8))
    parts += [*plot.axes({}, {mb / 2: mb / 2 for mb in range(6)}),
              *draw_step(plot, run["step"], borrowed=True),
              text(283, above - 6, f"{chapter[:2]} alone: what is borrowed, on a scale of its own",
                   13, opacity=0.8)]
    first, last = CHAPTERS[2], CHAPTERS[-1]
    return picture(
        720, f"Through a whole step memory is a plateau: {peaks[first]:.0f} MB in {first[:2]}, "
        f"{peaks[last]:.0f} MB in {last[:2]}",
        f"MB in use on rank 0 of 4, 16 layers of {spaced(run['parameters'] // 16)} parameters. "
        "Left to right: every take and\nreturn of memory in one step, in their order; the phases "
        "are drawn equally wide", *parts)


def link(of):
    """Draws the ms of a step over the speed of a link. If a step takes t ms without a limit, and a
    rank sends b bits at g Gbit/s, the link alone takes b / (1e6 g) ms, and a step that waits for
    all bits takes t + b / (1e6 g). There are two ranks with a core each, because on a shared core
    one rank would compute while another waits for the link."""
    def on_links(chapter):
        def measure(programs):
            free, *limited = (programs.run(chapter, 2, *tables.SIXTEEN, *speed, dtype="fp32")
                              for speed in ((), *(("--link", speed) for speed in LINKS)))
            return {"bits": 32 * float(sent(free)), "sent": elements_sent(free)[1],
                    "ms": free.summary["median_ms"],
                    "on links": [run.summary["median_ms"] for run in limited]}
        return of.get(chapter, measure)

    chapters = {CHAPTERS[1]: (TRIANGLE, 1), CHAPTERS[3]: (SQUARE, 3), CHAPTERS[4]: (DIAMOND, 4),
                CHAPTERS[5]: (CROSS, 5)}
    plot = Plot(60, 100, 712, 408, (0.2, 25), (5.2, 1200), math.log, math.log)
    parts = [*plot.axes({speed: f"{speed:g}" for speed in LINKS},
                        {2 ** power: 2 ** power for power in range(3, 11)},
                        "link of each rank (Gbit/s)", "a step (ms)")]
    link_alone = {}
    for at, (chapter, (shape, which)) in enumerate(chapters.items()):
        measured, colour = on_links(chapter), CHAPTER_COLOURS[which]
        messages = [measured["bits"] / (1e6 * speed) for speed in LINKS]
        link_alone[measured["sent"]] = messages
        parts += [plot.curve([(speed, measured["ms"] + ms) for speed, ms in zip(LINKS, messages)],
                             stroke=colour),
                  plot.marks(zip(LINKS, measured["on links"]), shape, fill=colour),
                  element("path", d=shape, transform=f"translate(85 {330 + 19 * at})",
                          fill=colour),
                  text(107, 335 + 19 * at, chapter, 13)]
    for elements, messages in link_alone.items():
        slope = math.degrees(math.atan2(plot.y(messages[-1]) - plot.y(messages[0]),
                                        plot.x(LINKS[-1]) - plot.x(LINKS[0])))
        x, y = plot.x(LINKS[-2]), plot.y(messages[-2])
        parts += [plot.curve(zip(LINKS, messages), opacity=0.6, stroke_width=1,
                             stroke_dasharray="4 2"),
                  text(x, y - 5, f"{elements} elements per parameter", 11, opacity=0.8,
                       transform=f"rotate({slope:.1f} {x:.1f} {y:.1f})", **MIDDLE)]
    five, six = (on_links(chapter)["on links"] for chapter in CHAPTERS[4:6])
    return picture(
        452, f"At {LINKS[0]:g} Gbit/s 06 takes {six[0] / five[0]:.2f} times as long as 05, at "
        f"{LINKS[-1]:g} Gbit/s {six[-1] / five[-1]:.2f} times",
        "Points: measured, the median of 12 steps on 2 ranks. Lines: the step without a limit and,"
        "\nafter it, all that a rank sends. Dashed: what the link takes alone", *parts)


def offload(of):
    """Draws a step of 07 up to its last copy, which runs beside the next step's forward."""
    def measure(programs):
        """Returns [(stream, begin, end, letter and layer, whether of another step)], in ms."""
        trace, _ = programs.traced("07_offload", 2, "--task", "mlp", "--layers", 4, "--width", 2048,
                                   "--batch", 96, "--steps", 4, "--bus", 0.4, "--link", 5)
        every = [*slices_of(trace)]
        zero = min(begin for begin, *_, step in every if step == 3)
        return [(name, round((begin - zero) / 1e3, 2), round((end - zero) / 1e3, 2), label,
                 step != 3) for begin, end, name, label, step in every]

    slices = of.get("slices", measure)
    copies = [times for name, *times, _, pale in slices if name == "copies" and not pale]
    hidden = sum(max(0, min(end, stop) - max(begin, start)) for begin, end in copies
                 for name, start, stop, *_ in slices if name == "compute")
    last, moved = max(end for _, end in copies), sum(end - begin for begin, end in copies)
    rows = [name for name in STREAMS if name in {one[0] for one in slices}]
    plot = Plot(115, 98, 712, 242, (0, last), (len(rows), 0))
    parts = [*plot.axes({ms: ms for ms in range(0, int(last), 50)}, {},
                        "ms since the first gather began"),
             *(text(108, plot.y(at + 0.5) + 4.5, name, 13, text_anchor="end", opacity=0.8)
               for at, name in enumerate(rows))]
    for name, begin, end, label, pale in slices:
        begin, end, row = max(begin, 0), min(end, last), rows.index(name)
        left, right = plot.x(begin), plot.x(end)
        if begin < end:
            parts.append(element("rect", x=f"{left:.2f}", width=f"{right - left:.2f}", height=28,
                                 y=f"{plot.y(row + 0.5) - 14:.1f}", fill=STREAMS[name],
                                 stroke="#ffffff", stroke_width=0.5, opacity=0.35 if pale else 1))
        if end - begin > last / 40:
            parts.append(text((left + right) / 2, plot.y(row + 0.5) + 4, label, 10,
                              fill="#1f2328" if pale else "#ffffff", **MIDDLE))
    return picture(
        288, f"Of {moved:.0f} ms of copies this step of 07 hides {hidden:.0f} beside computation",
        "One of 2 ranks, 4 layers of 2048 x 2048, bf16, 5 Gbit/s, bus 0.4 GB/s. By layer: g gather,"
        "\nf forward, b backward, r reduce-scatter of its gradient, d the shard of it down to the "
        "host,\na Adam there, u the new parameters up. Pale: another step's", *parts)


FIGURES = {"layers": layers, "mountain": mountain, "link": link, "offload": offload}
