# SPDX-License-Identifier: MIT
"""How long a step takes on a machine, and over how many ranks: plans' steps, played."""
from runs import BYTES, WIDTH
from simulate import Machine, Work

from .plan import DISK, Rank, adam_bytes, bucket, costs, cut_among, padded

MOST_RANKS = 1 << 10  # above, what a message costs differs by tens of percent between models
MOST_PIECES = 16  # of a layer's state that are played; more change nothing that is shown
BESIDE = ("+: its messages pass beside computation: 03 as in DDP, 04 and 05 as in Megatron-LM; "
          "without it one after the other, as these chapters send them")


def operations(q):
    """Of each layer's forward and backward, a token: two a weight; for causal attention 2 s q, half
    of its matrices' 4 s q, with q numbers of a query. An embedding is looked up. Backward forms
    two gradients, but none of frozen weights, and again what it is told to. (Narayanan and others,
    arXiv 2104.04473, appendix, without the half)"""
    model, sizes = q.model, [sum(of) for of in q.sizes]
    trained = q.parts[0] / sum(q.parts)
    forward, attention = [2 * size for size in sizes], [0] * len(sizes)
    if q.config and not q.unwrapped:
        ends = sizes[0] + sizes[-1]
        active = (model.active - ends) / max(1, sum(sizes) - ends)
        mixed = (model.heads * model.head_dim if model.inner else model.hidden) or 0
        head = 2 * model.vocabulary * model.hidden if (
            model.head and model.vocabulary and model.hidden) else forward[-1]
        forward = [0, *(active * of for of in forward[1:-1]), head]
        attention = [0, *[2 * q.sequence * mixed] * (len(sizes) - 2), 0]
    elif q.width:
        attention = [2 * q.sequence * q.width] * len(sizes)
    again = {"none": (0, 0), "attention": (0, 1), "full": (1, 1)}[q.recompute]
    blocks = [not q.config or 0 < l < len(sizes) - 1 or q.unwrapped for l in range(len(sizes))]
    backward = [of * (1 + trained + again[0] * block) + beside * (2 + again[1])
                for of, beside, block in zip(forward, attention, blocks)]
    return [a + b for a, b in zip(forward, attention)], backward


def machine(q):
    """By --compute a step's operations are milliseconds."""
    node = q.gpus_per_machine if q.node_link else 1
    return Machine(q.flops or 1e-9 * bool(q.compute), q.memory, q.host_memory, q.bus, q.disk,
                   q.link, q.latency, node, q.node_link, q.node_latency)


def work(q, card, n, accumulate):
    cut = cut_among(q, card, n)
    w, (_, _, k) = BYTES[q.dtype], costs(q, card)
    tokens = q.batch * q.sequence
    if q.compute:
        tokens = q.compute / accumulate / sum(map(sum, q.operations))
    trained = [padded(of[0], cut) for of in q.sizes]
    pieces = tuple(min(MOST_PIECES, -(-size // cut // q.piece)) for size in trained) * (
        card.place("optimizer") == DISK)
    filled = bucket(q, card)[0] // w if q.bucket or card.theirs else 0
    return Work(card, n, [sum(padded(size, cut) for size in of) for of in q.sizes], trained,
                *([tokens * of for of in each] for each in q.operations), accumulate, w,
                q.sends or w, adam_bytes(q, card), k, pieces, cut if cut < n else 0,
                q.hpz * (q.hpz > 1), filled)


def has_time(q):
    return bool(q.link or q.bus or q.compute or q.disk or (q.flops and q.batch * q.sequence))


def left_out(q, cards):
    """Of what takes part in these plans' steps, what takes no time as its speed is not said."""
    return [f"{what} (--{speed})" for what, speed, there in (
        ("Adam on the GPU", "memory", not all(card.offloads for card in cards)),
        ("Adam on the host", "host_memory", any(card.offloads for card in cards)),
        ("copies", "bus", any(max(of) for card in cards for of in card.copied.values())),
        ("the disk", "disk", any(card.place("optimizer") == DISK for card in cards)))
        if there and not getattr(q, speed)]


PARTS = ("messages", "copies", "disk", "host cores")
ROWS = ("step", "computation", *(f"{part} {how}" for part in PARTS
                                 for how in ("exposed", "hidden")), "tokens/s per rank")


def step(q, card, n, beside=False, accumulate=0):
    """ms of a step on n ranks, and its tokens per second and rank."""
    accumulate = accumulate or q.accumulate
    prefetch = 0 if card.theirs and q.overlap is False else q.prefetch
    found = work(q, card, n, accumulate).figures(machine(q), prefetch, beside, card.theirs)
    tokens = accumulate * q.batch * q.sequence
    if tokens and found["computation"]:
        found["tokens/s per rank"] = 1e3 * tokens / found["step"]
    return found


def ways(q, card):
    """Whether messages pass beside computation, for each way to play a plan without a window: both,
    as its chapter has it and as frameworks do, never the one without the other. DeepSpeed's own
    plans overlap if overlap_comm says so; at stage 0 it averages after backward (engine.py,
    buffered_allreduce_fallback)."""
    if card.prefetches:
        return [False]
    if card.theirs:
        return [bool(card.stage and (q.overlap or q.beside))]
    return [True] if q.beside else [False, True]


def scaled(q):
    """By plan, [(ranks, micro-batches, figures, whether it fits)] for 1, 2, 4, ... ranks."""
    found = {}
    for card, beside in ((of, beside) for of in q.cards for beside in ways(q, of)):
        of_plan = found[card.name.partition("_")[0] + "+" * beside] = []
        for n in (1 << power for power in range(MOST_RANKS.bit_length())):
            accumulate, rest = divmod(q.step_tokens, n * q.sequence * q.batch) if (
                q.step_tokens) else (q.accumulate, 0)
            if rest == 0 < accumulate and n % cut_among(q, card, n) == 0:
                of_plan.append((n, accumulate, step(q, card, n, beside, accumulate),
                                not q.gpu or Rank(q, card, n).fits))
    return found


def table(q, found):
    """Over the number of ranks: a step's ms, then the share of it that messages are exposed. Of
    each row the shortest step that fits has a star."""
    def ms(of, mark):
        seconds = of["step"] / 1e3
        if seconds < 10:
            return f"{of['step']:.0f}{mark}"
        if seconds < 1000:
            return f"{seconds:.{int(seconds < 100 and width > 7)}f}s{mark}"
        return f"{seconds / 60:.0f}m{mark}"

    def share(of, mark):
        return f"{100 * of.get('messages exposed', 0) / of['step']:.1f}"

    width = min(8, (WIDTH - 10) // len(found))
    for title, cell in (("ms of a step", ms), ("% of it with messages exposed", share)):
        yield f"\n{title}\n{'N':>4}{'A':>5} " + "".join(f"{name[:width - 1]:>{width}}"
                                                         for name in found)
        for row in zip(*found.values()):
            n, accumulate, *_ = row[0]
            least = min((of["step"] for *_, of, fits in row if fits), default=0)
            cells = [cell(of, "*" if of["step"] == least else "") if fits else f"({cell(of, '')})"
                     for *_, of, fits in row]
            yield f"{n:>4}{accumulate:>5} " + "".join(f"{text:>{width}}" for text in cells)


def notes(q, found):
    """Of such a table."""
    left = left_out(q, q.cards)
    yield "( ): it does not fit; *: the shortest step that does" if q.gpu else (
        "*: the shortest step")
    if any("+" in name for name in found):
        yield BESIDE
    yield "above 1 024 ranks latency decides, of which models differ by tens of percent"
    if left:
        yield f"left out, as no speed is said: {', '.join(left)}"
