# SPDX-License-Identifier: MIT
"""What the planner prints: a sentence of advice, lines about one plan, a table of all plans."""
import math
import re
import textwrap

from runs import BYTES, WIDTH, spaced
from simulate import over

from .plan import DEVICE, DISK, HOST, MADE, MOST_RANKS, STATE_HOST, Rank, bucket, costs, cut_among
from .times import MOST_RANKS as MOST_TIMED
from .times import BESIDE, PARTS, ROWS, has_time, left_out, machine, step, ways

UNITS = {3: "kB", 6: "MB", 9: "GB", 12: "TB"}  # by their power of ten
# By bytes of a parameter and of its optimizer state: who counts so.
LABELS = {(4, 8): "fp32, its own master", (2, 8): "no master weights",
          (2, 12): "as in the ZeRO paper", (2, 16): "with an fp32 copy of gradients"}


def sized(count):
    power = next(power for power in UNITS if count < 10 ** (power + 3) or power == 12)
    return f"{count / 10 ** power:.2f} {UNITS[power]}"


def timed(ms):
    return f"{ms:.2f} ms" if ms < 100 else f"{spaced(round(ms))} ms"


def plural(count, what):
    return f"{spaced(count)} {what}{'s' * (count != 1)}"


def took(q, rank):
    """Figures of its step, by how it is played; once, if it is the same."""
    found = {beside: step(q, rank.card, rank.ranks, beside) for beside in ways(q, rank.card)}
    if len(found) == 2 and found[True]["step"] == found[False]["step"]:
        del found[True]
    return found


def lasts(q, card, beside, of):
    """In one sentence."""
    how = " with messages beside computation" * beside
    if card.theirs:
        yes = beside or (card.stage == 3 and q.overlap is not False)
        how = f" in DeepSpeed with overlap_comm {str(yes).lower()}"
    said = [f"takes {timed(of['step'])} per step{how}: "
            + (f"computation {timed(of['computation'])}" if of["computation"] else
               "without computation: say --flops, --batch and --sequence, or --compute")]
    for what in PARTS:
        exposed, hidden = (of.get(f"{what} {how}", 0) for how in ("exposed", "hidden"))
        if exposed + hidden:
            said.append(f"{what} exposed {timed(exposed)} ({exposed / of['step']:.1%}), hidden "
                        f"{timed(hidden)}")
    if "tokens/s per rank" in of:
        said.append(f"{spaced(round(of['tokens/s per rank']))} tokens/s per rank")
    return "; ".join(said)


def streamed(q, rank):
    """The terms of a step whose layers stream through the device: as many as speeds are given."""
    each = [over(sum(of) / 1e3, q.flops) for of in q.operations]  # of a token
    up, down = (over(of / q.accumulate, q.bus) for of in reversed(rank.copied.values()))
    disk, adam = over(rank.disk, q.disk), over(rank.adam, q.host_memory)
    tokens = q.batch * q.sequence
    told = [f"forward {timed(tokens * each[0])}, backward {timed(tokens * each[1])}"] * (
        tokens * q.flops > 0)
    told += [f"bus {timed(up / 2)} up in either, {timed(down)} down in backward"] * (q.bus > 0)
    if q.bus and q.flops:  # w P/N / bus = 2 P tokens / flops; in backward twice as much of both
        told += [f"hidden from {spaced(round(up / 2 / each[0]))} tokens on"]
    if told:
        of = f" of {spaced(tokens)} tokens" * (tokens > 0)
        yield f"a micro-batch{of}: " + ", ".join(told)
    told = [f"read {timed(disk)}, beside it write {timed(disk)}"] * (disk > 0)
    if disk and q.flops:  # a tenth: all tokens take nine times as long
        told += [f"a tenth of a step from {spaced(round(9 * disk / sum(each)))} tokens on"]
    told += [f"Adam {timed(adam)}"] * (adam > 0)
    if told:
        yield "an update: " + ", ".join(told)


def needs(q, rank):
    """What a rank needs of GPU, host and disk, and what its machine's ranks need of the host."""
    n = min(rank.ranks, q.gpus_per_machine)
    shared = f" ({sized(rank.machine)} for the {n} ranks of a machine)" * (n > 1)
    *most, last = [f"{sized(size)} {where}" for where, size in (
        ("per rank", rank.reserved), ("on its host" + shared, rank.host),
        ("on its disk", rank.disk)) if size]
    return ", ".join(most) + " and " * (most != []) + last


def advice(q):
    """Which plan to take, in one sentence."""
    plan, room = q.plan, sized(q.gpu) + f" with {sized(q.headroom)} of headroom" * (q.headroom > 0)
    if q.host:
        room += f" and {sized(q.host)} of host" + f" with {sized(q.host_headroom)}" * (
            q.host_headroom > 0)
    ranks, at = f"{plural(q.ranks, 'rank')} of {room}", q.plans.index(plan)
    if plan.fits:
        before, rest = q.plans[at - 1], ", and no chapter sends less" * (len(q.plans) > 1)
        if at:
            rest = f"; {before.name} would need {sized(before.reserved)}" + (
                f", or {plural(before.fewest, 'rank')}" if before.fewest else "")
        return f"Take {plan.name} on {ranks}: {needs(q, plan)}{rest}."
    if plan.fewest:
        # A card that is sold as 80 GB has 80 GiB, of which PyTorch reports 79.1 to 79.2.
        free = q.gpu - q.headroom
        sold = free < plan.reserved <= 1.073 * free and q.gpu % 10 ** 9 == 0
        host = f" ({plan.name} needs {sized(plan.host)} of a rank's host)" * (plan.reserved <= free)
        return (f"None fits on {ranks}{host}: take {plan.name} on {plural(plan.fewest, 'rank')}"
                f"{' or more' * (plan.fewest > q.ranks)}, {needs(q, plan.then)}."
                + f" Cards sold as {q.gpu // 10 ** 9} GB have GiB: it may fit in --gpu "
                f"{q.gpu // 10 ** 9}GiB." * sold)
    if plan.every <= q.gpu - q.headroom:
        why = f"{plan.name} needs more of the host"
    else:
        less = "fewer activations" if plan.every - q.activations <= q.gpu - q.headroom else \
            "smaller layers" + ", or a later chapter" * (len(q.plans) == 1 and plan.card.stage < 3)
        why = (f"even {plan.name} keeps {sized(plan.every)} on every rank; take larger GPUs or "
               f"{less}")
    return f"None fits in {room} on up to {spaced(MOST_RANKS)} ranks: {why}."


def figures(q, plan):
    """Yields all figures by section: (title, unit, {label: figure})."""
    def by(kinds):
        return {f"  {kind.replace('_', ' the ')}": count for kind, count in kinds.items()}

    def formulas(of, label):
        return dict(zip((label, "    a frozen one"), [*plan.formulas[of], 0]))

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
    played = took(q, plan) if has_time(q) else {}
    yield "time of a step", "ms", {
        what + " +" * beside: f"{of[what]:.0f}" if what in of and "/" in what else of.get(what)
        for beside in (False, True) for of in [played.get(beside, {})] for what in ROWS}
    yield "on such a GPU", "bytes", {
        f"fits on {plural(q.ranks, 'rank')}": "yes" if plan.fits else "no",
        "fewest ranks": str(plan.fewest or "none"),
        "  reserved then": plan.then and plan.then.reserved,
        "  on the host then": plan.then and plan.then.host,
        "  as N grows": plan.every} if q.gpu else {}


def per(unit, formulas):
    trained, *frozen = formulas
    return f"{trained} {unit} per " + (
        f"trained parameter and {frozen[0]} per frozen one" if frozen else "parameter")


def kinds(of):
    return ", ".join(f"{kind} {sized(size)}" for kind, size in of.items() if size) or "nothing"


def lines(q):
    """All about one plan."""
    plan, card = q.plan, q.plan.card
    loading = plan.on_host["loading"]
    if q.gpu:
        yield advice(q)
    held = [f"{sized(plan.held)}, {per('bytes', plan.formulas[DEVICE])}: {kinds(plan.resident)}"
            if plan.held else "nothing"]
    for place, size, of in ((HOST, plan.host - loading, plan.on_host),
                            (DISK, plan.disk, plan.on_disk)):
        if size:
            held.append(f"on its {place} {sized(size)}, {per('bytes', plan.formulas[place])}"
                        + f": {kinds(of | {'loading': 0})}" * (sum(map(bool, of.values())) > 1))
    yield f"holds {'; '.join(held)}" + (
        f", and {sized(loading)} of pinned memory that loading leaves" * (loading > 0))
    borrowed = sum(plan.borrowed.values())
    yield ("borrows " + f"{sized(borrowed)}: " * (borrowed > 0) + kinds(plan.borrowed)
           + "; activations are not in it" * (not q.activations))
    down, up = map(sized, plan.copied.values())
    groups = plan.ranks // cut_among(q, card, plan.ranks)
    replicas = f" and 2/N x {groups - 1}/{groups} between replicas" * (groups > 1)
    sends = (f"{sized(plan.sent)} per step, {per('elements', plan.formulas['sent'])}"
             + ", each" * (len(q.parts) > 1) + f" x (N - 1)/N{replicas}, in "
             f"{plural(plan.collectives, 'message')} to each rank"
             + f", {plan.times:.4g} times what data parallelism sends" * (q.accumulate > 1))
    yield (f"sends {sends if plan.sent else 'nothing'}"
           + f"; copies {down} to its host, {up} back" * any(plan.copied.values())
           + f"; reads {sized(plan.disk)} of its disk, and writes as much" * (plan.disk > 0))
    if has_time(q):
        played, left = took(q, plan), left_out(q, [card])
        yield from (lasts(q, card, *each) for each in played.items())
        if left and any(of["computation"] for of in played.values()):
            yield f"left out of it: {', '.join(left)}"
        yield from ["above 1 024 ranks latency decides, of which models differ by tens of percent"
                    ] * (plan.ranks > MOST_TIMED)
    if card.place("parameters") == HOST:
        yield from streamed(q, plan)
    if q.bucket or card.theirs:
        yield from buckets(q, plan)
    if card.place("optimizer") == DISK and not card.theirs:
        size = sized(Rank(q, STATE_HOST, q.ranks).host)
        yield f"with --state host it needs no disk, but {size} of its host"
    if len(q.plans) > 1:
        others = [Rank(q, made, q.ranks) for made in MADE[:3]]
        yield "reserved: " + ", ".join(
            [f"{plan.name[:2]} {sized(plan.reserved)}" for plan in q.plans]
            + [f"{made.name} {sized(made.reserved)}" for made in others])


def buckets(q, plan):
    """How many messages that fill a bucket all that is sent makes, or in DeepSpeed the gradients;
    and the buckets' bytes."""
    (size, number), text, passes = bucket(q, plan.card), [], plan.collectives // len(q.sizes)
    if plan.card.theirs:  # a reduction of a step's gradients, or from stage 2 on of a micro-batch's
        passes = q.accumulate if plan.card.stage > 1 else 1
    count = passes * math.ceil(BYTES[q.dtype] * q.parts[0] / size)
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
    """Yields the lines of a table: a column for each plan, and no rows of zeros."""
    most, width = max(max(p.reserved, p.host, p.sent) for p in q.plans), min(14, 56 // len(q.plans))
    power = next(power for power in UNITS if most < 10 ** (power + 4) or power >= 9)
    units = {"bytes": (UNITS[power], 10 ** power), "ms": ("ms", 1),
             "elements": (f"10^{power} of {BYTES[q.dtype]} bytes", 10 ** power)}

    def row(label, cells, size=1):
        text = ["-" if cell is None else cell if isinstance(cell, str) else f"{cell / size:.2f}"
                for cell in cells]
        first = text[0].rjust(24 + width - len(label))  # a long label may begin left of its column
        return label + first + "".join(cell.rjust(width) for cell in text[1:])

    yield row("", [plan.name.partition("_")[0] for plan in q.plans])
    yield row("", [plan.name.partition("_")[2] for plan in q.plans])
    for sections in zip(*(figures(q, plan) for plan in q.plans)):
        title, counts, labels = sections[0]
        cells = {label: of_all for label in labels if set(
            of_all := [rows[label] for _, _, rows in sections]) - {0, "0", None}}
        yield from [f"{title}, {units[counts][0]}"] * (cells != {})
        for label, of_all in cells.items():
            yield row(label, of_all, units[counts][1])


def told(q):
    """Yields the answer's lines: about q.plan; if there is none, or with --table, about all."""
    plan, compared = q.plan, q.table or not q.plan
    by = f", by {plan.name}" if plan and (plan.fits or len(q.plans) == 1) else ""
    text = [f"{plural(sum(q.parts), 'parameter')} in {plural(len(q.sizes), 'layer')}, {q.dtype}, "
            f"on {plural(q.ranks, 'rank')}{by}", *q.notes]
    if compared:
        p, g, k = costs(q, q.plans[0].card)
        label = "as asked" if q.bytes else LABELS.get((p, k), f"convention {q.convention}")
        text += [f"{spaced(q.parts[0])} of them are trained" for _ in q.parts[1:]]
        text += [f"bytes per parameter: itself {p}, its gradient {g}, optimizer state {k:g}, "
                 f"{k / p:g} times itself ({label})",
                 f"activations {sized(q.activations)}: {q.formula}" if q.activations else
                 "activations, data and workspace are not in it: they depend on the model",
                 *q.keys.get("keys", [])]
        text += [BESIDE] * has_time(q)
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
    """The line in 80 columns; it is not broken inside a number."""
    line = re.sub(r"(?<=\d) (?=\d{3}\b)", "\u00a0", line)
    return textwrap.fill(line, WIDTH, subsequent_indent="    ",
                         break_on_hyphens=False).replace("\u00a0", " ")
