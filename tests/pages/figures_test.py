#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Figures: colours that everybody tells apart, words that do not overlap, files that repeat."""
import itertools
import json
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notes/scripts"))
import course  # noqa: E402
import exchange  # noqa: E402
import figures  # noqa: E402
import mountain  # noqa: E402
import ownership  # noqa: E402
import parallelism  # noqa: E402
from runs import CHAPTERS, KINDS  # noqa: E402

# What is seen without one kind of cones, of linear RGB: Machado, Oliveira, Fernandes (2009).
SEEN = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                     (-0.003882, -0.048116, 1.051998)),
    "no green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                       (-0.011820, 0.042940, 0.968881)),
}
# Linear RGB to cones to Oklab, whose distances are about those that eyes see: Ottosson (2020).
CONES = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
         (0.0883024619, 0.2817188376, 0.6299787005))
OKLAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
         (0.0259040371, 0.7827717662, -0.8086757660))
LEAST_DISTANCE, LEAST_CONTRAST = 0.12, 3  # the latter is WCAG 2's for graphics
PAPERS = ("#ffffff", "#16181d")


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def linear(colour):
    values = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def distance(a, b, seen):
    a, b = (times(OKLAB, [max(v, 0) ** (1 / 3) for v in times(CONES, times(seen, linear(c)))])
            for c in (a, b))
    return sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5


def contrast(a, b):
    low, high = sorted(0.05 + sum(times([(0.2126, 0.7152, 0.0722)], linear(c))) for c in (a, b))
    return high / low


def colours():
    for name, chosen in (("chapters", figures.CHAPTER_COLOURS), ("kinds", figures.KIND_COLOURS)):
        for who, seen in SEEN.items():
            closest = min(distance(a, b, seen) for a, b in itertools.combinations(chosen, 2))
            print(f"colours of {name}, {who}: at least {closest:.3f} apart")
            if closest < LEAST_DISTANCE:
                yield f"colours of {name}, {who}: {closest:.3f} apart, not {LEAST_DISTANCE}"
        for colour, paper in itertools.product(chosen, PAPERS):
            if contrast(colour, paper) < LEAST_CONTRAST:
                yield f"{colour} on {paper}: contrast {contrast(colour, paper):.2f}"


def made_up_trace(path):
    """Of two steps; the second takes a layer of parameters in forward, of gradients in backward."""
    held = dict.fromkeys(KINDS, 1000000)
    forward, backward = held | {"parameters": 3000000}, held | {"gradients": 2000000}
    events = [{"ph": "X", "cat": "phase", "ts": start + 10 * i, "dur": 8, "name": name,
               "args": {"step": step}}
              for step, start in ((1, 10), (2, 50)) for i, name in enumerate(mountain.PHASES)]
    events += [{"ph": "C", "ts": time, "args": in_use} for time, in_use in (
        (0, held), (12, backward), (14, held), (52, forward), (54, held), (62, backward),
        (64, held), (90, forward))]
    path.write_text(json.dumps({"traceEvents": [event | {"pid": 0, "tid": 0} for event in events]}))
    return [("forward", [held, forward, held]), ("backward", [held, backward, held]),
            ("update", [held])]


def made_up_step(path):
    """Of two layers, gathered one ahead; each task 10 ms, or as long as it waits for another."""
    tasks = [  # track, begin, end, name, phase, step
        (1, 2, 3, "load", "load", 9), (1, 3, 6, "adam of layer 1", "update", 8),
        (2, 4, 5, "copy of layer 0", "forward", 9),
        (2, 5, 14, "all_gather of layer 0", "forward", 9),
        (2, 14, 24, "all_gather of layer 1", "forward", 9),
        (1, 14, 24, "forward of layer 0", "forward", 9),
        (2, 24, 34, "all_gather of layer 1", "backward", 9),
        (1, 24, 34, "forward of layer 1", "forward", 9), (1, 34, 35, "loss", "forward", 9),
        (2, 34, 44, "all_gather of layer 0", "backward", 9),
        (1, 35, 55, "backward of layer 1", "backward", 9),
        (2, 55, 65, "reduce_scatter of layer 1", "backward", 9),
        (1, 55, 75, "backward of layer 0", "backward", 9),
        (2, 75, 85, "reduce_scatter of layer 0", "backward", 9),
        (1, 85, 86, "sums", "update", 9), (1, 86, 96, "adam of layer 0", "update", 9),
        (1, 96, 104, "adam of layer 1", "update", 9)]
    categories = {"all_gather": "collective", "reduce_scatter": "collective",
                  "sums": "collective", "copy": "copy"}
    events = [{"ph": "M", "tid": tid, "name": "thread_name", "args": {"name": name}}
              for tid, name in enumerate(("host", *course.TRACKS))]
    events += [{"ph": "X", "tid": 0, "cat": "step", "name": "step", "ts": 4000, "dur": 82000,
                "args": {"step": 9}}]
    events += [{"ph": "X", "tid": tid, "cat": categories.get(name.split()[0], "compute"),
                "name": name, "ts": 1000 * begin, "dur": 1000 * (end - begin),
                "args": {"step": step, "phase": phase}}
               for tid, begin, end, name, phase, step in tasks]
    path.write_text(json.dumps({"traceEvents": [event | {"pid": 0} for event in events]}))
    return [(0, 0, 0, 20), (1, 1, 10, 30), (0, 1, 20, 51), (1, 0, 30, 71), (2, 1, 31, 61),
            (3, 0, 51, 81)]


def exchanges():
    """Every rank sends one part a step, and in the end every part is added on its own rank."""
    for name, steps, ordered in (("ring", exchange.ring, False),
                                 ("direct", exchange.direct, True)):
        for ranks in (2, 3, 4, 5):
            messages = steps(ranks)
            *_, held = exchange.course(ranks, messages, ordered)
            everybody = list(range(ranks))
            if any(sorted(sender for sender, _, _ in step) != everybody for step in messages):
                yield f"{name} on {ranks} ranks: a rank does not send one part a step"
            orders = [held[part][part] for part in everybody]
            wanted = [everybody if ordered else
                      [(part + 1 + i) % ranks for i in everybody] for part in everybody]
            if len(messages) != ranks - 1 or orders != wanted:
                yield f"{name} on {ranks} ranks: added are {orders}"
            if any(held[rank][part] for rank in everybody for part in everybody if rank != part):
                yield f"{name} on {ranks} ranks: something is left over"


def made_up_run(chapter, link):
    """A step of 20 ms, and 6 bytes a parameter over the link after it."""
    return SimpleNamespace(
        chapter=chapter, number=chapter[:2], dtype="bf16", ranks=4, steps=[{}],
        info={"options": {"link": link}, "ranks": 4, "padded_parameters": 1000000},
        summary={"median_ms": 20 + (48 / link if link else 0),
                 "traffic": {"phases": {"backward": {"counted": 3000000}}}})


def drawn(trace, step):
    """Every figure of the notes, of made-up numbers."""
    points = [(count, 75, 75 - 109 / count, 75 - 59 / count) for count in (3, 6, 12, 24, 48)]
    shards = {chapter: [kind for kind, first in zip(KINDS, ("06", "05", "04")) if chapter >= first]
              for chapter in CHAPTERS}
    on_host = dict.fromkeys(CHAPTERS, []) | {"07_offload": ["optimizer"]}
    return {
        "layers": figures.layers(points, [(c, a, b) for c, _, a, b in points], 4, 3150000),
        "ownership": ownership.draw(shards, on_host),
        "mountain": mountain.draw([(chapter, "bf16", trace, 12345678 * (chapter > "07"))
                                   for chapter in CHAPTERS[1:]], 4,
                                  "16 layers of 262 656 parameters"),
        "step": course.draw(course.step_of(step), 2, (4000000, 4000000), 2000000,
                            "One of 2 ranks, 2 layers of 1 000 000 parameters in bf16, 2 Gbit/s",
                            "24.00 MB of optimizer state"),
        "exchange": exchange.draw(), "parallelism": parallelism.draw(),
        "link": figures.link([[made_up_run(chapter, link) for link in (0, 1, 4, 16)]
                              for chapter in CHAPTERS[2:]]),
    }


def words(name, fig):
    """No two pieces of text touch, and none leaves the picture."""
    outside = {tick.label1 for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)
               for low, high in [sorted(axis.get_view_interval())]
               for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    shown = [(text.get_text(), text.get_window_extent())
             for text in fig.findobj(figures.matplotlib.text.Text)
             if text.get_visible() and text.get_text().strip() and not text.get_rotation() % 90
             and text not in outside]
    for text, place in shown:
        if not (fig.bbox.x0 <= place.x0 and place.x1 <= fig.bbox.x1
                and fig.bbox.y0 <= place.y0 and place.y1 <= fig.bbox.y1):
            yield f"{name}: {text!r} leaves the picture"
    for (a, here), (b, there) in itertools.combinations(shown, 2):
        if here.overlaps(there):
            yield f"{name}: {a!r} and {b!r} overlap"


def kept(name, fig, again, element, folder):
    """A file repeats to the byte; a page's element has its ids alone and none of a file's ink."""
    paths = [folder / f"{name}{i}.svg" for i in range(3)]
    for path, made in zip(paths, (fig, fig, again)):
        figures.save(made, path)
    if len({path.read_bytes() for path in paths}) != 1:
        yield f"{name}: drawn again it is another file"
    root = ElementTree.fromstring(element)
    if root.get("role") != "img" or not root.get("aria-label"):
        yield f"{name}: nothing to hear"
    if figures.INK in element or "currentColor" not in element:
        yield f"{name}: its ink is not the page's"
    ids = re.findall(r'\bid="([^"]*)', element)
    if missing := set(re.findall(r'(?:href="|url\()#([^")]*)', element)) - set(ids):
        yield f"{name}: refers to {missing}"
    if "<?xml" in element or "<metadata" in element or "<style" in element:
        yield f"{name}: more than an element"


def every_figure(folder):
    trace = folder / "trace.json"
    if (expected := made_up_trace(trace)) != (found := mountain.step_of(trace)):
        yield f"a trace read as {found}, not {expected}"
    step = folder / "step.json"
    if (expected := made_up_step(step)) != (found := course.lent(course.step_of(step), 2)):
        yield f"whole layers are {found}, not {expected}"
    yield from exchanges()
    ids, second = [], drawn(trace, step)
    for name, fig in drawn(trace, step).items():
        element = figures.inline(fig)
        yield from kept(name, fig, second[name], element, folder)
        yield from words(name, fig)
        ids += set(re.findall(r'\bid="([^"]*)', element))
    if len(ids) != len(set(ids)):
        yield "two figures of a page share an id"


def main():
    with tempfile.TemporaryDirectory() as folder:
        faults = [*colours(), *every_figure(Path(folder))]
    print("\n".join(faults) or "every figure is as it should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
