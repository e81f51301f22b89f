# SPDX-License-Identifier: MIT
"""Compares runs by their logs: as text, and as a page with pictures.

`./tutorial compare` calls this with logs; without any it takes the demo's. `./tutorial demo` calls
the functions that make the page. Exit code 0 means that runs of one dtype have the same bits, and
that bytes and traffic equal their formulas; 1 means that something does not hold."""
import copy
import re
import sys
from html import escape
from pathlib import Path

import counts
import findings
from runs import WIDTH, Failure, Run, finish, folded, spaced, wrong_bytes, wrong_traffic

SHORT = {"parameters": "param.", "gradients": "grads", "optimizer": "optim."}  # on a terminal


def text_of(table):
    """Returns a table's text, in columns of a terminal."""
    head = [[SHORT.get(line, line) for line in cell.split("\n")] for cell in table.head]
    deep = max(map(len, head))
    columns = [[*[""] * (deep - len(lines)), *lines, *column]
               for lines, column in zip(head, zip(*table.rows))]
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + len(widths) - 1 > WIDTH and max(widths[i] for i in table.words()) > 12:
        widths[max(table.words(), key=lambda i: widths[i])] -= 1  # a word's beginning is cut off
    gap = " " * max(1, min(2, (WIDTH - sum(widths)) // (len(widths) - 1)))
    cut = [[cell if len(cell) <= width else "…" + cell[1 - width:] for cell in column]
           for column, width in zip(columns, widths)]
    padded = [[f"{cell:{'<' if i in table.words() else '>'}{widths[i]}}" for cell in column]
              for i, column in enumerate(cut)]
    shown = [[weak(cell) for cell in column] if i in table.weak else column
             for i, column in enumerate(padded)]
    return "\n".join(gap.join(line).rstrip() for line in zip(*shown))


def weak(text):
    """Returns the text, in grey on a terminal."""
    return f"\033[2m{text}\033[0m" if sys.stdout.isatty() else text


def sections(study):
    """Returns all findings, without those that have nothing to say."""
    makers = counts.memory, findings.equality, counts.traffic, counts.timeline, counts.ending
    return [section for make in makers if (section := make(study))]


def print_text(parts):
    for section in parts:
        print("", *folded(section.title + "."), *folded(section.words), sep="\n")
        for table in section.tables:
            print("", *folded(table.caption + ":"), text_of(table), *folded(table.note), sep="\n")
        if section.points:
            print()
        for first, *rest in section.points:
            print(*folded(first), *(line for more in rest for line in folded(more, "  ")), sep="\n")


PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>What your runs show</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem }}
h1, h2 {{ line-height: 1.25; text-wrap: balance }}
h2 {{ margin: 2.5rem 0 .5rem; font-size: 1.3rem }}
h3 {{ margin: .5rem 0; font-size: 1rem }}
p, li, figcaption {{ max-width: 44rem; overflow-wrap: anywhere }}
figure {{ margin: 1rem 0 }}
figcaption, .legend, .note {{ margin: .25rem 0; font-size: .9rem }}
.legend > span {{ display: inline-block; margin-right: .75rem }}
.panels {{ display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)) }}
figure > div > div {{ break-inside: avoid }}
h2, h2 + p, h3, figcaption {{ break-after: avoid }}
svg {{ display: block; font-size: 13px; fill: currentColor; overflow: visible }}
rect {{ stroke: Canvas; stroke-width: .5 }}
.said {{ font-weight: bold }}
.tick {{ font-size: 11px; opacity: .75 }}
.weak {{ opacity: .6 }}
.on {{ fill: white }}
@media (max-width: 58rem) {{ .wide {{ display: none }} }}
.curve {{ fill: none; stroke-width: 2; vector-effect: non-scaling-stroke }}
summary {{ cursor: pointer; padding: .25rem 0 }}
.table {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }}
th, td {{ padding: .15rem .5rem; text-align: right; white-space: nowrap; font-weight: normal }}
thead th {{ white-space: pre-line; vertical-align: bottom; border-bottom: 1px solid }}
th:first-child, .word {{ text-align: left }}
</style>
</head>
<body>
<h1>What your runs show</h1>
<p>{words}</p>
<main>{body}</main>
</body></html>
"""


def words_of(text):
    """Returns text as HTML. A number and its unit stay in one line; what follows "$ " is code."""
    if text.startswith("$ "):
        return f"<code>{escape(text[2:])}</code>"
    return re.sub(r"(?<=\d) (?=%|ms|[kM]B|Gbit|x |\d{3})", "\u00a0", escape(text, quote=False))


def table_in_html(table):
    words = [""] * len(table.head)
    for columns, kind in ((table.weak, "weak"), (table.words(), "word")):
        for i in columns:
            words[i] = f' class="{kind}"'
    head = "".join(f'<th scope="col"{word}>{escape(cell)}</th>'
                   for word, cell in zip(words, table.head))
    body = ""
    for first, *cells in table.rows:
        cells = "".join(f"<td{word}>{escape(cell)}</td>" for word, cell in zip(words[1:], cells))
        body += f'<tr><th scope="row">{escape(first.strip())}</th>{cells}</tr>\n'
    caption = words_of(table.caption)
    return (f"<details>\n<summary>{caption}</summary>\n"
            f'<div class="table" role="region" tabindex="0" aria-label="{caption}">\n<table>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
            f'<p class="note">{words_of(table.note)}</p>\n</details>\n')


def section_in_html(section):
    points = "\n".join(f"<li>{'<br/>'.join(map(words_of, said))}</li>" for said in section.points)
    return "\n".join([f"<section>\n<h2>{words_of(section.title)}</h2>",
                      f"<p>{words_of(section.words)}</p>" if section.words else "",
                      *section.figures, f"<ul>\n{points}\n</ul>" if points else "",
                      *map(table_in_html, section.tables), "</section>"])


def write(study, path):
    """Writes the page of a study; raises a Failure (6) if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(words=words_of(describe(study)),
                                    body="\n".join(map(section_in_html, sections(study)))),
                        "utf-8", "replace")
        print(f"\nAll of it with pictures, for a browser: {path}")
    except OSError as error:
        raise Failure(f"{error.filename} cannot be written: {error.strerror}", 6) from None


def describe(study):
    """Returns a sentence on the runs and their models."""
    models = sorted({f"task {run.options.get('task')}, {spaced(run.info['parameters'])} parameters "
                     f"in {run.info['layers']} layers" for run in study.runs})
    runs = f"{len(study.runs)} runs" if len(study.runs) > 1 else "1 run"
    return f"{runs} of {' and of '.join(models)}. A rank is a process, in place of a GPU."


def holds(study):
    """Returns whether runs of one dtype have the same bits, and all counts equal their formulas."""
    return not (any(not c.same and c.run.dtype == c.reference.dtype for c in study.compared)
                or wrong_bytes(study.runs) or wrong_traffic(study.runs))


def load(path):
    """Returns the Run of a log. Makes a report of this run alone on trial, and raises a Failure (3)
    if that is not possible."""
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
    print_text(sections(study))
    write(study, Path("build/compare/report.html"))
    return 0 if holds(study) else 1


if __name__ == "__main__":
    finish(main, "tutorial: compare: ")
