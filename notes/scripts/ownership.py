# SPDX-License-Identifier: MIT
"""Draws who holds what: a layer of 12 parameters on three ranks, in each chapter."""
from runs import CHAPTERS

PAGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" font-family="Helvetica,Arial,sans-serif" font-size="14" \
fill="#333333">
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}
</svg>
"""
COLOURS = {"parameters": "#2f6db3", "gradients": "#e58a2b", "optimizer": "#3d9a6a"}
TINTS = {"parameters": "#c3d7ec", "gradients": "#f8ddc0", "optimizer": "#c6e3d5"}
COLUMNS = (("parameters", "parameters"), ("gradients", "gradients"),
           ("optimizer", "master weights"), ("optimizer", "momentum"), ("optimizer", "variance"))
COUNT, RANKS = 12, 3
CELL, GAP, LEFT, ROW, TOP = 9, 22, 290, 17, 136
X = [LEFT + column * (COUNT * CELL + GAP) for column in range(6)]  # of each column, and the end


def text(x, y, words, size=14, anchor="start", colour="#333333", weight="normal"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{words}</text>')


def box(x, y, width, height, fill):
    return (f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" '
            'stroke="none"/>')


def line(path, colour):
    return f'<path d="{path}" fill="none" stroke="{colour}"/>'


def chapter_rows(chapter, shards, y):
    """A chapter's rows, one a rank, and the bytes that each rank holds."""
    mixed, alone = chapter >= "03", chapter == "01_adam"
    lines = [text(24, y + 12, chapter, 15, weight="bold")]
    for rank in range(1 if alone else RANKS):
        top, total = y + rank * ROW, 0
        lines.append(text(LEFT - 16, top + 11, "one process" if alone else f"rank {rank}", 12,
                          "end", "#777777"))
        for x, (kind, name) in zip(X, COLUMNS):
            if name == "master weights" and not mixed:
                if rank == 0:
                    lines.append(text(x, top + 11, "the parameters", 12, colour="#777777"))
                continue
            size = 2 if mixed and kind != "optimizer" else 4
            cut = kind in shards
            count = COUNT // RANKS if cut else COUNT
            first = rank * count if cut else 0
            colour = (COLOURS if cut or alone else TINTS)[kind]
            lines.append(box(x, top, COUNT * CELL, 12, "#f4f4f4") + "".join(
                box(x + i * CELL, top + 12 - 3 * size, CELL - 1, 3 * size, colour)
                for i in range(first, first + count)))
            total += size * count
        lines.append(text(X[5] + 72, top + 11, total, 14, "end"))
    return lines


def draw(shards, path):
    """shards: by chapter, the kinds of which a rank holds a part; path: of the SVG file."""
    right, width, optimizer = X[5], X[5] + 96, X[2]
    body = [text(24, 36, "Who holds what", 20, weight="bold"),
            text(24, 60, f"A layer of {COUNT} parameters on {RANKS} ranks, between two steps. "
                 "A cell is a parameter, its height the bytes it takes: 2 or 4.",
                 colour="#555555"),
            text((optimizer + right - GAP) / 2, 92, "optimizer state", anchor="middle"),
            line(f"M{optimizer} 103v-5H{right - GAP}v5", "#999999"),
            text(right + 72, 118, "bytes a rank", anchor="end")]
    body += [text(x + COUNT * CELL / 2, 118, name, anchor="middle")
             for x, (_, name) in zip(X, COLUMNS)]
    y = TOP
    for chapter in CHAPTERS:
        body.append(line(f"M24 {y - 5}H{width - 24}", "#dddddd"))
        body += chapter_rows(chapter, shards[chapter], y + 2)
        y += (1 if chapter == "01_adam" else RANKS) * ROW + 13
    body.append(line(f"M24 {y - 5}H{width - 24}", "#dddddd"))
    for x, colours, words in ((24, COLOURS, "held by one rank alone"),
                              (290, TINTS, "held whole by every rank")):
        body += [box(x + i * 14, y + 12, 12, 12, colour)
                 for i, colour in enumerate(colours.values())]
        body.append(text(x + 50, y + 23, words, colour="#555555"))
    path.write_text(PAGE.format(width=width, height=y + 44, body="\n".join(body)))
