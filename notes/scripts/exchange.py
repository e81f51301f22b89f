# SPDX-License-Identifier: MIT
"""Draws a reduce-scatter on four ranks step by step: round a ring, and as these programs do it."""
import copy

from figures import INK, KIND_COLOURS, figure

RANKS = 4
CELL, HEIGHT = 37, 24  # pixels
LEFT, STRIDE = 52, 167  # of the first grid; from one grid to the next


def ring(ranks):
    """Of each step the (sender, receiver, part) of its messages: every rank passes to the next one
    the part that has just come, with its own added; part p ends on rank p."""
    return [[(rank, (rank + 1) % ranks, (rank - step) % ranks) for rank in range(ranks)]
            for step in range(1, ranks)]


def direct(ranks):
    """The same: every rank sends part p to rank p, the next one first (Communicator::parts)."""
    return [[(rank, (rank + step) % ranks, (rank + step) % ranks) for rank in range(ranks)]
            for step in range(1, ranks)]


def course(ranks, steps, ordered):
    """Before and after each step: of rank r and part p, held[r][p] lists the ranks whose numbers
    are in it, in the order of addition; an empty list has been sent. ordered: the owner adds when
    all have come, in rank order."""
    held = [[[rank] for _ in range(ranks)] for rank in range(ranks)]
    states = [copy.deepcopy(held)]
    for step in steps:
        moving = [(held[sender][part], sender, receiver, part) for sender, receiver, part in step]
        for _, sender, _, part in moving:
            held[sender][part] = []
        for what, _, receiver, part in moving:
            both = what + held[receiver][part]
            held[receiver][part] = sorted(both) if ordered else both
        states.append(copy.deepcopy(held))
    return states


def grid(ax, x, y, held, messages):
    """Rows are ranks, columns parts; an arrow for each message that has led to this."""
    for rank, row in enumerate(held):
        for part, ranks in enumerate(row):
            left, top = x + part * CELL, y + rank * HEIGHT
            ax.fill_between((left + 1, left + CELL - 1), top + 1, top + HEIGHT - 1, linewidth=0,
                            color=KIND_COLOURS[part], alpha=0.08 + 0.14 * len(ranks))
            ax.text(left + 0.58 * CELL, top + HEIGHT / 2, "".join(map(str, ranks)), size=10,
                    ha="center", va="center", weight="bold" if len(ranks) == len(held) else
                    "normal")
    for sender, receiver, part in messages:
        place = x + part * CELL + 4
        ax.annotate("", (place, y + (receiver + 0.5) * HEIGHT),
                    (place, y + (sender + 0.5) * HEIGHT), arrowprops={
                        "arrowstyle": "-|>,head_width=0.18,head_length=0.3", "color": INK,
                        "alpha": 0.75, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0})


def draw():
    fig, ax = figure(
        720, 450, title="A ring and we send the same; a ring adds each part in another order",
        subtitle="A reduce-scatter on 4 ranks. Rows: what a rank holds; columns: the parts. 230: "
        "added are the\nnumbers of rank 2, then 3, then 0; bold: a whole sum. Arrows: the messages "
        "of the step")
    ax.set_axis_off()
    y = 0
    for name, steps, ordered in (
            ("A ring: what has come, and the own part added, goes on to the next rank", ring,
             False),
            ("Direct, as here: part p goes to rank p, which adds in rank order", direct, True)):
        messages = steps(RANKS)
        ax.text(0, y + 12, name, weight="bold", size=12)
        for step, held in enumerate(course(RANKS, messages, ordered)):
            x = LEFT + step * STRIDE
            ax.text(x, y + 34, f"after step {step}" if step else "before", size=11, alpha=0.8)
            if step:
                ax.text(x + RANKS * CELL - 1, y + 34, f"sent {step}/{RANKS}", size=11, ha="right",
                        alpha=0.8)
            grid(ax, x, y + 40, held, messages[step - 1] if step else [])
        for rank in range(RANKS):
            ax.text(LEFT - 8, y + 40 + (rank + 0.5) * HEIGHT, f"rank {rank}", size=11, ha="right",
                    va="center", alpha=0.7)
        y += 40 + RANKS * HEIGHT + 30
    for part in range(RANKS):
        ax.text(LEFT + (part + 0.5) * CELL, y - 16, f"part {part}", size=10, ha="center", alpha=0.7)
    ax.set(xlim=(0, 704), ylim=(y - 8, 0))
    return fig
