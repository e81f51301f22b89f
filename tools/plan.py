# SPDX-License-Identifier: MIT
"""usage: plan OPTION...

Which chapter a model needs on which GPUs: what a rank holds, sends and copies,
by the chapters' cards. Nothing is run, nothing is built.

the model:
  --config, --model FILE    config.json of transformers, or its folder
  --model_type NAME         llama, mistral, qwen2 or qwen3, whatever it says
  --params COUNT            or parameters of any model, as 7.5e9 or 7.5B
  --layers N                of that (32)
  --largest_layer COUNT     of that; else all are equal
  --trainable COUNT|%       of them, as 40M or 0.5%; the others are frozen
  --activations SIZE        of a rank; or by --batch and what follows
  --sequence, --max_length NUMBER  tokens of a sample
  --width NUMBER            inputs of a layer
  --heads NUMBER            of attention
  --recompute none|attention|full  by backward (none)
  --gradient_checkpointing YES     --recompute full
the training:
  --ranks, --nproc_per_node N      else the fewest on which a plan fits
  --batch, --per_device_train_batch_size NUMBER  samples a micro-batch
  --accumulate, --gradient_accumulation_steps NUMBER  micro-batches per step (1)
  --dtype fp32|bf16|fp16    of parameters and gradients (bf16)
  --bf16 YES                --dtype bf16
  --fp16 YES                --dtype fp16
  --chapter NAME            this plan alone, as 05, zero2 or zero2_offload
  --deepspeed FILE          a configuration; or a plan, as zero2_offload
  --prefetch LAYERS         gathered ahead: 0, 1 or 2 (1)
  --bucket SIZE             of messages, if they are not a layer each
  --piece COUNT             elements of state that 08 has off its disk at a time
                            (1048576)
the machine:
  --gpu SIZE                memory of a rank, as 80GB or 80GiB
  --headroom SIZE|%         of it, for what no plan knows (5%); our runs keep
                            512 MiB, and 192 MiB for each peer of NCCL
  --host SIZE               of its host's that it may take (no end)
  --link SPEED              Gbit/s of every rank, for the time of a step
  --latency TIME            microseconds of a message on it (0)
  --bus SPEED               GB/s between GPU and host, each way by turns
  --compute TIME            milliseconds of a step's forward and backward (0)
  --flops SPEED             or TFLOP/s of a GPU, for --batch of --sequence
  --adam SPEED              GB/s of a rank's Adam on the host (else left out)
  --disk SPEED              GB/s of a rank's disk in 08, both ways at once
the answer:
  --convention paper|megatron|deepspeed  whose bytes per parameter (paper)
  --bytes P,G,K             or so many, as 2,2,8; K with master weights, if any
  --table YES               all figures
  --json YES                all figures, in exact integers
  --write deepspeed|fsdp2|mpirun  a ds_config.json, six lines, a command"""
import json
import math
import os
import re
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from types import SimpleNamespace

from plan_files import DISK, HOST, MOST_PARAMETERS, WIDTHS, WRITERS, Decoder, read_deepspeed
from runs import KINDS, STATE, WIDTH, Failure, finish, spaced
from trainers import CARDS

MOST_RANKS = 1 << 12
PHASES, WAYS = ("forward", "backward", "update"), ("to_host", "to_device")
UNITS = {3: "kB", 6: "MB", 9: "GB", 12: "TB"}  # by their power of ten
# Optimizer state over parameters, in bytes: who counts so.
RATIOS = {2: "fp32, its own master", 4: "no master weights", 6: "as in the ZeRO paper",
          8: "with an fp32 copy of gradients"}
# Bytes of a gradient and of optimizer state. (Megatron-LM's page on its distributed optimizer;
# DeepSpeed's estimate_zero2_model_states_mem_needs and, where layers are gathered, ..._zero3_...)
MEGATRON = {"fp32": (4, 8), "bf16": (4, 12), "fp16": (2, 16)}
DEEPSPEED = {False: (2, 16), True: (4, 12)}


@dataclass(frozen=True)
class Card:
    """A plan: a chapter's card, or one that is made of it. How often: (a step, a micro-batch)."""
    name: str
    mixed_precision: bool
    held: dict  # how, by kind
    sent: dict  # how often, by phase: parameters in units of (N - 1)/N
    borrowed: dict
    copied: dict  # how often, by direction: a rank's parameters

    prefetches = property(lambda self: self.borrowed["and_prefetched"])
    offloads = property(lambda self: self.held["optimizer"] in (HOST, DISK))
    stages = property(lambda self: self.offloads and self.held["gradients"] != HOST)
    stage = property(lambda self: sum(how != "replicated" for how in self.held.values()))

    def often(self, what, frozen):
        """Of a phase or a direction. Frozen parameters are gathered to compute, and no more: in
        backward they have all but the one reduce-scatter of a micro-batch."""
        a_step, a_micro_batch = (self.sent | self.copied)[what]
        if frozen:
            return 0, max(0, a_micro_batch - (what == "backward"))
        return a_step, a_micro_batch

    def offloaded(self, name):
        """The optimizer on the host: there gradients go, from there new parameters come."""
        return replace(self, name=name, held=self.held | {"optimizer": HOST},
                       copied={"to_host": (1, 0), "to_device": (1, 0)})


def card_of(told):
    """"2A": twice a micro-batch."""
    sent, copied = ({of: (0, int(text[:-1] or 1)) if text.endswith("A") else (int(text), 0)
                     for of, text in told[what].items()} for what in ("sent", "copied"))
    return Card(told["name"], told["mixed_precision"], told["held"], sent, told["borrowed"], copied)


CHAPTERS = [card_of(card) for card in CARDS.values() if card["ranks"]]
ZERO1, ZERO2, ZERO3 = (next(card for card in CHAPTERS if card.stage == n) for n in (1, 2, 3))
MADE = [ZERO1.offloaded("zero1_offload"), ZERO2.offloaded("zero2_offload"),
        replace(CHAPTERS[-1], name="zero3_offload",  # 08 with --state host
                held=CHAPTERS[-1].held | {"optimizer": HOST})]
PLANS = {name: card for card in CHAPTERS for name in (card.name[3:], card.name[:2], card.name[1])}
PLANS |= {card.name: card for card in CHAPTERS + MADE} | {"ddp": PLANS["3"], "zero0": PLANS["3"]}


def costs(q, card):
    """Bytes of a parameter itself, of its gradient, of its optimizer state."""
    w = WIDTHS[q.dtype]
    if q.bytes:
        return q.bytes
    if q.convention != "paper":
        return w, *(MEGATRON[q.dtype] if q.convention == "megatron" else DEEPSPEED[card.prefetches])
    # Parameters in fp32 are their own master where Adam can reach them.
    return w, w, 8 if w == 4 and (card.held["parameters"] == HOST) == card.offloads else 12


def sum_of(whole, part, of):
    """As "4 + 12/N" or "1 + A"."""
    second = of if (part, of) == (1, "A") else f"{part}{of}"
    return " + ".join([str(whole)] * (whole != 0) + [second] * (part != 0)) or "0"


def state_formula(q, card, place="sharded", frozen=False):
    """Bytes of state per parameter in a place: the device, HOST or DISK."""
    p, g, k = costs(q, card)
    each = dict(zip(STATE, (p, 0, 0) if frozen else (p, g, k)))
    whole, part = (sum(each[kind] for kind, how in card.held.items() if how == of)
                   for of in ("replicated", place))
    staged = each["gradients"] * (place == HOST and card.stages)
    return sum_of(whole * (place == "sharded"), part + staged, "/N")


def sent_formula(card, frozen=False):
    return sum_of(*map(sum, zip(*(card.often(phase, frozen) for phase in PHASES))), "A")


def padded(size, n):
    return -(-size // (8 * n)) * 8 * n


class Rank:
    """What one of n ranks holds and borrows, sends and copies in a step, exactly. Of each layer the
    trained and the frozen part are padded apart."""

    def __init__(self, q, card, n):
        self.name, self.card, layers = card.name, card, len(q.sizes)
        self.collectives = self.adam = 0
        self.resident, self.borrowed, self.on_host, self.on_disk = (
            dict.fromkeys(KINDS[:5], 0) for _ in "1234")
        self.elements, self.copied = dict.fromkeys(PHASES, 0), dict.fromkeys(WAYS, 0)
        ahead, estimated = card.prefetches * q.prefetch, q.convention == "deepspeed"
        slots = (min(card.borrowed["parameters"] + ahead, 2 * layers * q.accumulate),
                 min(card.borrowed["gradients"], layers * q.accumulate), 0)
        for frozen, sizes in enumerate(q.counted):
            p, g, k = (costs(q, card)[0], 0, 0) if frozen else costs(q, card)
            full = sum(padded(size, n) * count for size, count in sizes.items())
            largest = padded(max(sizes), n)
            for kind, size, whole in zip(STATE, (p, g, k), slots):
                how = card.held[kind]
                place = {HOST: self.on_host, DISK: self.on_disk}.get(how, self.resident)
                place[kind] += size * full // (1 if how == "replicated" else n)
                self.borrowed[kind] += size * whole * largest * (not estimated)
                if how == DISK:  # some pieces of it are in memory
                    self.on_host[kind] += size * card.borrowed["pieces"] * min(
                        q.piece, largest // n)
            if estimated:  # 4 bytes of the largest layer's, where it is gathered
                self.borrowed["parameters"] += 4 * largest * card.prefetches
            elif not frozen:  # the other ranks' parts of a layer's gradients
                self.borrowed["communication"] += p * (n - 1) * largest // n
            self.on_host["communication"] += card.stages * g * full // n  # gradients on their way
            if card.offloads and not frozen:
                # Reads and writes state, reads gradients, writes parameters; a master it reads too.
                self.adam = (2 * k + g + p * (1 + (k <= 2 * p))) * full // n
            if card.held["gradients"] == HOST and q.accumulate > 1:  # two layers' that are added
                self.on_host["communication"] += g * 2 * largest // n
            for what in (*PHASES, *WAYS):
                a_step, a_micro_batch = card.often(what, frozen)
                times = a_step + a_micro_batch * q.accumulate
                if what in PHASES:
                    self.elements[what] += times * (n - 1) * full // n
                    self.collectives += times * layers * (n > 1 and not frozen)
                else:
                    self.copied[what] += times * (g if what == "to_host" else p) * full // n
        self.borrowed["activations"] = q.activations
        self.sent = WIDTHS[q.dtype] * sum(self.elements.values())
        self.held, self.host, self.disk = (
            sum(of.values()) for of in (self.resident, self.on_host, self.on_disk))
        self.reserved = self.held + sum(self.borrowed.values())
        self.fits = self.reserved <= q.gpu - q.headroom and self.host <= (q.host or self.host)
        # What more ranks cannot take from it.
        self.kept = self.reserved - sum(
            self.resident[kind] for kind in STATE if card.held[kind] == "sharded")


def over(size, speed):
    """Milliseconds of so many bytes at so many GB/s; of no speed that was given none."""
    return size / speed / 1e6 if speed else 0


def milliseconds(q, rank):
    """Of a step: (N - 1) (latency + bytes / (N bandwidth)) for each collective, and its two sums.
    Where layers are gathered ahead, the last reduce-scatter alone, layer 0's, has no computation
    beside it. An update on the host goes on beside the next forward, layer by layer."""
    n, card = q.ranks, rank.card

    def on_link(collectives, sent):
        return collectives * (n - 1) * q.latency / 1e3 + sent * 8e-6 / q.link if q.link else 0

    messages = last = on_link(rank.collectives + (n > 1), rank.sent + 16 * (n - 1))
    if card.prefetches and q.prefetch:
        last = on_link(1, WIDTHS[q.dtype] * padded(q.sizes[0][0], n) // n * (n - 1))
    copies = over(sum(rank.copied.values()), q.bus)
    update = max(over(rank.disk, q.disk), over(rank.adam, q.adam))
    forward = q.compute / q.accumulate * q.operations[0] / sum(q.operations)
    return {"communication": messages, "copies": copies, "update on the host": update,
            "step at most": messages + q.compute + copies + update,
            "step at best": max(last + max(messages - last, q.compute), copies)
            + max(0, update - forward)}


def streamed(q, rank):
    """The terms of a step whose layers stream through the device: as many as speeds are given."""
    each = [over(of / 1e3, q.flops) for of in q.operations]  # of a token
    up, down = (over(of / q.accumulate, q.bus) for of in reversed(rank.copied.values()))
    disk, adam, tokens = over(rank.disk, q.disk), over(rank.adam, q.adam), q.batch * q.sequence
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


def answer(q):
    """The plans that are asked about, on q.ranks or the fewest that do; and the one to look at."""
    def fewest(card):
        if not q.gpu or Rank(q, card, 1).kept > q.gpu - q.headroom:
            return None
        return next((n for n in range(1, MOST_RANKS + 1) if Rank(q, card, n).fits), None)

    found = [fewest(card) for card in q.cards]
    q.ranks = q.ranks or min(n or MOST_RANKS for n in found)
    q.plans = [Rank(q, card, q.ranks) for card in q.cards]
    for plan, n in zip(q.plans, found):
        plan.fewest, plan.then, plan.ms = n, n and Rank(q, plan.card, n), milliseconds(q, plan)
        plan.every = Rank(q, plan.card, MOST_RANKS).kept
        whole = replace(plan.card, held=dict.fromkeys(STATE, "replicated"))
        plan.saved = 1 - plan.held / Rank(q, whole, q.ranks).held
        plan.times = plan.sent / max(1, Rank(q, PLANS["ddp"], q.ranks).sent)
    q.plan = next((plan for plan in q.plans if plan.fits and q.gpu), None)
    if not q.plan and (q.gpu or len(q.plans) == 1):
        q.plan = min(q.plans, key=lambda plan: (plan.fewest or MOST_RANKS + 1, plan.every))


def sized(count):
    power = next(power for power in UNITS if count < 10 ** (power + 3) or power == 12)
    return f"{count / 10 ** power:.2f} {UNITS[power]}"


def timed(ms):
    return f"{ms:.2f} ms" if ms < 100 else f"{spaced(round(ms))} ms"


def plural(count, what):
    return f"{spaced(count)} {what}{'s' * (count != 1)}"


def advice(q):
    """Which plan to take, in one sentence."""
    def on(rank):
        *most, last = [f"{sized(size)} {where}" for where, size in (
            ("per rank", rank.reserved), ("on its host", rank.host), ("on its disk", rank.disk))
            if size]
        return ", ".join(most) + " and " * (most != []) + last

    plan, room = q.plan, sized(q.gpu) + f" with {sized(q.headroom)} of headroom" * (q.headroom > 0)
    room += f" and {sized(q.host)} of host" * (q.host > 0)
    ranks, at = f"{plural(q.ranks, 'rank')} of {room}", q.plans.index(plan)
    if plan.fits and at:
        before = q.plans[at - 1]
        more = f", or {plural(before.fewest, 'rank')}" if before.fewest else ""
        return (f"Take {plan.name} on {ranks}: {on(plan)}; {before.name} would need "
                f"{sized(before.reserved)}{more}.")
    if plan.fits:
        rest = ", and no chapter sends less" * (len(q.plans) > 1)
        return f"Take {plan.name} on {ranks}: {on(plan)}{rest}."
    if plan.fewest:
        return (f"None fits on {ranks}: take {plan.name} on {plural(plan.fewest, 'rank')} or more, "
                f"{on(plan.then)}.")
    if plan.every <= q.gpu - q.headroom:  # its host's part is what does not fit
        return (f"None fits in {room} on up to {spaced(MOST_RANKS)} ranks: {plan.name} needs more "
                "of the host.")
    less = "fewer activations" if plan.every - q.activations <= q.gpu - q.headroom else \
        "smaller layers" + ", or a later chapter" * (len(q.plans) == 1 and plan.card.stage < 3)
    return (f"None fits in {room} on up to {spaced(MOST_RANKS)} ranks: even {plan.name} keeps "
            f"{sized(plan.every)} on every rank; take larger GPUs or {less}.")


def figures(q, plan):
    """All of them, in sections: a title, what its numbers count, rows by their labels."""
    def by(kinds):
        return {f"  {kind.replace('_', ' the ')}": count for kind, count in kinds.items()}

    card, frozen = plan.card, len(q.parts) > 1
    yield "held throughout", "bytes", by(plan.resident) | {
        "resident": plan.held, "  state, bytes per param.": state_formula(q, card),
        "    a frozen one": state_formula(q, card, frozen=True) if frozen else 0,
        "  of it saved": f"{100 * plan.saved:.2f} %"}
    yield "borrowed within a step", "bytes", by(plan.borrowed) | {"reserved": plan.reserved}
    yield "on its host", "bytes", by(plan.on_host) | {
        "on the host": plan.host, "  bytes per param.": state_formula(q, card, HOST)}
    yield "on its disk", "bytes", by(plan.on_disk) | {
        "on the disk": plan.disk, "  bytes per param.": state_formula(q, card, DISK)}
    yield "elements sent in a step", "elements", by(plan.elements) | {
        "elements": sum(plan.elements.values()), "  a param. x (N - 1)/N": sent_formula(card),
        "    a frozen one": sent_formula(card, True) if frozen else 0}
    yield "sent in a step, and copied", "bytes", {
        "sent": plan.sent, "  messages to each rank": spaced(plan.collectives),
        "  over data parallel's": f"{plan.times:.4g}"} | by(plan.copied) | {
        "  read, and written": plan.disk}
    yield "time of a step", "ms", {f"{what}, ms": ms for what, ms in plan.ms.items()}
    yield "on such a GPU", "bytes", {
        f"fits on {plural(q.ranks, 'rank')}": "yes" if plan.fits else "no",
        "fewest ranks": str(plan.fewest or "none"),
        "  reserved then": plan.then and plan.then.reserved,
        "  on the host then": plan.then and plan.then.host,
        "  as N grows": plan.every} if q.gpu else {}


def lines(q):
    """The answer: a line for each plan, or all about one."""
    def kinds(of):
        return ", ".join(f"{kind} {sized(size)}" for kind, size in of.items() if size) or "nothing"

    def per(unit, trained, frozen):
        return f"{trained} {unit} per " + (
            f"trained parameter and {frozen} per frozen one" if len(q.parts) > 1 else "parameter")

    if not q.plan:
        for plan in q.plans:
            yield (f"{plan.name}: holds {sized(plan.held)}, reserves {sized(plan.reserved)}"
                   + f" and {sized(plan.host)} on its host" * (plan.host > 0)
                   + f", sends {sized(plan.sent)} per step"
                   + f" in {plan.ms['communication']:.2f} ms" * (q.link > 0))
        return
    plan, card, gradients = q.plan, q.plan.card, sized(q.plan.resident["gradients"])
    if q.gpu:
        yield advice(q)
    state = per("bytes", state_formula(q, card), state_formula(q, card, frozen=True))
    held = f"{sized(plan.held)}, {state}: {kinds(plan.resident)}" if plan.held else "nothing"
    yield f"holds {held}" + "".join(
        f"; on its {where} {sized(size)}, "
        + per("bytes", state_formula(q, card, place), state_formula(q, card, place, True))
        for where, place, size in (("host", HOST, plan.host), ("disk", DISK, plan.disk)) if size)
    yield (f"borrows {sized(sum(plan.borrowed.values()))}: {kinds(plan.borrowed)}"
           + "; activations are not in it" * (not q.activations))
    down, up = map(sized, plan.copied.values())
    each = ", each" * (len(q.parts) > 1)
    elements = per("elements", sent_formula(card), sent_formula(card, True))
    sends = (f"{sized(plan.sent)} per step, {elements}{each} x (N - 1)/N, in "
             f"{plural(plan.collectives, 'message')} to each rank"
             + f", {plan.times:.4g} times what data parallelism sends" * (q.accumulate > 1))
    yield (f"sends {sends if plan.sent else 'nothing'}"
           + f"; copies {down} to its host, {up} back" * card.offloads
           + f"; reads and writes {sized(plan.disk)} each" * (plan.disk > 0))
    if any(plan.ms.values()):
        yield "takes " + ", ".join(f"{what} {timed(ms)}" for what, ms in plan.ms.items() if ms)
    if card.held["parameters"] == HOST:
        yield from streamed(q, plan)
    if q.bucket:
        passes = plan.collectives // len(q.sizes)
        count = passes * math.ceil(WIDTHS[q.dtype] * q.parts[0] / q.bucket)
        late = f" with {count * (q.ranks - 1) * q.latency / 1e3:.2f} ms of latency" * (q.link > 0)
        ddp = f"; DDP's are a copy of all gradients, {gradients}, but with gradient_as_bucket_view"
        yield (f"buckets of {sized(q.bucket)}: {plural(count, 'message')} to each rank{late}, and "
               f"{sized(2 * q.bucket)} for two" + ddp * (card.stage == 0))
    if q.deepspeed and card.offloads and card.held["gradients"] == "sharded":
        yield f"DeepSpeed hands gradients to the host as they are reduced: {gradients} less here"
    if card.held["optimizer"] == DISK:
        size = sized(Rank(q, MADE[-1], q.ranks).host)
        yield f"--state host needs no disk, but {size} of its host"
    if card.held["parameters"] == HOST and q.parameters in ("none", "nvme"):
        where, size = "disk" if q.parameters == "nvme" else "GPU", plan.on_host["parameters"]
        yield f"parameters stay with the host, {sized(size)}; DeepSpeed has them on the {where}"
    if len(q.plans) > 1:
        others = [Rank(q, made, q.ranks) for made in MADE]
        yield "reserved: " + ", ".join(
            [f"{plan.name[:2]} {sized(plan.reserved)}" for plan in q.plans]
            + [f"{made.name} {sized(made.reserved)}" for made in others])


def print_table(q):
    """A column for each plan, without rows of zeros."""
    most, width = max(max(p.reserved, p.host, p.sent) for p in q.plans), min(14, 56 // len(q.plans))
    power = next(power for power in UNITS if most < 10 ** (power + 4) or power >= 9)
    units = {"bytes": (UNITS[power], 10 ** power), "ms": ("ms", 1),
             "elements": (f"10^{power} of {WIDTHS[q.dtype]} bytes", 10 ** power)}

    def row(label, cells, size=1):
        text = ["-" if cell is None else cell if isinstance(cell, str) else f"{cell / size:.2f}"
                for cell in cells]
        first = text[0].rjust(24 + width - len(label))  # a long label may begin left of its column
        print(label + first + "".join(cell.rjust(width) for cell in text[1:]))

    row("", [plan.name.partition("_")[0] for plan in q.plans])
    row("", [plan.name.partition("_")[2] for plan in q.plans])
    for sections in zip(*(figures(q, plan) for plan in q.plans)):
        title, counts, labels = sections[0]
        cells = {label: [rows[label] for _, _, rows in sections] for label in labels}
        if any(set(of_all) - {0, "0", None} for of_all in cells.values()):
            print(f"{title}, {units[counts][0]}")
        for label, of_all in cells.items():
            if set(of_all) - {0, "0", None}:
                row(label, of_all, units[counts][1])


# By an option's name: its first one, and what it takes.
TAKES = {name: (names.split(", --")[0], kind) for names, kind in re.findall(
    r"(?m)^  --(\w+(?:, --\w+)?) (\S+)", __doc__) for name in names.split(", --")}
COUNTS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
BYTES = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Of numbers: units, from, to; as an example.
NUMBERS = {"COUNT": (COUNTS, 1, MOST_PARAMETERS, "7.5e9 or 7.5B"),
           "SIZE": (BYTES, 10 ** 6, 10 ** 15, "80GB or 80GiB"), "N": ({"": 1}, 1, MOST_RANKS, "8"),
           "NUMBER": ({"": 1}, 1, 1 << 20, "32"), "LAYERS": ({"": 1}, 0, 2, "1"),
           "SPEED": ({"": 1}, 1e-3, 10 ** 9, "12.5"), "TIME": ({"": 1}, 0, 10 ** 9, "50"),
           "%": ({"%": 1}, 0, 100, "5%")}
DEFAULTS = {"layers": 32, "accumulate": 1, "prefetch": 1, "dtype": "bf16", "recompute": "none",
            "convention": "paper", "headroom": "5%", "piece": 1 << 20, "parameters": ""}
NEEDS = {"host": "gpu", "headroom": "gpu", "width": "sequence", "heads": "sequence",
         "sequence": "batch", "latency": "link"}
EXCLUDES = {"config": "params layers largest_layer width heads", "sequence": "activations",
            "bytes": "convention dtype", "flops": "compute"}


def refuse(condition, sentence):
    if condition:
        raise Failure(sentence, 2)


def number(name, text, kind):
    units, least, most, like = NUMBERS[kind]
    found = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)([A-Za-z%]*)", text)
    try:
        value = float(found[1]) * units[found[2]]
    except (TypeError, ValueError, KeyError):
        value = math.nan
    whole = kind in ("COUNT", "N", "NUMBER", "LAYERS")
    value = round(value, 3) if whole else value  # 8.03 * 1e9 is a bit below 8.03e9
    refuse(not least <= value <= most or (whole and value % 1), f"--{name}: {text} is not a "
           f"{'whole ' * whole}number from {spaced(least)} to {spaced(most)}, as {like}")
    return int(value) if whole or kind == "SIZE" else value


def share(name, text, all_, kind):
    """In %, or not."""
    return round(number(name, text, "%") * all_ / 100) if "%" in text else number(name, text, kind)


def said_in(argv):
    """The options, by name."""
    said, words = {}, list(argv)
    while words:
        word, *value = words.pop(0).split("=", 1)
        name, kind = TAKES.get(word.removeprefix("--").replace("-", "_"), (word, ""))
        refuse(not kind or not word.startswith("--"), f"{word:.40} is no option; --help lists them")
        if not value and kind == "YES":
            value = [words.pop(0)] if words and words[0].lower() in ("true", "false") else ["true"]
        text = (value or words[:1] or [""])[0]
        words = words[not value:]
        refuse(not text, f"{word} needs a value")
        refuse("|" in kind[:-2] and text not in kind.split("|"),
               f"{word}: {text} is none of {kind.replace('|', ', ')}")
        said[name] = number(name, text, kind) if kind in NUMBERS else \
            text.lower() == "true" if kind == "YES" else text
    return said


def question(argv):
    """What is asked, with what follows from it."""
    given = said_in(argv)
    for flag, name, value in (("bf16", "dtype", "bf16"), ("fp16", "dtype", "fp16"),
                              ("gradient_checkpointing", "recompute", "full")):
        if given.pop(flag, False):
            given.setdefault(name, value)
    refuse(not given.keys() & {"config", "params"}, "say --config, or --params, as 7.5e9")
    refuse(not given.keys() & {"gpu", "ranks"}, "say --ranks, or --gpu for the fewest that do")
    for name, needed in NEEDS.items():
        refuse(name in given and needed not in given, f"--{name} needs --{needed}")
    for name, others in EXCLUDES.items():
        for other in others.split():
            refuse(name in given and other in given, f"--{name} says what --{other} would")
    file, keys, name = {}, {}, given.get("deepspeed", "")
    if name and (os.path.exists(name) or name not in PLANS):
        keys, file = read_deepspeed(name, given.get("ranks"), "accumulate" in given)
    elif name:
        file = {"chapter": name}
    nothing = {name: 0 for name, _ in TAKES.values()}
    q = SimpleNamespace(**nothing | DEFAULTS | file | given, keys=keys)
    if q.bytes:
        found = re.fullmatch(r"([24]),(\d),(\d|1[0-6])", q.bytes)
        refuse(not found, f"--bytes: {q.bytes} is not P,G,K with P 2 or 4, G below 10, K up to 16")
        q.bytes = tuple(map(int, found.groups()))
        q.dtype = "bf16" if q.bytes[0] == 2 else "fp32"
    refuse(q.convention == "deepspeed" and q.dtype == "fp32", "--convention deepspeed is of 16 bit")
    q.model = q.config and Decoder(q.config, q.model_type)
    q.headroom = share("headroom", q.headroom, q.gpu, "SIZE")
    refuse(q.headroom >= q.gpu > 0, f"--headroom {sized(q.headroom)} leaves no {sized(q.gpu)} GPU")
    set_layers(q)
    set_activations(q)
    # A token: 2 operations a parameter, and 2 of frozen, 4 of trained in backward, 2 if again.
    q.operations = 2 * sum(q.parts), 2 * (sum(q.parts) * (1 + (q.recompute == "full")) + q.parts[0])
    q.compute += over(q.accumulate * q.batch * q.sequence * sum(q.operations) / 1e3, q.flops)
    set_plans(q)
    return q


def set_layers(q):
    """Of each layer the trained parameters, and the frozen ones: of each the same share."""
    sizes = q.model.sizes() if q.model else [q.largest_layer] * (q.largest_layer > 0)
    if not q.model:
        layers, rest = q.layers - len(sizes), q.params - sum(sizes)
        refuse(rest < layers or (sizes and rest > layers * sizes[0]),
               f"{plural(q.params, 'parameter')} cannot be {plural(q.layers, 'layer')}"
               + f" of which the largest has {spaced(q.largest_layer)}" * len(sizes))
        sizes += [rest // layers + (l < rest % layers) for l in range(layers)]
    count = sum(sizes)
    trained = share("trainable", q.trainable, count, "COUNT") if q.trainable else count
    ends = [(count - trained) * end // count for end in accumulate([0, *sizes])]
    q.sizes = [(size - b + a, b - a)[:1 + (trained != count)]
               for size, a, b in zip(sizes, ends, ends[1:])]
    refuse(min(map(min, q.sizes)) < 1, f"{plural(trained, 'trainable parameter')} and "
           f"{spaced(count - trained)} frozen ones cannot both be in each of {len(sizes)} layers")
    q.counted, q.parts = ([of(part) for part in zip(*q.sizes)] for of in (Counter, sum))


def set_activations(q):
    """As said; or a transformer's in 16 bits: a layer keeps s b (34 h + 5 a s) bytes. Of what
    backward forms again nothing; its attention's matrices, 5 a s; or all but its input, 2 h, and
    then one layer at a time is there in full. (Korthikanti and others, arXiv 2205.05198, sections 4
    and 5.) Or the model's own."""
    q.formula, m, s, b = spaced(q.activations), q.model, q.sequence, q.batch
    if s:
        refuse(not m and not (q.width and q.heads), "--sequence needs --width and --heads")
        refuse(not m and q.dtype == "fp32", "--sequence is about 16 bit, not --dtype fp32")
        h, a, layers = (m.hidden, m.heads, m.blocks) if m else (q.width, q.heads, q.layers)
        kept, full = {"none": (0, layers), "attention": (34, 0), "full": (2, 1)}[q.recompute]
        q.formula = f"{s} x {b} x ({layers} x {kept} x {h} + {full} x (34 x {h} + 5 x {a} x {s}))"
        if m:
            theirs = sized(evaluated(q.formula))
            q.formula = m.activations(s, b, q.recompute, WIDTHS[q.dtype]) + (
                f"; by Korthikanti and others, in 16 bits without the logits, {theirs}")
        q.activations = evaluated(q.formula)
        refuse(q.activations > 1e15, f"{q.activations:.0e} bytes of activations fit nowhere")


def evaluated(formula):
    return eval(formula.partition(";")[0].replace("x", "*"))


def set_plans(q):
    """The cards that are asked about."""
    q.cards = [card for card in CHAPTERS if card.mixed_precision]  # in fp32 02 is 03
    if q.chapter:
        refuse(q.chapter not in PLANS, f"--chapter: {q.chapter} is none of "
               + ", ".join(card.name for card in CHAPTERS + MADE))
        q.cards = [PLANS[q.chapter]]
        refuse(q.dtype != "fp32" and not q.cards[0].mixed_precision,
               f"{q.chapter} has no --dtype {q.dtype}: say --dtype fp32")
    if q.write:
        can = [card for card in CHAPTERS + MADE if WRITERS[q.write][1](card)]
        q.cards = [card for card in q.cards if card in can]
        refuse(not q.cards, f"--write {q.write} cannot say {q.chapter}: it can say "
               + ", ".join(card.name for card in can))


def written(q):
    """For others to read; of the plan that fits."""
    refuse(not q.plan, f"--write {q.write}: which plan? Say --gpu or --chapter")
    if q.gpu and not q.plan.fits:
        raise Failure(advice(q), 6)
    return WRITERS[q.write][0](q, q.plan.card)


def print_folded(line):
    """Breaks no number."""
    line = re.sub(r"(?<=\d) (?=\d{3}\b)", "\u00a0", line)
    print(textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
          .replace("\u00a0", " "))


def main():
    if "--help" in sys.argv or "-h" in sys.argv:
        return print(__doc__.replace(" YES", "    "))
    q = question(sys.argv[1:])
    answer(q)
    if q.write:
        return print(written(q))
    if q.json:
        return print(json.dumps({plan.name: {
            title: {label.strip(): figure for label, figure in rows.items()}
            for title, _, rows in figures(q, plan)} for plan in q.plans}, indent=2))
    p, g, k = costs(q, q.cards[0])
    keys, told = q.keys.pop("keys", []), [
        f"{plural(sum(q.parts), 'parameter')} in {plural(len(q.sizes), 'layer')}, {q.dtype}, on "
        f"{plural(q.ranks, 'rank')}"]
    if q.table:
        told += [f"{spaced(q.parts[0])} of them are trained" for _ in q.parts[1:]] + [
            f"bytes per parameter: itself {p}, its gradient {g}, optimizer state {k}, {k / p:g} "
            f"times itself ({RATIOS.get(k / p, 'as asked' if q.bytes else 'of no convention')})",
            f"activations {sized(q.activations)}: {q.formula}" if q.activations else
            "activations, data and workspace are not in it: they depend on the model", *keys]
    else:
        told += lines(q)
    told += [f"{what}: {', '.join(names)}" for what, names in q.keys.items() if names]
    for line in told:
        print_folded(line)
    if q.table:
        print_table(q)
    if q.table and q.gpu:
        print_folded(advice(q))


if __name__ == "__main__":
    finish(main, "plan: ")
