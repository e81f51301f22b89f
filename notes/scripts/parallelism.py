# SPDX-License-Identifier: MIT
"""Draws what ZeRO-3, tensor and pipeline parallelism cut, and what travels between the ranks."""
from figures import INK, KIND_COLOURS, figure

RANKS, LAYERS = 3, 6
PARTS = RANKS  # of a layer's width
CELL, HEIGHT, BETWEEN = 28, 14, 26  # pixels: a part of a layer, a layer, two ranks
LEFT, TOP, ROW = 164, 66, 122
MODEL = PARTS * CELL
PARAMETERS, GRADIENTS, ACTIVATIONS = KIND_COLOURS[0], KIND_COLOURS[1], KIND_COLOURS[4]
EVERY = range(RANKS)
# Of each way: its name, what it cuts, what travels; whether that rank stores, and computes, that
# part of that layer; of which thirds of a step's samples.
WAYS = (
    ("ZeRO-3", "cuts storage", "every layer, whole:\nparameters twice,\ngradients once",
     lambda rank, layer, part: part == rank, lambda rank, layer, part: True,
     lambda rank: [rank]),
    ("tensor parallelism", "cuts each layer's\ncomputation", "every layer's outputs,\nand their "
     "gradients, of\nall samples",
     lambda rank, layer, part: part == rank, lambda rank, layer, part: part == rank,
     lambda rank: EVERY),
    ("pipeline parallelism", "cuts the depth", "outputs at each cut, and\ntheir gradients, of\nall "
     "samples",
     lambda rank, layer, part: layer * RANKS // LAYERS == rank,
     lambda rank, layer, part: layer * RANKS // LAYERS == rank, lambda rank: EVERY),
)


def box(ax, x, y, width, height, alpha, colour=PARAMETERS):
    ax.fill_between((x + 1, x + width - 1), y + 1, y + height - 1, color=colour, alpha=alpha,
                    linewidth=0)


def arrow(ax, start, end, colour, style="-|>"):
    ax.annotate("", end, start, arrowprops={
        "arrowstyle": f"{style},head_width=0.16,head_length=0.28", "color": colour,
        "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0})


def model(ax, x, y, rank, stores, computes, samples):
    """A rank's samples, and below them its layers."""
    for third in samples(rank):
        box(ax, x + third * CELL, y - 17, CELL, 15, 0.4, ACTIVATIONS)
        ax.text(x + (third + 0.5) * CELL, y - 9.5, "abc"[third], size=11, ha="center", va="center")
    for layer in range(LAYERS):
        for part in range(PARTS):
            there = stores(rank, layer, part), computes(rank, layer, part)
            box(ax, x + part * CELL, y + layer * HEIGHT, CELL, HEIGHT,
                1 if there[0] else 0.28 if there[1] else 0.05, PARAMETERS if any(there) else INK)


def draw():
    fig, ax = figure(
        720, 460, title="Three ways to share a model: cut what is stored, computed, or how deep",
        subtitle=f"{LAYERS} layers on {RANKS} ranks. Dark: stored on the rank; pale: borrowed to "
        "compute with;\nempty: neither. a, b, c: the thirds of a step's samples that the rank "
        "computes")
    ax.set_axis_off()
    for rank in EVERY:
        ax.text(LEFT + rank * (MODEL + BETWEEN) + MODEL / 2, TOP - 28, f"rank {rank}", size=12,
                ha="center", alpha=0.7)
    right = LEFT + RANKS * (MODEL + BETWEEN)
    ax.text(right, TOP - 28, "what travels in a step", size=12, alpha=0.7)
    for i, (name, cuts, travels, stores, computes, samples) in enumerate(WAYS):
        y = TOP + i * ROW
        ax.text(0, y + 16, name, size=13, weight="bold")
        ax.text(0, y + 24, cuts, size=12, va="top", linespacing=1.3)
        ax.text(right, y + 10, travels, size=12, va="top", linespacing=1.3)
        for rank in EVERY:
            x = LEFT + rank * (MODEL + BETWEEN)
            model(ax, x, y, rank, stores, computes, samples)
            if rank == 0:
                continue
            for layer in range(LAYERS):
                middle, gap = y + (layer + 0.5) * HEIGHT, (x - BETWEEN + 4, x - 4)
                if i < 2:
                    arrow(ax, (gap[0], middle), (gap[1], middle),
                          (PARAMETERS, ACTIVATIONS)[i], "<|-|>")
                elif (layer + 1) * RANKS // LAYERS == rank and layer * RANKS // LAYERS < rank:
                    arrow(ax, (gap[0], middle), (gap[1], middle + HEIGHT), ACTIVATIONS, "<|-|>")
    ax.set(xlim=(0, 704), ylim=(TOP + 3 * ROW - 34, 20))
    return fig
