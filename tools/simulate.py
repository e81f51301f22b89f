# SPDX-License-Identifier: MIT
"""How long a step takes: a plan's schedule, played by its card, without its program.

A trainer puts tasks on streams in its program's order, and each wait is for a task that was put
there before. One pass in that order therefore gives all times: a task begins when its stream is
free and all that it waits for is done. The waits are those of notes/streams.md."""
from collections import defaultdict
from dataclasses import dataclass

from spans import shares

SORTS = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce", "sums"), "collective") | \
    dict.fromkeys(("to_host", "to_device", "read", "write"), "bus") | {"copy": "copy"}
BETWEEN = "between groups"  # a stream of its own: other ranks' wires
SLOTS, LANDINGS = 2, 2  # of gradients: on the device; on the host, where they are added
HOST_CORES = "host cores"


class Streams:
    """Of some ranks. An event, the end of a task, is its time on each of them, in ms."""

    def __init__(self, ranks=1):
        self.ends = defaultdict(lambda: [0.0] * ranks)  # of each stream's last task
        self.host = [0.0] * ranks  # nothing is put on a stream before
        self.slices, self.syncs, self.step = [[] for _ in range(ranks)], [], 0

    def run(self, stream, what, layer, times, *after):
        """A collective is under way when its last rank has begun. What takes no time: no slice."""
        begins = [max(at) for at in zip(self.ends[stream], self.host, *filter(None, after))]
        sort = SORTS.get(what, "compute")
        starts = [max(begins)] * len(begins) if sort == "collective" else begins
        ends = self.ends[stream] = [at + ms for at, ms in zip(starts, times)]
        for slices, begin, end, ms in zip(self.slices, begins, ends, times):
            if ms:
                slices.append({"name": f"{what} of layer {layer}", "cat": sort, "stream": stream,
                               "ts": 1e3 * begin, "dur": 1e3 * (end - begin),
                               "args": {"step": self.step, "layer": layer}})
        return ends

    def figures(self, rank=0, step=-1):
        """What a step took, from one norm to the next, in ms; how long the rank computed in it, and
        what was exposed and hidden."""
        begin, end = self.syncs[step - 1][rank], self.syncs[step][rank]
        return end - begin, shares(self.slices[rank], 1e3 * begin, 1e3 * end)


def play(card, layers, times, ranks=1, accumulate=1, prefetch=1, beside=False, pieces=(), steps=2,
         ends=False):
    """times(what, layer, step): ms of a task, by rank, which are asked for in each stream's order.
    beside: where a card has no window, messages pass beside backward and the next forward, as with
    DDP and Megatron-LM. ends: a step waits for its update, of which the next forward hides nothing,
    as in DeepSpeed's step(). pieces: of each layer's state, where a disk holds it."""
    streams, ready, written = Streams(ranks), {}, {}
    window, places = card.prefetches, {of: card.place(of) for of in card.held}
    link = "communication" if window or beside else "compute"
    # A rank's parameters lie with the host, its gradients come down in each micro-batch.
    stays, comes = card.copied["to_device"][1], card.copied["to_host"][1]
    up, down = ("copies up", "copies down") if stays else ("copies", "copies")
    reduces = card.sent["backward"][1] - window
    adams = HOST_CORES if card.offloads else "compute"
    orders = ("forward", range(layers)), ("backward", range(layers)[::-1])
    uses = [(phase, l, micro) for micro in range(accumulate) for phase, order in orders
            for l in order]
    states = [l for l in range(layers) for _ in range(pieces[l])] if pieces else []

    def run(stream, what, layer, *after):
        return streams.run(stream, what, layer, times(what, layer, streams.step), *after)

    def read_until(end):
        while len(there) < min(end, len(states)):
            piece = len(there)
            there.append(run("reads", "read", states[piece], written.get(piece % slots)))

    for streams.step in range(1, steps + 1):
        filled, used, sent, added = [], [], [], []  # events: by use, by use, by gradient, by sum
        there, slots = [], card.borrowed.get("pieces", 0)
        run("compute", "clear", None)
        read_until(slots)
        for use, (phase, l, micro) in enumerate(uses):
            last = micro + 1 == accumulate
            if phase == "forward" and l == 0:
                run("compute", "load", None)
            for _, ahead, _ in uses[len(filled):use + prefetch + 1] * window:
                free = used[len(filled) - prefetch - 1] if len(filled) > prefetch else None
                if stays:
                    free = run(up, "to_device", ahead, free, ready.get(ahead))
                else:
                    free = run("communication", "copy", ahead, free, ready.get(ahead))
                filled.append(run("communication", "all_gather", ahead, free))
            whole = filled[use] if window else ready.get(l) if beside else None
            slot = sent[-SLOTS] if reduces and phase == "backward" and len(sent) >= SLOTS else None
            used.append(run("compute", phase, l, whole, slot))
            if phase == "forward":
                if l == layers - 1:
                    run("compute", "loss", None)
                continue
            reduced = used[-1]
            for what in ("reduce_scatter", "all_gather")[:reduces
                                                         + last * card.sent["backward"][0]]:
                reduced = run(link, what, l, reduced)
            sent.append(reduced)
            if last:
                reduced = run(BETWEEN, "all_reduce", l, reduced)
            if comes:
                landing = added[-LANDINGS] if micro and len(added) >= LANDINGS else None
                sent[-1] = reduced = run(down, "to_host", l, reduced, landing)
                if micro:
                    added.append(reduced := run(HOST_CORES, "add", l, reduced))
                if last:
                    run(HOST_CORES, "divide", l, reduced)
                    run(HOST_CORES, "squared_norm", l)
            elif card.offloads and last:
                run(down, "divide", l, reduced)
                run(down, "to_host", l)
        summed = HOST_CORES if comes else down if card.offloads else BETWEEN
        run("compute", "wait", None, streams.ends[summed])
        if comes:
            run("compute", "add_squares", None)
        for l in range(layers) if not comes else ():
            if not card.offloads:
                run("compute", "divide", l)
            run("compute", "squared_norm", l)
        streams.host = run("compute", "sums", None)
        streams.syncs.append(streams.host)
        for piece, l in enumerate(states):
            read_until(piece + slots)
            ready[l] = run(adams, "adam", l, there[piece])
            written[piece % slots] = run("writes", "write", l, ready[l])
        for l in range(layers):
            if not states:
                ready[l] = run(adams, "adam", l)
            if places["parameters"] == "host" and not card.offloads:
                ready[l] = run(down, "to_host", l, ready[l])
            if card.copied["to_device"][0]:
                ready[l] = run(up, "to_device", l, ready[l])
            if card.sent["update"][0]:
                ready[l] = run(link, "all_gather", l, ready[l])
        if ends:
            streams.host = [max(at) for at in zip(*streams.ends.values())]
    return streams


@dataclass
class Machine:
    """What is attained of it, which is less than what is sold. 0: it takes no time."""
    flops: float = 0  # 10^12 operations/s of a rank
    memory: float = 0  # GB/s of its device's
    host_memory: float = 0  # GB/s of its share of the host's
    bus: float = 0  # GB/s, each way
    disk: float = 0  # GB/s, each way
    link: float = 0  # Gbit/s of a rank to other nodes
    latency: float = 0  # microseconds of a message there
    node: int = 1  # ranks in a node
    node_link: float = 0  # Gbit/s of a rank within it
    node_latency: float = 0

    def ring(self, size, n, node=None, messages=1):
        """ms of an all-gather or a reduce-scatter of so many bytes over n ranks, `node` of them in
        a node: N - 1 hops, one after the other, of which one fewer than nodes are between two; of
        each of so many messages that carry these bytes.
        (NCCL's src/graph/tuning.cc counts a ring's steps so.) In its node a rank's wire carries
        them all; a node has as many wires to others as ranks of the ring, each for its share. With
        one rank a node it is the programs' link: (N - 1) (latency + bytes / (N bandwidth))."""
        node = min(node or self.node, n)
        out = -(-n // node) - 1
        wires = ((out, self.link * node, self.latency),
                 (n - 1 - out, self.node_link, self.node_latency))
        carried = (8e-6 * size * (n - 1) / n / speed for hops, speed, _ in wires if hops and speed)
        return max(carried, default=0) + messages * sum(
            hops * late for hops, _, late in wires) / 1e3


def closed(sizes, bucket):
    """(elements, messages) that leave when each layer's backward is done, if buckets of so many
    elements fill in the reverse order of the layers. The last one leaves as full as it is."""
    rest, found = 0, []
    for l in range(len(sizes))[::-1]:
        rest += sizes[l]
        count = rest // bucket if l else -(-rest // bucket)
        found.append((min(rest, count * bucket), count))
        rest -= found[-1][0]
    return found[::-1]


def over(size, speed):
    """Milliseconds of so many bytes at so many GB/s; of no speed that was given none."""
    return size / speed / 1e6 if speed else 0


@dataclass
class Work:
    """What durations follow from. Lists go by layer."""
    card: object
    n: int
    gathered: list  # elements, padded; of those that are trained
    trained: list
    forward: list  # operations of a micro-batch
    backward: list
    accumulate: int = 1
    width: int = 2  # bytes of an element; of an element of a gradient that is sent
    sent: int = 2
    adam: int = 28  # bytes that Adam reads and writes of an element
    state: int = 12  # bytes of an element on a disk
    pieces: tuple = ()  # of each layer's state there
    shards: int = 0  # ranks among which a layer is cut; other such groups have the same (0: all)
    near: int = 0  # ranks among which backward gathers (ZeRO++'s hpZ; 0: as forward)
    bucket: int = 0  # elements of gradients that are sent at a time, without a window (0: a layer)

    def times(self, machine):
        """For play(): all ranks are equal, so one will do. A norm reads a gradient, and a division
        writes it too."""
        card, cut = self.card, self.shards or self.n
        cut = cut if card.stage else self.n
        part = {of: 1 if how == "replicated" else cut for of, how in card.held.items()}
        near = self.near if 0 < self.near < cut else cut
        gathers, uses = 0, 2 * len(self.trained)  # of a layer's, every other is for backward
        memory = machine.host_memory if card.copied["to_host"][1] else machine.memory
        leaves = [(size, 1) for size in self.trained]
        if self.bucket and not card.prefetches:
            leaves = closed(self.trained, self.bucket)

        def ms(what, l):
            nonlocal gathers
            size = self.trained[l] if l is not None else 0
            if what in ("forward", "backward"):
                done = (self.forward if what == "forward" else self.backward)[l]
                return done / machine.flops / 1e9 if machine.flops else 0
            if what == "sums":
                return machine.ring(16 * self.n, self.n)
            if what == "all_gather" and card.prefetches:
                gathers, among = gathers + 1, near if gathers % uses >= uses // 2 else cut
                return machine.ring(self.width * self.gathered[l], among)
            if what == "all_gather" and card.sent["update"][0]:
                return machine.ring(self.width * size, cut)
            if what in ("all_gather", "reduce_scatter"):
                elements, messages = leaves[l]
                return machine.ring(self.sent * elements, cut, messages=messages)
            if what == "all_reduce":  # one rank of each group
                return 2 * machine.ring(self.sent * size / cut, self.n // cut,
                                        max(1, machine.node // cut)) * (cut < self.n)
            if what == "to_device":
                of = self.gathered[l] if card.copied["to_device"][1] else size
                return over(self.width * of / cut, machine.bus)
            if what == "to_host":
                return over(self.width * size / cut, machine.bus)
            if what in ("adam", "read", "write"):
                of = size / part["optimizer"] / (self.pieces[l] if self.pieces else 1)
                if what == "adam":
                    return over(self.adam * of,
                                machine.host_memory if card.offloads else machine.memory)
                return over(self.state * of, machine.disk)
            if what in ("divide", "squared_norm", "add"):
                moves = {"divide": 2 * (self.accumulate > 1), "squared_norm": 1, "add": 3}[what]
                return over(moves * self.width * size / part["gradients"], memory)
            return 0
        return lambda what, l, step: [ms(what, l)]

    def figures(self, machine, prefetch=1, beside=False, ends=False):
        """ms of a step, its computation, and what of its messages and the like is exposed, hidden.
        Of many micro-batches three are played: each further one takes as long as the third."""
        def of(count):
            step, found = play(self.card, len(self.trained), self.times(machine), 1, count,
                               prefetch, beside, self.pieces, ends=ends).figures()
            return {"step": step, "computation": found.pop("computation")} | {
                f"{name} {which}": ms for name, both in found.items()
                for which, ms in zip(("exposed", "hidden"), both)}
        few, more = of(min(self.accumulate, 3)), max(0, self.accumulate - 3)
        before = of(2) if more else few
        return {name: ms + more * (ms - before.get(name, 0)) for name, ms in few.items()}
