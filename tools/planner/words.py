# SPDX-License-Identifier: MIT
"""Writes what the planner prints: a sentence of advice, lines about one plan, a table of all."""
import math
import re
import textwrap

from runs import BYTES, WIDTH, spaced
from simulate import over

from .plan import DEVICE, DISK, HOST, MADE, MOST_RANKS, STATE_HOST, Rank, bucket, costs, cut_among
from .times import MOST_RANKS as MOST_TIMED
from .times import BESIDE, LATENCY, PARTS, ROWS, has_time, left_out, machine, step, ways

UNITS = {3: "kB", 6: "MB", 9: "GB", 12: "TB"}  # by their power of ten
# By the bytes of a parameter and of its optimizer state: who counts in this way.
LABELS = {(4, 8): "fp32, its own master", (2, 8): "no master weights",
          (2, 12): "as in the ZeRO paper", (2, 16): "with an fp32 copy of gradients"}


def sized(count):
    """Returns bytes in a decimal unit, as 16.00 GB."""
    power = next(power for power in UNITS if count < 10 ** (power + 3) or power == 12)
    return f"{count / 10 ** power:.2f} {UNITS[power]}"


def timed(ms):
    return f"{max(0, ms):.2f} ms" if ms < 100 else f"{spaced(round(ms))} ms"


def plural(count, what):
    return f"{spaced(count)} {what}" if count == 1 else f"{spaced(count)} {what}s"


def took(q, rank):
    """Returns {whether messages pass beside computation: figures}; one item if both are equal."""
    steps = {beside: step(q, rank.card, rank.ranks, beside) for beside in ways(q, rank.card)}
    if len(steps) == 2 and steps[True]["step"] == steps[False]["step"]:
        del steps[True]
    return steps


def lasts(q, card, beside, figures):
    """Returns a sentence on an item of took(): a step's time, what is exposed and hidden in it."""
    way = " with messages beside computation" if beside else ""
    if card.theirs:
        overlaps = beside or (card.stage == 3 and q.overlap is not False)
        way = f" in DeepSpeed with overlap_comm {str(overlaps).lower()}"
    computes = "without computation: say --flops, --batch and --sequence, or --compute"
    if figures["computation"]:
        computes = f"computation {timed(figures['computation'])}"
    said = [f"takes {timed(figures['step'])} per step{way}: {computes}"]
    for what in PARTS:
        exposed, hidden = (figures.get(f"{what} {how}", 0) for how in ("exposed", "hidden"))
        if exposed + hidden:
            share = exposed / figures["step"]
            said.append(f"{what} exposed {timed(exposed)} ({share:.1%}), hidden {timed(hidden)}")
    if "tokens/s per rank" in figures:
        said.append(f"{spaced(round(figures['tokens/s per rank']))} tokens/s per rank")
    return "; ".join(said)


def streamed(q, rank):
    """Yields lines on the times of a step whose layers stream through the device, by resource."""
    forward, backward = (over(sum(counts) / 1e3, q.flops) for counts in q.operations)  # of a token
    up, down = (over(size / q.accumulate, q.bus) for size in reversed(rank.copied.values()))
    disk, adam = over(rank.disk, q.disk), over(rank.adam, q.host_memory)
    tokens = q.batch * q.sequence
    computes = f"forward {timed(tokens * forward)}, backward {timed(tokens * backward)}"
    copies = f"bus {timed(up / 2)} up in either, {timed(down)} down in backward"
    micro_batch = [text for holds, text in ((tokens and q.flops, computes), (q.bus, copies))
                   if holds]
    if q.bus and q.flops:  # forward then computes as long as it copies; backward doubles both
        micro_batch.append(f"hidden from {spaced(round(up / 2 / forward))} tokens on")
    if micro_batch:
        size = f" of {spaced(tokens)} tokens" if tokens else ""
        yield f"a micro-batch{size}: " + ", ".join(micro_batch)
    then = "then" if rank.card.theirs else "beside it"
    update = [f"read {timed(disk)}, {then} write {timed(disk)}"] if disk else []
    if disk and q.flops:  # the disk takes a tenth of a step if computation takes nine tenths
        least = round(9 * disk * (1 + rank.card.theirs) / (forward + backward))
        update.append(f"a tenth of a step from {spaced(least)} tokens on")
    if adam:
        update.append(f"Adam {timed(adam)}")
    if update:
        yield "an update: " + ", ".join(update)


def needs(q, rank):
    """Returns in words what a rank needs of GPU, host and disk, and a machine's ranks of a host."""
    n = min(rank.ranks, q.gpus_per_machine)
    shared = f" ({sized(rank.machine)} for the {n} ranks of a machine)" if n > 1 else ""
    *most, last = [f"{sized(size)} {where}" for where, size in (
        ("per rank", rank.reserved), ("on its host" + shared, rank.host),
        ("on its disk", rank.disk)) if size]
    return f"{', '.join(most)} and {last}" if most else last


def advice(q):
    """Returns a sentence on which plan to take."""
    plan = q.plan
    room = sized(q.gpu) + (f" with {sized(q.headroom)} of headroom" if q.headroom else "")
    if q.host:
        room += f" and {sized(q.host)} of host"
        room += f" with {sized(q.host_headroom)}" if q.host_headroom else ""
    ranks, at = f"{plural(q.ranks, 'rank')} of {room}", q.plans.index(plan)
    if plan.fits:
        before, rest = q.plans[at - 1], ", and no chapter sends less" if len(q.plans) > 1 else ""
        if at:
            more = f", or {plural(before.fewest, 'rank')}" if before.fewest else ""
            rest = f"; {before.name} would need {sized(before.reserved)}{more}"
        return f"Take {plan.name} on {ranks}: {needs(q, plan)}{rest}."
    free = q.gpu - q.headroom
    if plan.fewest:
        more, sold = " or more" if plan.fewest > q.ranks else "", ""
        needs_host = f" ({plan.name} needs {sized(plan.host)} of a rank's host)"
        host = needs_host if plan.reserved <= free else ""
        # A card that is sold as 80 GB has 80 GiB, of which PyTorch reports 79.1 to 79.2.
        if free < plan.reserved <= 1.073 * free and q.gpu % 10 ** 9 == 0:
            sold = (f" Cards sold as {q.gpu // 10 ** 9} GB have GiB: it may fit in --gpu "
                    f"{q.gpu // 10 ** 9}GiB.")
        return (f"None fits on {ranks}{host}: take {plan.name} on {plural(plan.fewest, 'rank')}"
                f"{more}, {needs(q, plan.then)}.{sold}")
    if q.shards and plan.reserved > free:
        why = f"{plan.name} reserves {sized(plan.reserved)}; take more --shards, or larger GPUs"
    elif plan.every <= free:
        why = f"{plan.name} needs more of the host"
    else:
        later = ", or a later chapter" if len(q.plans) == 1 and plan.card.stage < 3 else ""
        fewer = plan.every - q.activations <= free
        less = "fewer activations" if fewer else f"smaller layers{later}"
        why = (f"even {plan.name} keeps {sized(plan.every)} on every rank; take larger GPUs or "
               f"{less}")
    return f"None fits in {room} on up to {spaced(MOST_RANKS)} ranks: {why}."


def figures(q, plan):
    """Yields all figures by section: (title, unit, {label: figure})."""
    def by(counts):
        return {f"  {name.replace('_', ' the ')}": count for name, count in counts.items()}

    def formulas(place, label):
        return dict(zip((label, "    a frozen one"), [*plan.formulas[place], 0]))

    yield "held throughout", "bytes", by(plan.resident) | {"resident": plan.held} | formulas(
        DEVICE, "  state, bytes per param.") | {"  of it saved": f"{100 * plan.saved:.2f} %"}
    yield "borrowed within a step", "bytes", by(plan.borrowed) | {"reserved": plan.reserved}
    for place, kinds, size in ((HOST, plan.on_host, plan.host), (DISK, plan.on_disk, plan.disk)):
        yield f"on its {place}", "bytes", by(kinds) | {
            f"on the {place}": size, "  bytes per param.": plan.formulas[place][0]}
    yield "elements sent in a step", "elements", by(plan.elements) | {
        "elements": sum(plan.elements.values())} | formulas("sent", "  a param. x (N - 1)/N")
    yield "sent in a step, and copied", "bytes", {
        "sent": plan.sent, "  messages to each rank": spaced(plan.collectives),
        "  over data parallel's": f"{plan.times:.4g}"} | by(plan.copied) | {
        "  read, and written": plan.disk}
    yield "time of a step", "ms", step_figures(took(q, plan) if has_time(q) else {})
    yield "on such a GPU", "bytes", {
        f"fits on {plural(q.ranks, 'rank')}": "yes" if plan.fits else "no",
        "fewest ranks": str(plan.fewest or "none"),
        "  reserved then": plan.then and plan.then.reserved,
        "  on the host then": plan.then and plan.then.host, "  as N grows": plan.every
    } if q.gpu else {}


def step_figures(steps):
    """Returns {label: figure} of what took() returns; + marks messages beside computation."""
    rows = {}
    for mark, beside in (("", False), (" +", True)):
        for what in ROWS:
            figure = rows[what + mark] = steps.get(beside, {}).get(what)
            if figure is not None and "/" in what:
                rows[what + mark] = f"{figure:.0f}"
    return rows


def per(unit, formulas):
    trained, *frozen = formulas
    whose = f"trained parameter and {frozen[0]} per frozen one" if frozen else "parameter"
    return f"{trained} {unit} per {whose}"


def kinds(sizes):
    """Returns {kind: bytes} in words."""
    return ", ".join(f"{kind} {sized(size)}" for kind, size in sizes.items() if size) or "nothing"


def lines(q):
    """Yields lines on q.plan: what it holds, borrows and sends, and how long a step takes."""
    plan, card = q.plan, q.plan.card
    if q.gpu:
        yield advice(q)
    yield holds(plan)
    borrowed = sum(plan.borrowed.values())
    total = f"{sized(borrowed)}: " if borrowed else ""
    without = "" if q.activations else "; activations are not in it"
    yield f"borrows {total}{kinds(plan.borrowed)}{without}"
    yield sends(q, plan)
    if has_time(q):
        played, left = took(q, plan), left_out(q, [card])
        yield from (lasts(q, card, *each) for each in played.items())
        if left and any(figures["computation"] for figures in played.values()):
            yield f"left out of it: {', '.join(left)}"
        if plan.ranks > MOST_TIMED:
            yield LATENCY
    if card.place("parameters") == HOST:
        yield from streamed(q, plan)
    if q.bucket or card.theirs:
        yield from buckets(q, plan)
    if card.place("optimizer") == DISK and not card.theirs:
        size = sized(Rank(q, STATE_HOST, q.ranks).host)
        yield f"with --state host it needs no disk, but {size} of its host"
    if len(q.plans) > 1:
        others = [Rank(q, made, q.ranks) for made in MADE[:3]]  # optimizer on the host
        yield "reserved: " + ", ".join(
            [f"{plan.name[:2]} {sized(plan.reserved)}" for plan in q.plans]
            + [f"{made.name} {sized(made.reserved)}" for made in others])


def holds(plan):
    """Returns a sentence on what a rank holds throughout a step, in each place."""
    loading = plan.on_host["loading"]
    state = f"{sized(plan.held)}, {per('bytes', plan.formulas[DEVICE])}: {kinds(plan.resident)}"
    held = [state if plan.held else "nothing"]
    for place, size, by_kind in ((HOST, plan.host - loading, plan.on_host),
                                 (DISK, plan.disk, plan.on_disk)):
        if size:
            held.append(f"on its {place} {sized(size)}, {per('bytes', plan.formulas[place])}")
            if sum(map(bool, by_kind.values())) > 1:
                held[-1] += f": {kinds(by_kind | {'loading': 0})}"
    leaves = f", and {sized(loading)} of pinned memory that loading leaves"
    return f"holds {'; '.join(held)}{leaves if loading else ''}"


def sends(q, plan):
    """Returns a sentence on what a rank sends, copies, reads and writes in a step."""
    text, groups = "nothing", plan.ranks // cut_among(q, plan.card, plan.ranks)
    if plan.sent:
        replicas = f" and 2/N x {groups - 1}/{groups} between replicas" if groups > 1 else ""
        if plan.card.theirs and plan.card.stage == 3 and 1 < q.hpz < plan.ranks // groups:
            replicas += f", with {q.hpz} for N where a step gathers a layer again"
        each = ", each" if len(q.parts) > 1 else ""
        text = (f"{sized(plan.sent)} per step, {per('elements', plan.formulas['sent'])}{each} "
                f"x (N - 1)/N{replicas}, in {plural(plan.collectives, 'message')} to each rank")
        if q.accumulate > 1:
            text += f", {plan.times:.4g} times what data parallelism sends"
    if any(plan.copied.values()):
        down, up = map(sized, plan.copied.values())
        text += f"; copies {down} to its host, {up} back"
    if plan.disk:
        text += f"; reads {sized(plan.disk)} of its disk, and writes as much"
    return f"sends {text}"


def buckets(q, plan):
    """Yields a line on buckets: how many messages they make in a step, and their bytes."""
    (size, number), text, passes = bucket(q, plan.card), [], plan.collectives // len(q.sizes)
    if plan.card.theirs:  # only gradients are in buckets; an all-reduce is two messages
        passes = plan.card.reductions(q.accumulate)
    width = not plan.card.theirs and q.sends or BYTES[q.dtype]  # DeepSpeed's buckets are elements
    count = passes * math.ceil(width * q.parts[0] / size)
    if q.ranks > 1:
        text += [f"{plural(count, 'message')} to each rank in a step"]
        if q.link:
            late = machine(q).ring(0, q.ranks, messages=count)
            text[-1] += f", with {late:.2f} ms of latency"
    if plan.card.theirs and number:
        text += [f"memory for {number} at a time, {sized(number * size)}"]
    if plan.card.stage == 0 and not plan.card.theirs:
        text += [f"DDP copies all gradients into them, {sized(plan.resident['gradients'])}, unless "
                 "gradient_as_bucket_view is set"]
    if text:
        yield f"buckets of {sized(size)}: " + "; ".join(text)


def table(q):
    """Yields the lines of a table with a column for each plan, and no rows of zeros."""
    most = max(max(plan.reserved, plan.host, plan.sent) for plan in q.plans)
    width = min(14, 56 // len(q.plans))
    power = next(power for power in UNITS if most < 10 ** (power + 4) or power >= 9)
    units = {"bytes": (UNITS[power], 10 ** power), "ms": ("ms", 1),
             "elements": (f"10^{power} of {BYTES[q.dtype]} bytes", 10 ** power)}

    def row(label, cells, size=1):
        cells = ["-" if cell is None else cell for cell in cells]
        first, *others = [cell if type(cell) is str else f"{cell / size:.2f}" for cell in cells]
        # A long label may begin left of its column.
        return label + first.rjust(24 + width - len(label)) + "".join(
            cell.rjust(width) for cell in others)

    names = [plan.name.partition("_") for plan in q.plans]
    yield row("", [number for number, *_ in names])
    yield row("", [name for *_, name in names])
    for sections in zip(*(figures(q, plan) for plan in q.plans)):
        title, unit, labels = sections[0]
        rows = {label: [figures[label] for *_, figures in sections] for label in labels}
        rows = {label: cells for label, cells in rows.items() if set(cells) - {0, "0", None}}
        if rows:
            yield f"{title}, {units[unit][0]}"
        for label, cells in rows.items():
            yield row(label, cells, units[unit][1])


def told(q):
    """Yields the answer's lines: on q.plan, or if there is none, or with --table, on all plans."""
    plan, compared = q.plan, q.table or not q.plan
    by = f", by {plan.name}" if plan and (plan.fits or len(q.plans) == 1) else ""
    text = [f"{plural(sum(q.parts), 'parameter')} in {plural(len(q.sizes), 'layer')}, {q.dtype}, "
            f"on {plural(q.ranks, 'rank')}{by}", *q.notes]
    if compared:
        parameter, gradient, state = costs(q, q.plans[0].card)
        counted_by = LABELS.get((parameter, state), f"convention {q.convention}")
        label = "as asked" if q.bytes else counted_by
        if len(q.parts) > 1:
            text.append(f"{spaced(q.parts[0])} of them are trained")
        text += [f"bytes per parameter: itself {parameter}, its gradient {gradient}, optimizer "
                 f"state {state:g}, {state / parameter:g} times itself ({label})",
                 f"activations {sized(q.activations)}: {q.formula}" if q.activations else
                 "activations, data and workspace are not in it: they depend on the model",
                 *q.keys.get("keys", [])]
        if has_time(q):
            text.append(BESIDE)
    else:
        text += lines(q)
    text += [f"{what}: {', '.join(names)}" for what, names in q.keys.items()
             if names and what != "keys"]
    yield from map(folded, text)
    if compared:
        yield from table(q)
    if compared and q.gpu:
        yield folded(advice(q))


def folded(line):
    """Returns the text in lines of 80 columns, of which none ends inside a number."""
    line = re.sub(r"(?<=\d) (?=\d{3}\b)", "\u00a0", line)
    return textwrap.fill(line, WIDTH, subsequent_indent="    ",
                         break_on_hyphens=False).replace("\u00a0", " ")
