# SPDX-License-Identifier: MIT
"""Draws who holds what: a layer of 12 parameters on three ranks, in each chapter."""
import math

from figures import INK, KIND_COLOURS, figure
from runs import CHAPTERS

COLUMNS = ((0, "parameters"), (1, "gradients"), (2, "master weights"), (2, "momentum"),
           (2, "variance"))  # the kind of each, and its name
STATE = ("parameters", "gradients", "optimizer")
COUNT, RANKS = 12, 3
CELL, GAP, LEFT, ROW, TOP, RIGHT = 6, 14, 206, 15, 48, 704  # pixels
ON_DEVICE, ON_HOST = 0.06, 0.25  # how dark it is behind the cells
X = [LEFT + column * (COUNT * CELL + GAP) for column in range(6)]  # of each column, and the end


def cells(ax, x, bottom, count, height, colour, shared):
    """A row of parameters in one path with gaps; paler where every rank holds the same."""
    edges = [x + i * CELL + part for i in range(count) for part in (0, CELL - 1)]
    ax.stairs(([bottom - height, math.nan] * count)[:-1], edges, baseline=bottom, fill=True,
              color=colour, alpha=0.35 if shared else 1, linewidth=0)


def chapter_rows(ax, chapter, shards, on_host, y):
    """A chapter's rows, one a rank, and the bytes that each rank holds."""
    mixed, alone = chapter >= "03", chapter == "01_adam"
    ax.text(0, y + 10, chapter, weight="bold", size=12)
    for rank in range(1 if alone else RANKS):
        bottom, total = y + rank * ROW + 11, {False: 0, True: 0}
        ax.text(LEFT - 10, bottom - 1, "one process" if alone else f"rank {rank}", size=11,
                ha="right", alpha=0.7)
        for x, (kind, name) in zip(X, COLUMNS):
            if name == "master weights" and not mixed:
                if rank == 0:
                    ax.text(x, bottom - 1, "the parameters", size=10, alpha=0.7)
                continue
            size = 2 if mixed and kind < 2 else 4
            cut = STATE[kind] in shards
            count = COUNT // RANKS if cut else COUNT
            there = STATE[kind] in on_host
            ax.fill_between((x, x + COUNT * CELL), bottom - 11, bottom, color=INK, linewidth=0,
                            alpha=ON_HOST if there else ON_DEVICE)
            cells(ax, x + (rank * count * CELL if cut else 0), bottom, count, 2.75 * size,
                  KIND_COLOURS[kind], not (cut or alone))
            total[there] += size * count
        ax.text(RIGHT, bottom - 1, " + ".join(str(bytes) for bytes in total.values() if bytes),
                ha="right", size=12)


def draw(shards, on_host):
    """By chapter, the kinds of which a rank holds a part, and those that lie with its host."""
    fig, ax = figure(
        720, 490, title="Each ZeRO stage cuts one kind more, until nothing is held twice",
        subtitle=f"A layer of {COUNT} parameters on {RANKS} ranks, between two steps. A cell is a "
        "parameter,\nits height the bytes it takes: 2 or 4. In 07 on a device + on its host, where "
        "staging takes 8 more")
    ax.set_axis_off()
    end = X[5] - GAP
    ax.text((X[2] + end) / 2, 8, "optimizer state", ha="center")
    ax.plot((X[2], X[2], end, end), (18, 14, 14, 18), color=INK, alpha=0.5, linewidth=1)
    ax.text(RIGHT, 34, "bytes a rank", ha="right", size=11)
    for x, (_, name) in zip(X, COLUMNS):
        ax.text(x + COUNT * CELL / 2, 34, name, ha="center", size=11)
    y = TOP
    for chapter in CHAPTERS:
        ax.axhline(y - 4, color=INK, alpha=0.15, linewidth=1)
        chapter_rows(ax, chapter, shards[chapter], on_host[chapter], y + 2)
        y += (1 if chapter == "01_adam" else RANKS) * ROW + 10
    ax.axhline(y - 4, color=INK, alpha=0.15, linewidth=1)
    for x, shared, words in ((0, False, "held by one rank alone"),
                             (LEFT, True, "held whole by every rank")):
        for i, colour in enumerate(KIND_COLOURS[:3]):
            cells(ax, x + 2 * i * CELL, y + 17, 2, 11, colour, shared)
        ax.text(x + 7 * CELL, y + 16, words)
    x = LEFT + 7 * CELL + 200
    ax.fill_between((x, x + 5 * CELL), y + 6, y + 17, color=INK, alpha=ON_HOST, linewidth=0)
    ax.text(x + 6 * CELL, y + 16, "on the host")
    ax.set(xlim=(0, RIGHT), ylim=(y + 22, 0))
    return fig
