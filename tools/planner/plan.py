# SPDX-License-Identifier: MIT
"""Counts what a rank holds, borrows, sends and copies in a step, by the chapters' cards, or as
DeepSpeed 0.19.6 does it (zero/stage_1_and_2.py, zero/stage3.py, zero/partition_parameters.py). `q`
is always the question: all options with what follows from them, as question() makes it."""
import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

from runs import BYTES, KINDS, PLACES, ROOT, STATE

from .machine import MOST_RANKS

PHASES, WAYS = ("forward", "backward", "update"), ("to_host", "to_device")
DEVICE, HOST, DISK = PLACES
# The chapters' cards, by name. A unit test checks that the trainers' cards in C++ are the same.
CARDS = {card["name"]: card for card in json.loads((ROOT / "notes/cards.json").read_text("utf-8"))}
# Bytes of a parameter's gradient and of its optimizer state, by --convention. MEGATRON has them by
# dtype, as on Megatron-LM's page on its distributed optimizer. DEEPSPEED has them by whether a plan
# is stage 3 or offloads, as in its estimate_zero2_model_states_mem_needs and
# estimate_zero3_model_states_mem_needs.
MEGATRON = {"fp32": (4, 8), "bf16": (4, 12), "fp16": (2, 16)}
DEEPSPEED = {False: (2, 16), True: (4, 12)}
# DeepSpeed's default elements (zero/config.py): reduce_bucket_size, stage3_max_live_parameters.
BUCKET, LIVE = 500_000_000, 1_000_000_000


class Term(NamedTuple):
    """Bytes that a rank needs: `size` for each element that measured() counts as `of`, `count`
    times; if `most` is not 0, at most `most` times for each layer and micro-batch."""
    place: str  # one of PLACES, or "borrowed" on the device
    kind: str
    size: float
    of: str
    count: int = 1
    most: int = 0


@dataclass(frozen=True)
class Card:
    """A plan: a chapter's card, or one derived from it. How often: (per step, per micro-batch)."""
    name: str
    mixed_precision: bool
    held: dict  # by kind: "replicated", "sharded", "sharded on the host" or "sharded on the disk"
    sent: dict  # by phase: how often (N - 1)/N of all parameters are sent
    borrowed: dict  # by kind: how many layers or pieces; "and_prefetched": --prefetch more
    copied: dict  # by direction over the bus: how often a rank's shard is copied
    theirs: bool = False  # whether this is DeepSpeed's own plan, with its buffers

    prefetches = property(lambda self: self.borrowed["and_prefetched"])
    offloads = property(lambda self: self.place("optimizer") != DEVICE)
    stage = property(lambda self: sum(how != "replicated" for how in self.held.values()))

    def place(self, kind):
        return self.held[kind].partition(" on the ")[2] or DEVICE

    def reductions(self, micro_batches):
        """Returns how often a step sends each gradient: backward's messages without its gathers."""
        a_step, a_micro_batch = self.sent["backward"]
        return a_step + (a_micro_batch - self.prefetches) * micro_batches

    def often(self, what, frozen):
        """Returns (a step, a micro-batch): how often phase `what` sends or direction `what` copies.
        Frozen parameters have no gradients: a window gathers them, in forward and in backward."""
        a_step, a_micro_batch = (self.sent | self.copied)[what]
        if frozen:
            return 0, self.prefetches * (1 if what == "backward" else a_micro_batch)
        return a_step, a_micro_batch


def card_of(values):
    """Returns the Card of cards.json's object: "2" is twice a step, "2A" twice a micro-batch."""
    def often(text):
        return (0, int(text[:-1] or 1)) if text.endswith("A") else (int(text), 0)

    sent, copied = ({name: often(text) for name, text in values[key].items()}
                    for key in ("sent", "copied"))
    return Card(values["name"], values["mixed_precision"], values["held"], sent,
                values["borrowed"], copied)


CHAPTERS = [card_of(card) for card in CARDS.values() if card["ranks"]]
INFINITY = card_of(CARDS["08_infinity"])
STATE_HOST = replace(INFINITY, name="08_state_host",  # 08 with --state host
                     held=INFINITY.held | {"optimizer": "sharded on the host"})


def deepspeed_card(stage, optimizer="none", param="none", to_owners=False):
    """Returns DeepSpeed's card of a stage. `optimizer` and `param` are the devices of
    offload_optimizer and offload_param. From stage 2 on gradients go with the optimizer. State on
    NVMe is read, updated and written by one sub-group after the other. Stages 1 and 2 all-reduce
    gradients; to_owners: they reduce each to its owner, which sends as much as a reduce-scatter
    (average_tensor, allreduce_bucket)."""
    card = next(card for card in CHAPTERS if card.stage == stage and card.mixed_precision)
    how = {"none": "sharded", "cpu": "sharded on the host", "nvme": "sharded on the disk"}
    offloads, held, name = stage > 0 and optimizer != "none", dict(card.held), card.name
    if offloads:
        held["optimizer"] = how[optimizer]
        held["gradients"] = how["cpu"] if stage > 1 else held["gradients"]
        name = f"zero{stage}_offload"
    halves = 2 if stage in (1, 2) and not to_owners else 1
    sent = card.sent | {"backward": tuple(halves * often for often in card.sent["backward"])}
    copied = dict.fromkeys(WAYS, (int(offloads), 0))
    borrowed = card.borrowed | {"pieces": int(optimizer == "nvme")}
    if stage == 3:
        held["parameters"] = how[param]
        if param != "none":
            copied = {"to_host": (0, 1) if offloads else (1, 0), "to_device": (0, 2)}
            name = name if offloads else "zero3_offload_param"
        elif offloads:
            name = "07_offload"
        if optimizer == "nvme":
            name = "08_infinity"
    return replace(card, name=name, held=held, sent=sent, copied=copied, borrowed=borrowed,
                   theirs=True)


def as_deepspeed(card, to_owners=False):
    """Returns DeepSpeed's card with `card`'s stage, and its places of optimizer and parameters."""
    name = dict(zip(PLACES, ("none", "cpu", "nvme")))
    return deepspeed_card(card.stage, *(name[card.place(k)] for k in ("optimizer", "parameters")),
                          to_owners)


MADE = [*map(deepspeed_card, (1, 2), ("cpu", "cpu")), deepspeed_card(3, "cpu", "cpu"),
        deepspeed_card(3, "none", "cpu")]  # DeepSpeed's plans with offload
ALL = [*CHAPTERS, *MADE, STATE_HOST]  # the cards; PLANS: {a name that --chapter takes: its card}
PLANS = {name: card for card in CHAPTERS for name in (card.name[3:], card.name[:2], card.name[1])}
PLANS |= {card.name: card for card in ALL} | {"ddp": PLANS["3"], "zero0": PLANS["3"]}


def costs(q, card):
    """Returns the bytes of a parameter, of its gradient, and of its optimizer state."""
    width = BYTES[q.dtype]
    if q.bytes:
        return q.bytes
    if q.convention != "paper":
        return width, *(MEGATRON[q.dtype] if q.convention == "megatron" else
                        DEEPSPEED[card.prefetches or card.offloads])
    # fp32 parameters are their own master weights if they are where Adam runs; in DeepSpeed, at
    # stages 0 and 3 on the device.
    own_master = (card.place("parameters") == HOST) == card.offloads
    if card.theirs:
        own_master = not card.offloads and card.stage in (0, 3)
    state = q.moments if width == 4 and own_master else q.moments + q.master
    if card.theirs and card.offloads:  # DeepSpeed's second copy of gradients: the master's type
        state += q.master
    return width, q.gradient or width, state


def adam_bytes(q, card):
    """Returns an element's bytes that Adam moves: state both ways, gradient in, parameter out."""
    parameter, gradient, state = costs(q, card)
    if card.theirs and card.offloads and q.convention == "paper" and not q.bytes:
        state -= q.master  # the second copy of gradients is no state
    own_master = state <= 2 * parameter
    return 2 * state + gradient + parameter * (2 if own_master else 1)  # a master is read too


def terms(q, card, frozen=False):
    """Yields the Terms of a card's state and of all it borrows, of trained or frozen parameters."""
    parameter, gradient, state = costs(q, card)
    if frozen:
        gradient = state = 0
    for kind, size in zip(STATE, (parameter, gradient, state)):
        of = "full" if card.held[kind] == "replicated" else "shard"
        there = q.there if kind == "optimizer" and card.place(kind) == HOST else 1
        yield Term(DEVICE, kind, size * (1 - there), of)
        yield Term(card.place(kind), kind, size * there, of)
    if not card.theirs:
        yield from of_programs(q, card, parameter, gradient, state)
        return
    yield from of_deepspeed(q, card, parameter, gradient)
    if not frozen:
        yield from buffers(q, card)


def of_programs(q, card, parameter, gradient, state):
    """Yields a program's Terms beside its state. parameter, gradient, state: bytes of an element.
    On the host there are gradients on their way there, or two layers' gradients that are added
    there, and pieces of the disk's state; on the device layers, and other ranks' shards of one."""
    if card.offloads:
        of = "landing" if card.place("gradients") == HOST else "shard"
        yield Term(HOST, "communication", gradient, of)
    if card.place("optimizer") == DISK:
        yield Term(HOST, "optimizer", state, "piece", card.borrowed["pieces"])
    layers = card.borrowed["parameters"] + (q.prefetch if card.prefetches else 0)
    yield Term("borrowed", "parameters", parameter, "layer", layers, 2)
    yield Term("borrowed", "gradients", gradient, "layer", card.borrowed["gradients"], 1)
    if gradient:
        yield Term("borrowed", "communication", parameter, "others")


def of_deepspeed(q, card, parameter, gradient):
    """Yields DeepSpeed's Terms beside the state; the sizes are bytes of an element. Stages 1 and 2
    copy 16-bit parameters on the host to send them up (param_buffer_of_bit16_for_cpu_offload), keep
    gradients there only to add micro-batches (accumulated_grads_in_cpu). State on NVMe is swapped
    through buffer_count buffers of a sub-group. PyTorch keeps the pinned memory of parameters after
    stage 3 has copied them (_create_param_groups_fp16_flat_cpu_memory). hpZ copies parameters."""
    trained = gradient > 0
    if card.offloads and card.stage != 3 and q.convention == "paper":
        yield Term(HOST, "parameters", parameter if trained else 0, "shard")
        if card.place("gradients") == HOST and q.accumulate == 1:
            yield Term(HOST, "gradients", -gradient, "shard")
    if trained and card.place("optimizer") == DISK:
        yield Term(HOST, "optimizer", 4, "sub-group", q.optimizer_buffers)
    if trained and card.place("parameters") == HOST:
        yield Term(HOST, "loading", parameter * q.pinned, "shard")
    if q.hpz > 1 and card.stage == 3:
        yield Term(card.place("parameters"), "parameters", parameter / q.near, "full")
    if card.stage > 1:
        yield Term("borrowed", "gradients", gradient, "layer", 1, 1)


def bucket(q, card):
    """Returns (bytes of a bucket of gradients, how many there are). DeepSpeed's stages 1 and 2 have
    one, with overlap_comm two (setup_buckets), stage 3 has one. Stage 0 copies gradients by 5e8
    elements (engine.py, MEMORY_OPT_ALLREDUCE_SIZE)."""
    elements = q.elements or BUCKET if card.stage else min(BUCKET, q.parts[0])
    some = 2 if q.overlap and card.stage in (1, 2) else 1
    has_any = q.contiguous or card.stage == 0 or (card.offloads and card.stage < 3)
    return q.bucket or BYTES[q.dtype] * elements, some if has_any else 0


def buffers(q, card):
    """Yields DeepSpeed's Terms that do not grow with the parameters: buckets; at stage 3 a copy of
    a bucket to reduce it (reduce_scatter_coalesced), and whole layers up to max_live_parameters;
    for parameters on NVMe buffer_count buffers of buffer_size, and max_in_cpu."""
    width, total, (size, number) = BYTES[q.dtype], sum(q.parts), bucket(q, card)
    yield Term("borrowed", "communication", size * number, "once")
    if card.stage == 3:
        yield Term("borrowed", "communication", min(size, width * total), "to reduce")
        live = min(total, max(*map(sum, q.sizes), q.live))
        yield Term("borrowed", "parameters", width * live, "once")
    if card.place("parameters") == DISK:
        yield Term(HOST, "parameters", width * q.parameter_buffers * q.parameter_buffer, "once")
        yield Term(HOST, "parameters", width, "in memory")


def own_terms(card, dtype):
    """Returns the Terms of a chapter's program as it runs by default, without a question."""
    return terms(SimpleNamespace(dtype=dtype, bytes=None, convention="paper", gradient=0, master=4,
                                 moments=8, prefetch=1, there=1), card)


def sum_of(whole, part, unit):
    """Returns `whole` + `part` times `unit` as text, "4 + 12/N" or "1 + A"; "0" if both are 0."""
    first = f"{whole:g}" if whole else ""
    second = "" if (part, unit) == (1, "A") else f"{part:g}"
    return " + ".join(filter(None, (first, second + unit if part else ""))) or "0"


def state_formula(of, place=DEVICE):
    """Returns the bytes of state per parameter in a place, by the Terms `of`, as "4 + 12/N"."""
    of = [term for term in of if term.place == place and term.kind in KINDS]
    return sum_of(*(sum(term.size for term in of if term.of == how) for how in ("full", "shard")),
                  "/N")


def sent_formula(card, frozen=False):
    """Returns the elements sent per parameter in a step, in units of (N - 1)/N, as "1 + A"."""
    return sum_of(*map(sum, zip(*(card.often(phase, frozen) for phase in PHASES))), "A")


def padded(size, n):
    """Returns a layer's elements, rounded up so that each of n ranks has a multiple of 8."""
    return -(-size // (8 * n)) * 8 * n


def measured(q, sizes, n):
    """Returns {the name that a Term has in `of`: elements of a rank}. sizes: {a layer's size: how
    many layers}; each layer is padded for n ranks. No piece or sub-group is larger than what it is
    a part of. "landing" is two layers' gradients on the host, which wait to be added to those of
    earlier micro-batches. "once" is 1, because the Term's size is all."""
    full = sum(padded(size, n) * count for size, count in sizes.items())
    layer = padded(max(sizes), n)
    return {"full": full, "shard": full // n, "sub-group": min(q.piece, full // n), "layer": layer,
            "piece": min(q.piece, layer // n), "others": (n - 1) * layer // n,
            "landing": 2 * layer // n if q.accumulate > 1 else 0, "once": 1, "to reduce": n > 1,
            "in memory": min(q.in_cpu, sum(q.parts) // n)}


def cut_among(q, card, n):
    """Returns how many of n ranks share the state: fewer with MiCS and FSDP's hybrid shards."""
    return q.shards if 0 < q.shards < n and card.stage else n


class Rank:
    """What one of n ranks holds, borrows, sends and copies in a step, to the byte. A layer's
    trained and frozen parameters are padded separately."""

    def __init__(self, q, card, n):
        self.name, self.card, self.ranks = card.name, card, n
        self.collectives = self.adam = 0  # messages to each other rank; host bytes that Adam moves
        self.elements, self.copied = dict.fromkeys(PHASES, 0), dict.fromkeys(WAYS, 0)
        memory = {place: dict.fromkeys(KINDS[:5], 0) for place in (*PLACES, "borrowed")}
        memory[HOST]["loading"] = 0
        cut = cut_among(q, card, n)
        for frozen, sizes in enumerate(q.counted):
            elements = measured(q, sizes, cut)
            self.add_memory(q, frozen, elements, memory)
            self.add_traffic(q, frozen, elements, cut)
        machine = min(n, q.gpus_per_machine)
        by_estimate = q.convention == "deepspeed"
        host_of_machine = estimate(q, card, n, machine, memory) if by_estimate else None
        memory["borrowed"]["activations"] = q.activations
        if card.theirs and card.stage == 2 and not card.offloads and (
                q.convention == "paper" and not q.bytes and q.master != BYTES[q.dtype]):
            # step() of stage_1_and_2.py copies gradients to the master weights' type after all else
            # was given back, so only the copy's bytes beyond all else are added to the peak.
            copy = q.master * measured(q, q.counted[0], cut)["shard"]
            memory["borrowed"]["optimizer"] = max(0, copy - sum(memory["borrowed"].values()))
        self.resident, self.on_host, self.on_disk, self.borrowed = memory.values()
        self.held, self.host, self.disk = (
            sum(kinds.values()) for kinds in (self.resident, self.on_host, self.on_disk))
        self.machine = host_of_machine or self.host * machine  # bytes of a host, for all its ranks
        self.reserved = self.held + sum(self.borrowed.values())
        self.fits = self.reserved <= q.gpu - q.headroom and (
            not q.host or self.host <= q.host - q.host_headroom)
        # The device's bytes that stay however many ranks there are: all but the shards.
        self.kept = self.reserved - self.borrowed["optimizer"] - sum(
            self.resident[kind] for kind in STATE if card.held[kind] == "sharded")
        self.sent = self.bytes_sent(q, cut)

    def add_memory(self, q, frozen, elements, memory):
        """Adds the bytes of all trained or all frozen parameters to `memory`, {place: {kind}}."""
        # Twin-Flow's ratio leaves whole sub-groups on the device (stage3.py, step).
        groups = -(-elements["shard"] // q.piece) if q.ratio < 1 else 1
        q.near = min(q.hpz, self.ranks)  # ranks that share hpZ's copy of the parameters
        q.there = 1 - int((1 - q.ratio) * groups) / groups  # share of the state on the host
        for term in terms(q, self.card, frozen):
            most = term.most * len(q.sizes) * q.accumulate or term.count
            memory[term.place][term.kind] += round(
                term.size * elements[term.of] * min(term.count, most))
        if self.card.offloads and not frozen:
            self.adam = adam_bytes(q, self.card) * elements["shard"]

    def add_traffic(self, q, frozen, elements, cut):
        """Adds what is sent and copied in a step of all trained or all frozen parameters. `cut`
        ranks share the state."""
        card, n, shard, layers = self.card, self.ranks, elements["shard"], len(q.sizes)
        parameter, gradient, _ = costs(q, card)
        gradient = 0 if frozen else gradient
        for what in (*PHASES, *WAYS):
            a_step, a_micro_batch = card.often(what, frozen)
            times = a_step + a_micro_batch * q.accumulate
            if what in PHASES:
                self.elements[what] += times * (cut - 1) * shard
                if n > 1 and not frozen:
                    self.collectives += times * layers
            else:
                # To the host go gradients if the optimizer is there, else new parameters.
                size = gradient if what == "to_host" and card.offloads else parameter
                self.copied[what] += times * size * shard
        if card.theirs and card.stage == 3 and 1 < q.hpz < cut:  # hpZ: a step's later gathers
            saved = (cut - 1) * shard - (q.hpz - 1) * elements["full"] // q.hpz
            self.elements["backward"] -= q.accumulate * saved
            self.elements["forward"] -= (q.accumulate - 1 + frozen) * saved  # frozen: kept for good
        if cut < n and not frozen:
            self.collectives += 2 * layers  # replicas all-reduce their shards of gradients

    def bytes_sent(self, q, cut):
        """Adds what replicas send to backward's elements; returns the bytes of all elements."""
        width, replicas = BYTES[q.dtype], self.ranks // cut
        shard = measured(q, q.counted[0], cut)["shard"]  # of what is trained
        between = 2 * (replicas - 1) * shard // replicas
        gradients = self.card.reductions(q.accumulate) * (cut - 1) * shard + between
        self.elements["backward"] += between
        return width * sum(self.elements.values()) + gradients * ((q.sends or width) - width)


def estimate(q, card, n, machine, there):
    """Replaces the bytes in `there`, {place: {kind}}, by those of DeepSpeed's
    estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs. Returns the
    bytes of a host, on which `machine` ranks run; None for plans that these do not know."""
    count, largest, nodes = sum(q.parts), max(map(sum, q.sizes)), -(-n // machine)
    offloads, streams = (card.place(kind) == HOST for kind in ("optimizer", "parameters"))
    if not card.theirs or card.stage < 2 or DISK in map(card.place, STATE) or (
            streams and not offloads):
        return None
    layer, optimizer = 0, 0 if offloads else int(18 * count / n)  # the optimizer with gradients
    if card.stage == 2:
        parameters = 2 * count
        host = count * (max(4 * n, 16) if offloads else 4 * machine)
    else:
        parameters, layer = 0 if streams else int(2 * count / n), 4 * largest
        if offloads:
            loads = 0 if q.zero_init else 4 * machine
            host = count * max(loads, (18 if streams else 16) * (1 / nodes))
        else:
            optimizer -= parameters
            host = 4 * machine * (largest if q.zero_init else count)
    host = int(host * 1.5)
    there[DEVICE] |= {"parameters": parameters, "gradients": 0, "optimizer": optimizer}
    there["borrowed"] = dict.fromkeys(there["borrowed"], 0) | {"parameters": layer}
    there[HOST] = dict.fromkeys(there[HOST], 0) | {"optimizer": host // machine}
    return host


def answer(q):
    """Sets q.plans, a Rank of each card on q.ranks (0 becomes the fewest on which one fits), and
    q.plan: the first that fits, else that for the fewest ranks; of several without --gpu None."""
    def fewest(card):
        if not q.gpu or Rank(q, card, 1).kept > q.gpu - q.headroom:
            return None
        return next((n for n in range(1, MOST_RANKS + 1) if Rank(q, card, n).fits), None)

    enough = [fewest(card) for card in q.cards]
    q.ranks = q.ranks or min(n or MOST_RANKS for n in enough)
    q.plans = [Rank(q, card, q.ranks) for card in q.cards]
    for plan, n in zip(q.plans, enough):
        plan.fewest, plan.then = n, n and Rank(q, plan.card, n)  # None if it fits nowhere
        plan.every = Rank(q, plan.card, MOST_RANKS).kept  # bytes that no number of ranks saves
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
