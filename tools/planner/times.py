# SPDX-License-Identifier: MIT
"""Plays plans' steps on a machine: how long one takes, and how that changes with the ranks."""
from runs import BYTES, WIDTH
from simulate import Machine, Work

from .plan import DISK, Rank, adam_bytes, bucket, costs, cut_among, padded

MOST_RANKS = 1 << 10  # for --scale and --draw; see LATENCY
LATENCY = "above 1 024 ranks latency decides, and models of it differ by tens of percent"
MOST_PIECES = 16  # a layer's state is played in at most so many; more would show the same
BESIDE = ("+: its messages pass beside computation: 03 as in DDP, 04 and 05 as in Megatron-LM; "
          "without it one after the other, as these chapters send them")


def operations(q):
    """Returns (operations of each layer's forward, of each layer's backward), for one token. A
    weight takes two. Causal attention takes 2 s w for s tokens whose queries have w numbers, half
    of the 4 s w of arXiv 2104.04473 (Narayanan and others, appendix). An embedding is looked up.
    Backward forms two gradients, none of frozen weights, and repeats what --recompute says."""
    model, sizes = q.model, [sum(parts) for parts in q.sizes]
    trained = q.parts[0] / sum(q.parts)
    weights, attention = [2 * size for size in sizes], [0] * len(sizes)
    has_ends = q.config and not q.unwrapped  # an embedding before the blocks, a head after them
    if has_ends:
        ends = sizes[0] + sizes[-1]
        # The share of the blocks' weights that a token uses.
        active = (model.active - ends) / max(1, sum(sizes) - ends)
        queries = (model.heads * model.head_dim if model.inner else model.hidden) or 0
        has_head = model.head and model.vocabulary and model.hidden
        head = 2 * model.vocabulary * model.hidden if has_head else weights[-1]
        weights = [0, *(active * count for count in weights[1:-1]), head]
        attention = [0, *[2 * q.sequence * queries] * (len(sizes) - 2), 0]
    elif q.width:
        attention = [2 * q.sequence * q.width] * len(sizes)
    # How often backward repeats the forward of weights, and that of attention.
    weights_again, attention_again = {
        "none": (0, 0), "attention": (0, 1), "full": (1, 1)}[q.recompute]
    forward, backward = [], []
    for layer, (of_weights, of_attention) in enumerate(zip(weights, attention)):
        is_block = not has_ends or 0 < layer < len(sizes) - 1
        again = weights_again if is_block else 0
        forward.append(of_weights + of_attention)
        backward.append(of_weights * (1 + trained + again) + of_attention * (2 + attention_again))
    return forward, backward


def machine(q):
    """Returns the options' Machine. With --compute, an operation of work() is a millisecond."""
    flops, node = q.flops or (1e-9 if q.compute else 0), q.gpus_per_machine if q.node_link else 1
    return Machine(flops, q.memory, q.host_memory, q.bus, q.disk, q.link, q.latency, node,
                   q.node_link, q.node_latency)


def work(q, card, n, accumulate):
    """Returns the Work of a step of this card on n ranks."""
    cut = cut_among(q, card, n)
    width, (_, _, state) = BYTES[q.dtype], costs(q, card)
    sends = q.sends or width  # bytes of an element of a gradient
    tokens = q.batch * q.sequence
    if q.compute:  # so that operations add up to --compute's ms
        tokens = q.compute / accumulate / sum(map(sum, q.operations))
    forward, backward = ([tokens * count for count in counts] for counts in q.operations)
    trained = [padded(parts[0], cut) for parts in q.sizes]
    pieces = tuple(min(MOST_PIECES, -(-size // cut // q.piece)) for size in trained
                   if card.place("optimizer") == DISK)
    return Work(
        card, n, [sum(padded(size, cut) for size in parts) for parts in q.sizes], trained, forward,
        backward, accumulate, width, sends, adam_bytes(q, card), state, pieces,
        shards=cut if cut < n else 0, near=q.hpz if q.hpz > 1 else 0,
        bucket=bucket(q, card)[0] // (width if card.theirs else sends)
        if q.bucket or card.theirs else 0)


def has_time(q):
    return bool(q.link or q.bus or q.compute or q.disk or (q.flops and q.batch * q.sequence))


def left_out(q, cards):
    """Returns what takes part in these plans' steps but takes no time, as no speed is said."""
    return [f"{what} (--{speed})" for what, speed, takes_part in (
        ("Adam on the GPU", "memory", not all(card.offloads for card in cards)),
        ("Adam on the host", "host_memory", any(card.offloads for card in cards)),
        ("copies", "bus", any(max(often) for card in cards for often in card.copied.values())),
        ("the disk", "disk", any(card.place("optimizer") == DISK for card in cards)))
        if takes_part and not getattr(q, speed)]


PARTS = ("messages", "copies", "disk", "host cores")
ROWS = ("step", "computation", *(f"{part} {how}" for part in PARTS
                                 for how in ("exposed", "hidden")), "tokens/s per rank")


def step(q, card, n, beside=False, accumulate=0):
    """Returns a step's {figure: ms} on n ranks, and tokens/s. beside: messages pass beside
    computation. accumulate: micro-batches; 0: the question's number."""
    accumulate = accumulate or q.accumulate
    prefetch = 0 if card.theirs and q.overlap is False else q.prefetch
    figures = work(q, card, n, accumulate).figures(machine(q), prefetch, beside, card.theirs)
    tokens = accumulate * q.batch * q.sequence
    if tokens and figures["computation"]:
        figures["tokens/s per rank"] = 1e3 * tokens / figures["step"]
    return figures


def ways(q, card):
    """Returns, for each way to play a plan, whether messages pass beside computation. A plan with
    no window is played as its chapter has it, and as frameworks do it. DeepSpeed's plans overlap
    if overlap_comm says so; stage 0 averages after backward (buffered_allreduce_fallback)."""
    if card.prefetches:
        return [False]
    if card.theirs:
        return [bool(card.stage and (q.overlap or q.beside))]
    return [True] if q.beside else [False, True]


def scaled(q):
    """Returns {plan: [(ranks, micro-batches, figures, whether it fits)]} for 1, 2, 4, ... ranks."""
    plans = {}
    columns = [(card, beside) for card in q.cards for beside in ways(q, card)]
    for card, beside in columns:
        rows = plans[card.name.partition("_")[0] + ("+" if beside else "")] = []
        for n in (1 << power for power in range(MOST_RANKS.bit_length())):
            accumulate, rest = q.accumulate, 0
            if q.step_tokens:
                accumulate, rest = divmod(q.step_tokens, n * q.sequence * q.batch)
            if rest == 0 < accumulate and n % cut_among(q, card, n) == 0:
                rows.append((n, accumulate, step(q, card, n, beside, accumulate),
                             not q.gpu or Rank(q, card, n).fits))
    return plans


def table(q, plans):
    """Yields the lines of two tables of scaled()'s plans: a step's ms, the least with a star, and
    their share in which messages are exposed. Brackets are around what does not fit."""
    width = min(8, (WIDTH - 10) // len(plans))

    def ms(figures, mark):
        seconds = figures["step"] / 1e3
        if seconds >= 1000:
            return f"{seconds / 60:.0f}m{mark}"
        digits = 1 if seconds < 100 and width > 7 else 0
        return f"{figures['step']:.0f}{mark}" if seconds < 10 else f"{seconds:.{digits}f}s{mark}"

    def exposed(figures, _):
        return f"{100 * figures.get('messages exposed', 0) / figures['step']:.1f}"

    for title, cell in (("ms of a step", ms), ("% of it with messages exposed", exposed)):
        heads = "".join(f"{name[:width - 1]:>{width}}" for name in plans)
        yield f"\n{title}\n{'N':>4}{'A':>5} {heads}"
        for row in zip(*plans.values()):
            n, accumulate, *_ = row[0]
            least = min((figures["step"] for *_, figures, fits in row if fits), default=0)
            cells = []
            for *_, figures, fits in row:
                star = "*" if figures["step"] == least else ""
                cells.append(cell(figures, star) if fits else f"({cell(figures, '')})")
            yield f"{n:>4}{accumulate:>5} " + "".join(f"{text:>{width}}" for text in cells)


def notes(q, plans):
    """Yields lines that explain the signs of table()'s lines, and say what its times leave out."""
    left = left_out(q, q.cards)
    yield "( ): it does not fit; *: the shortest step that does" if q.gpu else (
        "*: the shortest step")
    if any("+" in name for name in plans):
        yield BESIDE
    yield LATENCY
    if left:
        yield f"left out, as no speed is said: {', '.join(left)}"
