#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lays runs beside each other by their logs: as text, and as a page with pictures.

`./tutorial compare` calls this, and `./tutorial demo` what makes the page. Exit code 0 means that
bits differ only where the logs say why, and that bytes and traffic equal their formulas; 1 that
something does not hold.
"""
import argparse
import copy
import json
import signal
import sys
import textwrap
from pathlib import Path

sys.dont_write_bytecode = True
import counts  # noqa: E402
import findings  # noqa: E402
import formulas  # noqa: E402
import logs  # noqa: E402
import offload  # noqa: E402
import page  # noqa: E402
import traces  # noqa: E402
from compare import wrong_bytes, wrong_traffic  # noqa: E402
from plans import Plans  # noqa: E402
from runs import Failure  # noqa: E402
from tables import spaced  # noqa: E402

WIDTH = 80
IN_TEXT = (findings.losses, counts.memory, counts.traffic, offload.section)
ON_PAGE = {"Memory over a step": traces.mountains, "Who works when": traces.timelines,
           "Step time over link speed": formulas.link, "Saving over layers": formulas.layers,
           "Elements sent over micro-batches": formulas.accumulation}
SHORT = {"parameters": "param.", "gradients": "grads", "optimizer": "optim.",
         "communication": "comm.", "activations": "activ.", "workspace": "work.",
         "resident": "held"}


def text_of(table):
    """A table in columns of a terminal."""
    head = [[SHORT.get(line, line) for line in cell.split("\n")] for cell in table.head]
    deep = max(map(len, head))
    columns = [[*[""] * (deep - len(lines)), *lines, *column]
               for lines, column in zip(head, zip(*table.rows))]
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + len(widths) - 1 > WIDTH:  # the widest words lose their beginning
        widths[max(table.words(), key=lambda i: widths[i])] -= 1
    gap = " " * min(2, (WIDTH - sum(widths)) // (len(widths) - 1))
    cut = [[cell if len(cell) <= width else "…" + cell[1 - width:] for cell in column]
           for column, width in zip(columns, widths)]
    padded = [[f"{cell:{'<' if i in table.words() else '>'}{widths[i]}}" for cell in column]
              for i, column in enumerate(cut)]
    return "\n".join(gap.join(line).rstrip() for line in zip(*padded))


def wrapped(text, indent=""):
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def print_text(study):
    """The sections that need nothing but logs."""
    for section in filter(None, (make(study) for make in IN_TEXT)):
        print(f"\n{wrapped(section.title + '.')}")
        for table in section.tables:
            caption = f"\n{wrapped(table.caption)}:" if table.caption else ""
            print(f"{caption}\n{text_of(table)}")
            if table.note:
                print(wrapped(table.note))
        for first, *rest in section.points:
            print("\n".join(["", wrapped(first), *(wrapped(line, "  ") for line in rest)]))


def sections(study):
    yield from filter(None, (make(study) for make in IN_TEXT))
    for heading, make in ON_PAGE.items():
        try:
            yield make(study)
        except Failure as failure:
            yield findings.Section(heading, str(failure))


def write(study, path):
    """The page; without matplotlib a sentence instead. Throws Failure where it cannot be."""
    try:
        text = page.page(f"{findings.several(len(study.runs), 'run').capitalize()}, side by side",
                         describe(study), list(sections(study)))
    except Failure as failure:
        print(f"\nNo page: {failure}")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}", 6) from None
    print(f"\nAll of it with pictures, for a browser: {path}")


def describe(study):
    """What the runs have in common."""
    models = {f"task {run.info['options'].get('task')}, {spaced(run.info['parameters'])} "
              f"parameters in {run.info['layers']} layers" for run in study.runs}
    mpi = {run.info["mpi"] for run in study.runs} - {None}
    chapters = findings.listed(sorted({run.chapter for run in study.runs}))
    return f"{chapters}: {'; '.join(sorted(models))}. {'; '.join(sorted(mpi))}".strip()


def holds(study):
    return not (any(c.defect for c in study.compared) or wrong_bytes(study.runs)
                or wrong_traffic(study.runs))


def load(path, plans):
    """The run of a log, with which all can be done that the text and the page do with it."""
    def show(run):
        study = findings.Study([copy.copy(run), run], [], plans)
        return (holds(study), describe(study), min(step["ms"] for step in run.steps),
                [make(study) for make in IN_TEXT])

    return logs.load(path, show)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("logs", nargs="*", metavar="LOG", help="that --log wrote; none: the demo's")
    parser.add_argument("--build", type=Path, default=Path("build"), help="where the programs are")
    return parser.parse_args()


def main():
    options = parse()
    folder = options.build / ("compare" if options.logs else "demo")
    paths = options.logs or sorted(folder.glob("*.jsonl"),
                                   key=lambda path: (not path.stem.endswith("fp32"), path))
    if not paths:
        raise Failure(f"{folder} has no logs: run ./tutorial demo first, or name your own", 3)
    more = [] if options.logs else sorted(folder.glob("more/*.jsonl"))
    story = folder / "story.json"
    plans = Plans(options.build)
    study = findings.Study([load(path, plans) for path in paths],
                           [load(path, plans) for path in more], plans,
                           json.loads(story.read_text()) if more and story.is_file() else [])
    print_text(study)
    write(study, folder / "report.html")
    return 0 if holds(study) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads may have enough
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"tutorial: compare: {failure}", file=sys.stderr)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        sys.exit(130)
