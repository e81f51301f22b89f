# SPDX-License-Identifier: MIT
"""Lays runs beside each other by their logs: as text, and as a page with pictures.

`./tutorial compare` calls this with the logs, none: the demo's, and `./tutorial demo` what makes
the page. Exit code 0 means that runs of one dtype have the same bits, and that bytes and traffic
equal their formulas; 1 that something does not hold."""
import copy
import re
import sys
from html import escape
from pathlib import Path

import counts
import figures
import findings
from runs import WIDTH, Failure, Run, finish, folded, spaced, wrong_bytes, wrong_traffic

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
    while sum(widths) + len(widths) - 1 > WIDTH and max(widths[i] for i in table.words()) > 12:
        widths[max(table.words(), key=lambda i: widths[i])] -= 1  # words lose their beginning
    gap = " " * max(1, min(2, (WIDTH - sum(widths)) // (len(widths) - 1)))
    cut = [[cell if len(cell) <= width else "…" + cell[1 - width:] for cell in column]
           for column, width in zip(columns, widths)]
    padded = [[f"{cell:{'<' if i in table.words() else '>'}{widths[i]}}" for cell in column]
              for i, column in enumerate(cut)]
    return "\n".join(gap.join(line).rstrip() for line in zip(*padded))


def sections(study):
    makers = (findings.losses, counts.memory, counts.traffic, counts.copies)
    return [section for make in makers if (section := make(study))]


def print_tables(tables):
    for table in tables:
        caption = ["", *folded(table.caption + ":")] if table.caption else [""]
        print(*caption, text_of(table), *folded(table.note), sep="\n")


def print_text(study):
    for section in sections(study):
        print("", *folded(section.title + "."), sep="\n")
        print_tables(section.tables)
        for first, *rest in section.points:
            print("", *folded(first), *(part for line in rest for part in folded(line, "  ")),
                  sep="\n")


PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>Runs, side by side</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 47rem; margin: 0 auto; padding: 1rem }}
p, li {{ overflow-wrap: anywhere }}
figure {{ margin: 1rem 0; overflow-x: auto }}
svg {{ display: block; width: 100%; min-width: 34rem; height: auto }}
.table {{ overflow-x: auto; margin: 1rem 0 }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }}
caption, .note {{ text-align: left; font-size: .85rem; opacity: .75 }}
th, td {{ padding: .15rem .5rem; text-align: right; white-space: nowrap }}
thead th {{ white-space: pre-line; vertical-align: bottom }}
thead {{ border-bottom: 1px solid }}
th:first-child, .word {{ text-align: left }}
tbody th {{ font-weight: normal }}
</style>
</head>
<body>
<h1>Runs, side by side</h1>
<p>{words}</p>
<main>
{body}
</main>
</body>
</html>
"""


def words_of(text):
    """Text of a page, whose numbers keep their units in one line."""
    return re.sub(r"(?<=\d) (?=%|ms|[kM]B|Gbit|x |\d{3})", "\u00a0", escape(text, quote=False))


def table_in_html(table):
    words = [' class="word"' * (i in table.words()) for i in range(len(table.head))]
    head = "".join(f'<th scope="col"{word}>{escape(cell)}</th>'
                   for word, cell in zip(words, table.head))
    body = ""
    for first, *cells in table.rows:
        cells = "".join(f"<td{word}>{escape(cell)}</td>" for word, cell in zip(words[1:], cells))
        body += f'<tr><th scope="row">{escape(first.strip())}</th>{cells}</tr>\n'
    caption = f"<caption>{words_of(table.caption)}</caption>\n" if table.caption else ""
    note = f'<p class="note">{words_of(table.note)}</p>\n' if table.note else ""
    label = escape(table.caption or "numbers of the picture above")
    return (f'<div class="table" role="region" tabindex="0" aria-label="{label}">\n<table>\n'
            f"{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
            f"</div>\n{note}")


def section_in_html(section):
    parts = [f"<section>\n<h2>{words_of(section.title)}</h2>\n<p>{words_of(section.words)}</p>"]
    for draw in section.figures:
        fig = draw()
        fig.set_label(f"{fig.get_label()} {section.title}")
        parts.append(f'<figure tabindex="0">\n{figures.inline(fig)}</figure>')
    parts += map(table_in_html, section.tables)
    points = ("".join(f"<p>{words_of(line)}</p>" for line in point) for point in section.points)
    if section.points:
        parts += ["<ul>", *(f"<li>{point}</li>" for point in points), "</ul>"]
    return "\n".join([*parts, "</section>"])


def write(study, path):
    """The page; without matplotlib a sentence instead. Throws Failure where it cannot be."""
    try:
        text = PAGE.format(words=words_of(describe(study)),
                           body="\n".join(map(section_in_html, sections(study))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"\nAll of it with pictures, for a browser: {path}")
    except Failure as failure:
        print(f"\nNo page: {failure}")
    except OSError as error:
        raise Failure(f"{error.filename} cannot be written: {error.strerror}", 6) from None


def describe(study):
    """What the runs have in common."""
    chapters, models, mpi = (sorted(set(each) - {None}) for each in zip(*(
        (run.chapter, f"task {run.options.get('task')}, {spaced(run.info['parameters'])} "
         f"parameters in {run.info['layers']} layers", run.info["mpi"]) for run in study.runs)))
    return f"{', '.join(chapters)}: {'; '.join(models)}. {'; '.join(mpi)}".strip()


def holds(study):
    return not (any(not c.same and c.run.dtype == c.reference.dtype for c in study.compared)
                or wrong_bytes(study.runs) or wrong_traffic(study.runs))


def load(path):
    """The run that a log tells of; throws Failure (3) where not all can be done with it."""
    run = Run(Path(path))
    try:
        run.read()
        trial = findings.Study([copy.copy(run), run], [])
        holds(trial), describe(trial), sections(trial), min(step["ms"] for step in run.steps)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", 3) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Failure(f"{path} is no log as these programs write it: {error!r}", 3) from None
    return run


def main():
    named = [word for word in sys.argv[1:] if word != "--bytes"]
    folder = Path("build/demo")
    paths = named or sorted(folder.glob("*.jsonl"), key=lambda path: ("bf16" in path.stem, path))
    if not paths:
        raise Failure(f"{folder} has no logs: run ./tutorial demo first, or name your own", 3)
    more = [] if named else sorted(folder.glob("more/*.jsonl"))
    study = findings.Study([*map(load, paths)], [*map(load, more)], exact="--bytes" in sys.argv)
    print_text(study)
    write(study, Path("build/compare/report.html"))
    return 0 if holds(study) else 1


if __name__ == "__main__":
    finish(main, "tutorial: compare: ")
