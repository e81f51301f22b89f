# SPDX-License-Identifier: MIT
"""What a rank holds, borrows, sends and copies in a step, by the chapters' cards, or as DeepSpeed
0.19.6 does (zero/stage_1_and_2.py, zero/stage3.py, zero/partition_parameters.py)."""
import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

from runs import BYTES, KINDS, PLACES, ROOT, STATE

from .machine import MOST_RANKS

PHASES, WAYS = ("forward", "backward", "update"), ("to_host", "to_device")
DEVICE, HOST, DISK = PLACES
# The chapters' cards. A unit test checks that those in C++ are the same.
CARDS = {card["name"]: card for card in json.loads((ROOT / "notes/cards.json").read_text("utf-8"))}
# --convention: bytes of a gradient and of optimizer state. MEGATRON by dtype, as on Megatron-LM's
# page on its distributed optimizer. DEEPSPEED by whether it is stage 3 or offloads, as in its
# estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs.
MEGATRON = {"fp32": (4, 8), "bf16": (4, 12), "fp16": (2, 16)}
DEEPSPEED = {False: (2, 16), True: (4, 12)}
# Elements, DeepSpeed's defaults (zero/config.py): reduce_bucket_size, stage3_max_live_parameters.
BUCKET, LIVE = 500_000_000, 1_000_000_000


class Term(NamedTuple):
    """Bytes: `size` for each element that measured() counts as `of`, `count` times; where `most` is
    set, at most `most` times for each layer and micro-batch."""
    place: str  # one of PLACES, or "borrowed" on the device
    kind: str
    size: float
    of: str
    count: int = 1
    most: int = 0


@dataclass(frozen=True)
class Card:
    """A plan: a chapter's card, or one derived from it. "How often": (a step, a micro-batch)."""
    name: str
    mixed_precision: bool
    held: dict  # by kind: "replicated", "sharded" or "sharded on the host" or "... disk"
    sent: dict  # by phase: how often (N - 1)/N of all parameters are sent
    borrowed: dict  # by kind: how many layers or pieces
    copied: dict  # by direction over the bus: how often a rank's shard is copied
    theirs: bool = False  # as DeepSpeed does it, with its buffers

    prefetches = property(lambda self: self.borrowed["and_prefetched"])
    offloads = property(lambda self: self.place("optimizer") != DEVICE)
    stage = property(lambda self: sum(how != "replicated" for how in self.held.values()))

    def place(self, kind):
        return self.held[kind].partition(" on the ")[2] or DEVICE

    def often(self, what, frozen):
        """How often in a phase or a direction. Frozen parameters are gathered, but as they have no
        gradients, backward lacks one reduce-scatter a micro-batch."""
        a_step, a_micro_batch = (self.sent | self.copied)[what]
        if frozen:
            return 0, max(0, a_micro_batch - (what == "backward"))
        return a_step, a_micro_batch


def card_of(told):
    """The Card of an object in notes/cards.json, where "2" is twice a step, "2A" a micro-batch."""
    sent, copied = ({of: (0, int(text[:-1] or 1)) if text.endswith("A") else (int(text), 0)
                     for of, text in told[what].items()} for what in ("sent", "copied"))
    return Card(told["name"], told["mixed_precision"], told["held"], sent, told["borrowed"], copied)


CHAPTERS = [card_of(card) for card in CARDS.values() if card["ranks"]]
STATE_HOST = replace(CHAPTERS[-1], name="08_state_host",  # 08 with --state host
                     held=CHAPTERS[-1].held | {"optimizer": "sharded on the host"})


def deepspeed_card(stage, optimizer="none", param="none"):
    """DeepSpeed's card of a stage; `optimizer`, `param`: the device of offload_optimizer and of
    offload_param. If the optimizer is offloaded, gradients are too from stage 2 on."""
    card = next(card for card in CHAPTERS if card.stage == stage and card.mixed_precision)
    how = {"none": "sharded", "cpu": "sharded on the host", "nvme": "sharded on the disk"}
    away, held, name = stage > 0 and optimizer != "none", dict(card.held), card.name
    if away:
        held["optimizer"] = how[optimizer]
        held["gradients"] = how["cpu"] if stage > 1 else held["gradients"]
        name = f"zero{stage}_offload"
    copied = dict.fromkeys(WAYS, (int(away), 0))
    if stage == 3:
        held["parameters"] = how[param]
        if param != "none":
            copied = {"to_host": (0, 1) if away else (1, 0), "to_device": (0, 2)}
            name = name if away else "zero3_offload_param"
        elif away:
            name = "07_offload"
        if optimizer == "nvme":
            name = "08_infinity"
    return replace(card, name=name, held=held, copied=copied, theirs=True)


def as_deepspeed(card):
    how = dict(zip(PLACES, ("none", "cpu", "nvme")))
    return deepspeed_card(card.stage, *(how[card.place(of)] for of in ("optimizer", "parameters")))


MADE = [*map(deepspeed_card, (1, 2), ("cpu", "cpu")), deepspeed_card(3, "cpu", "cpu"),
        deepspeed_card(3, "none", "cpu")]
ALL = [*CHAPTERS, *MADE, STATE_HOST]
PLANS = {name: card for card in CHAPTERS for name in (card.name[3:], card.name[:2], card.name[1])}
PLANS |= {card.name: card for card in ALL} | {"ddp": PLANS["3"], "zero0": PLANS["3"]}


def costs(q, card):
    """Bytes of a parameter, of its gradient, and of its optimizer state."""
    w = BYTES[q.dtype]
    if q.bytes:
        return q.bytes
    if q.convention != "paper":
        return w, *(MEGATRON[q.dtype] if q.convention == "megatron" else
                    DEEPSPEED[card.prefetches or card.offloads])
    # Master weights of their own: fp32 where Adam runs; in DeepSpeed stages 0 and 3 on the device.
    reached = (card.place("parameters") == HOST) == card.offloads
    own = w == 4 and (not card.offloads and card.stage in (0, 3) if card.theirs else reached)
    # DeepSpeed's offloaded optimizer has a second copy of gradients, in the master weights' type.
    return w, q.gradient or w, q.moments + q.master * (not own) + q.master * (
        card.theirs and card.offloads)


def adam_bytes(q, card):
    """Of an element: it reads and writes state, reads gradients, writes parameters; what is their
    own master it reads too."""
    p, g, k = costs(q, card)
    k -= q.master * (card.theirs and card.offloads and q.convention == "paper" and not q.bytes)
    return 2 * k + g + p * (1 + (k <= 2 * p))


def terms(q, card, frozen=False):
    """Yields the Terms of a card's state and of all it borrows, of trained or frozen parameters."""
    p, g, k = costs(q, card)
    g, k = (0, 0) if frozen else (g, k)
    for kind, size in zip(STATE, (p, g, k)):
        of = "full" if card.held[kind] == "replicated" else "shard"
        there = q.there if kind == "optimizer" and card.place(kind) == HOST else 1
        yield Term(DEVICE, kind, size * (1 - there), of)
        yield Term(card.place(kind), kind, size * there, of)
    if not card.theirs:
        yield from of_programs(q, card, p, g, k)
        return
    yield from of_deepspeed(q, card, p, g)
    if not frozen:
        yield from buffers(q, card)


def of_programs(q, card, p, g, k):
    """Terms of a chapter's program beside its state: gradients on their way to the host, or two
    layers' that are added there; pieces of the disk's state; layers; other ranks' shards of one."""
    on_host, on_disk = card.place("gradients") == HOST, card.place("optimizer") == DISK
    yield Term(HOST, "communication", g * card.offloads, "landing" if on_host else "shard")
    yield Term(HOST, "optimizer", k * on_disk, "piece", card.borrowed["pieces"])
    yield Term("borrowed", "parameters", p, "layer",
               card.borrowed["parameters"] + card.prefetches * q.prefetch, 2)
    yield Term("borrowed", "gradients", g, "layer", card.borrowed["gradients"], 1)
    yield Term("borrowed", "communication", p * (g > 0), "others")


def of_deepspeed(q, card, p, g):
    """DeepSpeed's beside the state. Stages 1 and 2 copy 16-bit parameters on the host to send them
    up (param_buffer_of_bit16_for_cpu_offload), and keep gradients there only to add micro-batches
    (accumulated_grads_in_cpu). NVMe is swapped through buffer_count buffers of a sub-group. PyTorch
    keeps the pinned memory of parameters after stage 3 has copied them to its own
    (_create_param_groups_fp16_flat_cpu_memory). hpZ has a second copy of parameters."""
    trained, third = g > 0, card.stage == 3
    if card.offloads and not third and q.convention == "paper":
        yield Term(HOST, "parameters", p * trained, "shard")
        if card.place("gradients") == HOST and q.accumulate == 1:
            yield Term(HOST, "gradients", -g, "shard")
    yield Term(HOST, "optimizer", 4 * trained * (card.place("optimizer") == DISK), "sub-group",
               q.optimizer_buffers)
    yield Term(HOST, "loading", p * trained * q.pinned * (card.place("parameters") == HOST),
               "shard")
    yield Term(card.place("parameters"), "parameters", p / q.near * (q.hpz > 1 and third), "full")
    yield Term("borrowed", "gradients", g * (card.stage > 1), "layer", 1, 1)


def bucket(q, card):
    """Bytes of a bucket of gradients, and how many there are. DeepSpeed's stages 1 and 2 have one,
    with overlap_comm two (setup_buckets), stage 3 one; stage 0 copies gradients by 5e8 elements
    (engine.py, MEMORY_OPT_ALLREDUCE_SIZE)."""
    elements = q.elements or BUCKET if card.stage else min(BUCKET, q.parts[0])
    twice = 1 + bool(q.overlap and card.stage in (1, 2))
    return q.bucket or BYTES[q.dtype] * elements, twice * (
        q.contiguous or card.stage == 0 or (card.offloads and card.stage < 3))


def buffers(q, card):
    """Terms of DeepSpeed that no number of parameters sizes: buckets, and at stage 3 a copy of one
    to reduce it (reduce_scatter_coalesced) and whole layers up to max_live_parameters; for
    parameters on NVMe buffer_count buffers of buffer_size, and max_in_cpu."""
    w, count, (size, number) = BYTES[q.dtype], sum(q.parts), bucket(q, card)
    yield Term("borrowed", "communication", size * number, "once")
    if card.stage == 3:
        yield Term("borrowed", "communication", min(size, w * count), "to reduce")
        live = min(count, max(*map(sum, q.sizes), q.live))
        yield Term("borrowed", "parameters", w * live, "once")
    if card.place("parameters") == DISK:
        yield Term(HOST, "parameters", w * q.parameter_buffers * q.parameter_buffer, "once")
        yield Term(HOST, "parameters", w, "in memory")


def own_terms(card, dtype):
    """Terms of a chapter's program as it runs by default, without a question."""
    return terms(SimpleNamespace(dtype=dtype, bytes=None, convention="paper", gradient=0, master=4,
                                 moments=8, prefetch=1, there=1), card)


def sum_of(whole, part, of):
    """`whole` + `part` times `of`, as "4 + 12/N" or "1 + A"."""
    second = of if (part, of) == (1, "A") else f"{part:g}{of}"
    return " + ".join([f"{whole:g}"] * (whole != 0) + [second] * (part != 0)) or "0"


def state_formula(of, place=DEVICE):
    """Bytes of state per parameter in a place, of these terms, as "4 + 12/N"."""
    of = [term for term in of if term.place == place and term.kind in KINDS]
    return sum_of(*(sum(term.size for term in of if term.of == how) for how in ("full", "shard")),
                  "/N")


def sent_formula(card, frozen=False):
    """Elements that a rank sends per parameter in a step, in units of (N - 1)/N, as "1 + A"."""
    return sum_of(*map(sum, zip(*(card.often(phase, frozen) for phase in PHASES))), "A")


def padded(size, n):
    return -(-size // (8 * n)) * 8 * n


def measured(q, sizes, n):
    """{a Term's `of`: elements}. `sizes`: {a layer's size: how many layers}; each layer is padded
    for n ranks. No piece or sub-group is larger than what it is a part of. "landing": two layers'
    gradients on the host, to be added to earlier micro-batches'. "once": the Term's size is all."""
    full = sum(padded(size, n) * count for size, count in sizes.items())
    layer = padded(max(sizes), n)
    return {"full": full, "shard": full // n, "sub-group": min(q.piece, full // n), "layer": layer,
            "piece": min(q.piece, layer // n), "others": (n - 1) * layer // n,
            "landing": 2 * layer // n * (q.accumulate > 1), "once": 1, "to reduce": n > 1,
            "in memory": min(q.in_cpu, sum(q.parts) // n)}


def cut_among(q, card, n):
    """How many ranks share the state, if others replicate it: MiCS, and FSDP's hybrid shards."""
    return q.shards if 0 < q.shards < n and card.stage else n


class Rank:
    """What one of n ranks holds, borrows, sends and copies in a step, in exact bytes. A layer's
    trained and frozen parameters are padded separately."""

    def __init__(self, q, card, n):
        self.name, self.card, self.ranks, layers = card.name, card, n, len(q.sizes)
        self.collectives = self.adam = 0
        there = {place: dict.fromkeys(KINDS[:5], 0) for place in (*PLACES, "borrowed")}
        there[HOST]["loading"] = 0
        self.elements, self.copied = dict.fromkeys(PHASES, 0), dict.fromkeys(WAYS, 0)
        machine, plain = min(n, q.gpus_per_machine), q.convention == "paper" and not q.bytes
        cut, between = cut_among(q, card, n), 0
        for frozen, sizes in enumerate(q.counted):
            of, (p, g, _) = measured(q, sizes, cut), costs(q, card)
            # Twin-Flow's ratio leaves whole sub-groups on the device (stage3.py, step).
            groups = -(-of["shard"] // q.piece) if q.ratio < 1 else 1
            q.near = min(q.hpz, n)
            q.there = 1 - int((1 - q.ratio) * groups) / groups
            g *= not frozen
            for term in terms(q, card, frozen):
                most = term.most * layers * q.accumulate or term.count
                there[term.place][term.kind] += round(
                    term.size * of[term.of] * min(term.count, most))
            if card.offloads and not frozen:
                self.adam = adam_bytes(q, card) * of["shard"]
            for what in (*PHASES, *WAYS):
                a_step, a_micro_batch = card.often(what, frozen)
                times = a_step + a_micro_batch * q.accumulate
                if what in PHASES:
                    self.elements[what] += times * (cut - 1) * of["shard"]
                    self.collectives += times * layers * (n > 1 and not frozen)
                else:
                    # To the host go gradients if the optimizer is there, else new parameters.
                    size = g if what == "to_host" and card.offloads else p
                    self.copied[what] += times * size * of["shard"]
            if card.theirs and card.stage == 3 and 1 < q.hpz < cut:  # backward gathers among these
                self.elements["backward"] -= q.accumulate * (
                    (cut - 1) * of["shard"] - (q.hpz - 1) * of["full"] // q.hpz)
            if cut < n and not frozen:  # replicas all-reduce their shards of gradients
                between = 2 * (n // cut - 1) * of["shard"] // (n // cut)
                self.collectives += 2 * layers
        told = estimate(q, card, n, machine, there) if q.convention == "deepspeed" else None
        there["borrowed"]["activations"] = q.activations
        if card.theirs and card.stage == 2 and not card.offloads and plain:
            # step() of stage_1_and_2.py copies gradients to the master weights' type when nothing
            # else is borrowed, so only what exceeds that is added.
            own = q.master * (q.master != BYTES[q.dtype]) * measured(q, q.counted[0], cut)["shard"]
            there["borrowed"]["optimizer"] = max(0, own - sum(there["borrowed"].values()))
        self.resident, self.on_host, self.on_disk, self.borrowed = there.values()
        gradients = self.elements["backward"] // (1 + (card.stage == 3)) + between
        self.elements["backward"] += between
        self.sent = BYTES[q.dtype] * sum(self.elements.values()) + gradients * (
            (q.sends or BYTES[q.dtype]) - BYTES[q.dtype])
        self.held, self.host, self.disk = (
            sum(of.values()) for of in (self.resident, self.on_host, self.on_disk))
        self.machine = told or self.host * machine
        self.reserved = self.held + sum(self.borrowed.values())
        self.fits = self.reserved <= q.gpu - q.headroom and (
            not q.host or self.host <= q.host - q.host_headroom)
        # What stays on a rank however many there are: all but the shards.
        self.kept = self.reserved - sum(
            self.resident[kind] for kind in STATE if card.held[kind] == "sharded"
        ) - self.borrowed["optimizer"]


def estimate(q, card, n, machine, there):
    """Replaces the bytes in `there` by those of DeepSpeed's estimate_zero2_model_states_mem_needs
    and estimate_zero3_..., and returns a host's; None for plans that these do not know."""
    count, largest, nodes = sum(q.parts), max(map(sum, q.sizes)), -(-n // machine)
    away, kept = (card.place(of) == HOST for of in ("optimizer", "parameters"))
    if not card.theirs or card.stage < 2 or DISK in map(card.place, STATE) or kept > away:
        return None
    if card.stage == 2:
        parameters, layer = 2 * count, 0
        optimizer = 0 if away else int(18 * count / n)  # with gradients
        host = count * (max(4 * n, 16) if away else 4 * machine)
    else:
        parameters, layer = 0 if kept else int(2 * count / n), 4 * largest
        optimizer = 0 if away else int(18 * count / n) - parameters
        loads = 0 if q.zero_init else 4 * machine
        host = count * max(loads, (18 if kept else 16) * (1 / nodes)) if away else (
            4 * machine * (largest if q.zero_init else count))
    host = int(host * 1.5)
    there[DEVICE] |= {"parameters": parameters, "gradients": 0, "optimizer": optimizer}
    there["borrowed"] = dict.fromkeys(there["borrowed"], 0) | {"parameters": layer}
    there[HOST] = dict.fromkeys(there[HOST], 0) | {"optimizer": host // machine}
    return host


def answer(q):
    """Sets q.plans, a Rank of each card on q.ranks or, if that is 0, on the fewest ranks that fit;
    and q.plan, the first that fits, or else the one that does on fewest ranks."""
    def fewest(card):
        if not q.gpu or Rank(q, card, 1).kept > q.gpu - q.headroom:
            return None
        return next((n for n in range(1, MOST_RANKS + 1) if Rank(q, card, n).fits), None)

    found = [fewest(card) for card in q.cards]
    q.ranks = q.ranks or min(n or MOST_RANKS for n in found)
    q.plans = [Rank(q, card, q.ranks) for card in q.cards]
    for plan, n in zip(q.plans, found):
        plan.fewest, plan.then = n, n and Rank(q, plan.card, n)
        plan.every = Rank(q, plan.card, MOST_RANKS).kept
        # [of a trained parameter, of a frozen one]: bytes in each place, elements sent.
        parts = range(len(q.parts))
        plan.formulas = {place: [state_formula(terms(q, plan.card, frozen), place)
                                 for frozen in parts] for place in PLACES}
        plan.formulas["sent"] = [sent_formula(plan.card, frozen) for frozen in parts]
        whole = replace(plan.card, held=dict.fromkeys(STATE, "replicated"))
        plan.saved = 1 - plan.held / Rank(q, whole, q.ranks).held
        plan.times = plan.sent / max(1, Rank(q, PLANS["ddp"], q.ranks).sent)
    q.plan = next((plan for plan in q.plans if plan.fits and q.gpu), None)
    if not q.plan and (q.gpu or len(q.plans) == 1):
        q.plan = min(q.plans, key=lambda plan: (plan.fewest or MOST_RANKS + 1, plan.every))
