# SPDX-License-Identifier: MIT
"""Plays a plan's schedule by its card, without its program, and says how long a step takes.

A trainer puts tasks on streams in its program's order, and each waits only for tasks that were put
there before. So one pass in that order gives all times: a task begins when its stream is free and
all that it waits for has ended. The waits are those of notes/streams.md."""
from collections import defaultdict
from dataclasses import dataclass

from spans import shares

SORTS = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce", "sums"), "collective") | \
    dict.fromkeys(("to_host", "to_device", "read", "write"), "bus") | {"copy": "copy"}
BETWEEN = "between groups"  # a stream of its own, because these messages use other ranks' wires
SLOTS = 2  # layers whose gradients the device has room for
LANDINGS = 2  # layers whose gradients the host has room for before it adds them
HOST_CORES = "host cores"


class Streams:
    """The streams of some ranks. An event, the end of a task, is a list: its ms on each rank."""

    def __init__(self, ranks=1):
        self.ends = defaultdict(lambda: [0.0] * ranks)  # by stream: the event of its last task
        self.host = [0.0] * ranks  # no task begins before this event
        self.slices, self.syncs, self.step = [[] for _ in range(ranks)], [], 0

    def run(self, stream, what, layer, times, *after):
        """Puts a task on a stream, after the events `after`; returns its event. times: its ms on
        each rank; if none, it leaves no slice. A collective runs when its last rank has begun."""
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
        """(ms of a step, from one norm to the next; what spans.shares() says of its slices)."""
        begin, end = self.syncs[step - 1][rank], self.syncs[step][rank]
        return end - begin, shares(self.slices[rank], 1e3 * begin, 1e3 * end)


def play(card, layers, times, ranks=1, accumulate=1, prefetch=1, beside=False, pieces=(), steps=2,
         ends=False):
    """Plays `steps` steps of a card; returns the Streams. times(what, layer, step): ms of a task,
    by rank; it is asked in each stream's order. beside: where a card has no window, messages pass
    beside backward and the next forward, as with DDP and Megatron-LM. ends: a step waits for its
    update, and the next forward hides nothing of that, as in DeepSpeed's step(). pieces: how many
    pieces each layer's state on a disk has."""
    streams, ready, written = Streams(ranks), {}, {}
    window = card.prefetches
    link = "communication" if window or beside else "compute"
    # stays: a rank's parameters lie with the host. comes: gradients come down in each micro-batch.
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
        # Events of this step, in order: of layers filled and used, of gradients sent and added.
        filled, used, sent, added = [], [], [], []
        there, slots = [], card.borrowed.get("pieces", 0)
        run("compute", "clear", None)
        read_until(slots)
        for use, (phase, l, micro) in enumerate(uses):
            last = micro + 1 == accumulate
            if phase == "forward" and l == 0:
                run("compute", "load", None)
            for _, ahead, _ in uses[len(filled):use + prefetch + 1] if window else ():
                free = used[len(filled) - prefetch - 1] if len(filled) > prefetch else None
                if stays:
                    free = run(up, "to_device", ahead, free, ready.get(ahead))
                else:
                    free = run("communication", "copy", ahead, free, ready.get(ahead))
                filled.append(run("communication", "all_gather", ahead, free))
            updated = ready.get(l) if beside else None
            whole = filled[use] if window else updated
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
        summed = BETWEEN
        if card.offloads:
            summed = HOST_CORES if comes else down
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
            if card.place("parameters") == "host" and not card.offloads:
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
    """The speeds that a rank attains, which are less than what is sold. 0: it takes no time."""
    flops: float = 0  # 10^12 operations/s
    memory: float = 0  # GB/s of the device's memory
    host_memory: float = 0  # GB/s of its share of the host's memory
    bus: float = 0  # GB/s, each way
    disk: float = 0  # GB/s, each way
    link: float = 0  # Gbit/s of a rank to other nodes
    latency: float = 0  # microseconds of a message there
    node: int = 1  # ranks in a node
    node_link: float = 0  # Gbit/s of a rank within it
    node_latency: float = 0

    def ring(self, size, n, node=None, messages=1):
        """ms of an all-gather or a reduce-scatter of `size` bytes over n ranks, `node` of them in a
        node, in so many messages. A message takes N - 1 hops, one after the other. One hop fewer
        than there are nodes is between two nodes. (NCCL's src/graph/tuning.cc counts a ring's steps
        so.) Within its node a rank's wire carries all bytes. A node has as many wires to others as
        ranks of the ring, each for its share. With one rank a node this is the programs' link: (N -
        1) (latency + bytes / (N bandwidth))."""
        node = min(node or self.node, n)
        out = -(-n // node) - 1
        wires = ((out, self.link * node, self.latency),
                 (n - 1 - out, self.node_link, self.node_latency))
        carried = (8e-6 * size * (n - 1) / n / speed for hops, speed, _ in wires if hops and speed)
        return max(carried, default=0) + messages * sum(
            hops * late for hops, _, late in wires) / 1e3


def closed(sizes, bucket):
    """By layer, (elements, messages) that leave after its backward. Buckets of so many elements
    fill in the reverse order of the layers, and the last one leaves as full as it is."""
    rest, leaves = 0, []
    for l in range(len(sizes))[::-1]:
        rest += sizes[l]
        count = rest // bucket if l else -(-rest // bucket)
        leaves.append((min(rest, count * bucket), count))
        rest -= leaves[-1][0]
    return leaves[::-1]


def over(size, speed):
    """Milliseconds of so many bytes at so many GB/s; 0 if no speed is given."""
    return size / speed / 1e6 if speed else 0


@dataclass
class Work:
    """What a step has to do, from which durations follow. Lists go by layer."""
    card: object
    n: int  # ranks
    gathered: list  # elements, padded
    trained: list  # those of them that are trained
    forward: list  # operations of a micro-batch
    backward: list
    accumulate: int = 1  # micro-batches
    width: int = 2  # bytes of an element
    sent: int = 2  # bytes of an element of a gradient that is sent
    adam: int = 28  # bytes that Adam reads and writes of an element
    state: int = 12  # bytes of an element on a disk
    pieces: tuple = ()  # of each layer's state on a disk
    shards: int = 0  # ranks among which a layer is cut; other such groups have the same (0: all)
    near: int = 0  # ranks among which backward gathers (ZeRO++'s hpZ; 0: as forward)
    bucket: int = 0  # elements of gradients that are sent at a time, without a window (0: a layer)

    def times(self, machine):
        """The times() of one rank, as all are equal. A norm reads, a division also writes."""
        card = self.card
        cut = self.shards or self.n if card.stage else self.n
        part = {kind: 1 if how == "replicated" else cut for kind, how in card.held.items()}
        near = self.near if 0 < self.near < cut else cut
        gathers, uses = 0, 2 * len(self.trained)  # in a micro-batch: forward's, then backward's
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
                among = near if gathers % uses >= uses // 2 else cut
                gathers += 1
                return machine.ring(self.width * self.gathered[l], among)
            if what == "all_gather" and card.sent["update"][0]:
                return machine.ring(self.width * size, cut)
            if what in ("all_gather", "reduce_scatter"):
                elements, messages = leaves[l]
                return machine.ring(self.sent * elements, cut, messages=messages)
            if what == "all_reduce":  # among one rank of each group
                if cut == self.n:
                    return 0
                return 2 * machine.ring(self.sent * size / cut, self.n // cut,
                                        max(1, machine.node // cut))
            if what == "to_device":
                elements = self.gathered[l] if card.copied["to_device"][1] else size
                return over(self.width * elements / cut, machine.bus)
            if what == "to_host":
                return over(self.width * size / cut, machine.bus)
            if what in ("adam", "read", "write"):
                elements = size / part["optimizer"] / (self.pieces[l] if self.pieces else 1)
                if what == "adam":
                    return over(self.adam * elements,
                                machine.host_memory if card.offloads else machine.memory)
                return over(self.state * elements, machine.disk)
            if what in ("divide", "squared_norm", "add"):
                moves = {"divide": 2, "squared_norm": 1, "add": 3}[what]
                moves = 0 if what == "divide" and self.accumulate == 1 else moves
                return over(moves * self.width * size / part["gradients"], memory)
            return 0
        return lambda what, l, step: [ms(what, l)]

    def figures(self, machine, prefetch=1, beside=False, ends=False):
        """{figure: ms} of a step. At most three micro-batches are played, because each further one
        takes as long as the third."""
        def played(count):
            step, shares = play(self.card, len(self.trained), self.times(machine), 1, count,
                                prefetch, beside, self.pieces, ends=ends).figures()
            return {"step": step, "computation": shares.pop("computation")} | {
                f"{name} {which}": ms for name, both in shares.items()
                for which, ms in zip(("exposed", "hidden"), both)}
        few, more = played(min(self.accumulate, 3)), max(0, self.accumulate - 3)
        before = played(2) if more else few
        return {name: ms + more * (ms - before.get(name, 0)) for name, ms in few.items()}
