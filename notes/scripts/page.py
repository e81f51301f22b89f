# SPDX-License-Identifier: MIT
"""Sections as one HTML file that needs nothing but itself."""
import re
from html import escape

import figures

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 47rem; margin: 0 auto; padding: 1rem }}
h1 {{ font-size: 1.6rem; line-height: 1.2 }}
h2 {{ font-size: 1.25rem; line-height: 1.3; margin: 3rem 0 .5rem }}
p, li {{ overflow-wrap: anywhere }}
figure {{ margin: 1rem 0; overflow-x: auto }}
svg {{ display: block; width: 100%; min-width: 34rem; height: auto }}
.table {{ overflow-x: auto; margin: 1rem 0 }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }}
caption {{ text-align: left; padding-bottom: .3rem }}
caption, .note {{ font-size: .85rem; opacity: .75 }}
th, td {{ padding: .15rem .5rem; text-align: right; white-space: nowrap }}
thead th {{ white-space: pre-line; vertical-align: bottom }}
thead {{ border-bottom: 1px solid }}
th:first-child, .word {{ text-align: left }}
tbody th {{ font-weight: normal }}
tbody tr:nth-child(even) {{ background: rgb(128 128 128 / .12) }}
summary {{ cursor: pointer }}
@media print {{
  :root {{ color-scheme: light }}
  body {{ max-width: none; padding: 0 }}
  nav {{ display: none }}
  figure, .table, tr {{ page-break-inside: avoid; break-inside: avoid }}
  h2, summary, section > p:first-of-type {{ page-break-after: avoid; break-after: avoid }}
  svg {{ min-width: 0 }}
}}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{words}</p>
<nav aria-label="Findings">
<ul>
{links}
</ul>
</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def words_of(text):
    """Text of a page, whose numbers keep their units in one line."""
    return re.sub(r"(?<=\d) (?=%|ms|MB|Gbit|x |\d{3})", "\u00a0", escape(text, quote=False))


def of_table(table):
    words = [' class="word"' * (i in table.words()) for i in range(len(table.head))]
    head = "".join(f'<th scope="col"{word}>{escape(cell)}</th>'
                   for word, cell in zip(words, table.head))
    rows = []
    for first, *cells in table.rows:
        cells = "".join(f"<td{word}>{escape(cell)}</td>" for word, cell in zip(words[1:], cells))
        rows.append(f'<tr><th scope="row">{escape(first.strip())}</th>{cells}</tr>')
    caption = f"<caption>{words_of(table.caption)}</caption>\n" if table.caption else ""
    note = f'<p class="note">{words_of(table.note)}</p>\n' if table.note else ""
    body = "\n".join(rows)
    label = escape(table.caption or "numbers of the picture above")
    return (f'<div class="table" role="region" tabindex="0" aria-label="{label}">\n<table>\n'
            f"{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"
            f"</div>\n{note}")


def of_section(section, number):
    parts = [f'<section id="s{number}" aria-labelledby="h{number}">',
             f'<h2 id="h{number}">{words_of(section.title)}</h2>',
             f"<p>{words_of(section.words)}</p>" if section.words else ""]
    for draw in section.figures:
        fig = draw()
        fig.set_label(f"{fig.get_label()} {section.title}")
        parts.append(f'<figure tabindex="0">\n{figures.inline(fig)}</figure>')
    for table in section.tables:
        text = of_table(table)
        if len(table.rows) > 12:
            text = (f"<details>\n<summary>{len(table.rows)} rows of numbers</summary>\n"
                    f"{text}</details>")
        parts.append(text)
    if section.points:
        points = ("".join(f"<p>{words_of(line)}</p>" for line in point) for point in section.points)
        parts.append("\n".join(["<ul>", *(f"<li>{point}</li>" for point in points), "</ul>"]))
    return "\n".join(filter(None, [*parts, "</section>"]))


def page(title, words, sections):
    links = "\n".join(f'<li><a href="#s{number}">{words_of(section.title)}</a></li>'
                      for number, section in enumerate(sections, 1))
    body = "\n".join(of_section(section, number) for number, section in enumerate(sections, 1))
    return PAGE.format(title=escape(title), words=words_of(words), links=links, body=body)
