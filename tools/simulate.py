# SPDX-License-Identifier: MIT
"""Plays a plan's schedule by its card, without its program, and says how long a step takes.

A trainer puts tasks on streams in its program's order, and each waits only for tasks that were put
there before. So one pass in that order gives all times: a task begins when its stream is free and
all that it waits for has ended. The waits are those of notes/streams.md."""
from collections import defaultdict
from dataclasses import dataclass

from spans import shares

# By task: its type, which is its category in a program's trace. Other tasks are computation.
TYPES = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce", "sums"), "collective") | \
    dict.fromkeys(("to_host", "to_device", "read", "write"), "bus") | {"copy": "copy"}
BETWEEN = "between groups"  # stream of hybrid sharding's all_reduce, which has its own wires
SLOTS = 2  # the device has room for the gradients of so many layers
LANDINGS = 2  # the host has room for the gradients of so many layers that it has yet to add
HOST_CORES = "host cores"


class Streams:
    """The streams of some ranks. An event is a list: when a task ends on each rank, in ms."""

    def __init__(self, ranks=1):
        self.ends = defaultdict(lambda: [0.0] * ranks)  # by stream: the event of its last task
        self.host = [0.0] * ranks  # no task begins before this event
        self.slices = [[] for _ in range(ranks)]  # by rank: its tasks, as a trace has them
        self.syncs = []  # by step: the event that its gradients' norm is known
        self.step = 0  # the step that is played

    def run(self, stream, what, layer, times, *after):
        """Puts a task on a stream after the events `after`; returns its event. times: its ms by
        rank; 0 leaves no slice. A collective's time counts from when the last rank comes to it."""
        begins = [max(at) for at in zip(self.ends[stream], self.host, *filter(None, after))]
        type_ = TYPES.get(what, "compute")
        starts = [max(begins)] * len(begins) if type_ == "collective" else begins
        ends = self.ends[stream] = [at + ms for at, ms in zip(starts, times)]
        for slices, begin, end, ms in zip(self.slices, begins, ends, times):
            if ms:
                slices.append({"name": f"{what} of layer {layer}", "cat": type_, "stream": stream,
                               "ts": 1e3 * begin, "dur": 1e3 * (end - begin),
                               "args": {"step": self.step, "layer": layer}})
        return ends

    def figures(self, rank=0, step=-1):
        """Returns (ms from syncs[step - 1] to syncs[step], spans.shares() of slices between)."""
        begin, end = self.syncs[step - 1][rank], self.syncs[step][rank]
        return end - begin, shares(self.slices[rank], 1e3 * begin, 1e3 * end)


@dataclass
class Schedule:
    """The order in which a card's trainer puts the tasks of a step on streams, and what each task
    waits for. An event that is None has happened: what waits for it need not wait."""
    card: object
    layers: int
    times: object  # times(what, layer, step): a task's ms by rank; called in each stream's order
    ranks: int = 1
    accumulate: int = 1
    prefetch: int = 1
    # Whether a trainer without a window sends gradients beside backward, parameters beside forward.
    beside: bool = False
    pieces: tuple = ()  # by layer: into how many pieces its state on a disk is cut
    ends: bool = False  # whether a step begins only after all of the update before, as DeepSpeed's

    def __post_init__(self):
        card, layers = self.card, range(self.layers)
        self.streams = Streams(self.ranks)
        self.ready = {}  # by layer: the event that its parameters are updated
        self.written = {}  # by slot of the host's window of state: the event that it is free
        self.link = "communication" if card.prefetches or self.beside else "compute"
        # card.copied: (a step, a micro-batch). What each micro-batch copies is stored on the host.
        self.parameters_on_host = card.copied["to_device"][1]
        self.grads_on_host = card.copied["to_host"][1]
        self.up, self.down = ("copies up", "copies down") if self.parameters_on_host else (
            "copies", "copies")
        self.adams = HOST_CORES if card.offloads else "compute"
        orders = ("forward", layers), ("backward", layers[::-1])
        self.uses = [(phase, l, micro) for micro in range(self.accumulate)
                     for phase, order in orders for l in order]
        self.layer_of = [l for l in layers for _ in range(self.pieces[l])] if self.pieces else []
        self.slots = card.borrowed.get("pieces", 0)  # pieces for which the host has room

    def run(self, stream, what, layer, *after):
        times = self.times(what, layer, self.streams.step)
        return self.streams.run(stream, what, layer, times, *after)

    def play_step(self):
        # The events of this step so far: a layer is gathered, a layer is used, a gradient is sent,
        # a gradient is added on the host, a piece is read.
        self.filled, self.used, self.sent, self.added, self.pieces_read = [], [], [], [], []
        self.run("compute", "clear", None)
        self.read_until(self.slots)
        for use, (phase, l, micro) in enumerate(self.uses):
            if phase == "forward" and l == 0:
                self.run("compute", "load", None)
            self.fill_window(use)
            self.compute(use, phase, l)
            if phase == "backward":
                self.send_gradient(l, micro)
        self.add_norm()
        self.update()
        if self.ends:
            self.streams.host = [max(at) for at in zip(*self.streams.ends.values())]

    def read_until(self, end):
        """Reads the pieces of state before number `end`, each when a slot of the host is free."""
        while len(self.pieces_read) < min(end, len(self.layer_of)):
            piece = len(self.pieces_read)
            free = self.written.get(piece % self.slots)
            self.pieces_read.append(self.run("reads", "read", self.layer_of[piece], free))

    def fill_window(self, use):
        """Gathers the layers of this use and of `prefetch` later ones, each when a slot is free."""
        if not self.card.prefetches:
            return
        for _, l, _ in self.uses[len(self.filled):use + self.prefetch + 1]:
            number = len(self.filled)
            free = self.used[number - self.prefetch - 1] if number > self.prefetch else None
            stream, what = "communication", "copy"
            if self.parameters_on_host:
                stream, what = self.up, "to_device"
            free = self.run(stream, what, l, free, self.ready.get(l))
            self.filled.append(self.run("communication", "all_gather", l, free))

    def compute(self, use, phase, l):
        whole = self.ready.get(l) if self.beside else None
        if self.card.prefetches:
            whole = self.filled[use]
        slot = None  # the event that a slot for the gradient is free
        if self.reduces() and phase == "backward" and len(self.sent) >= SLOTS:
            slot = self.sent[-SLOTS]
        self.used.append(self.run("compute", phase, l, whole, slot))
        if phase == "forward" and l == self.layers - 1:
            self.run("compute", "loss", None)

    def reduces(self):
        """Returns how many collectives send a layer's gradient in each micro-batch."""
        return self.card.reductions(1) - self.card.sent["backward"][0]

    def send_gradient(self, l, micro):
        last, event = micro + 1 == self.accumulate, self.used[-1]
        count = self.reduces() + last * self.card.sent["backward"][0]
        # An all-reduce's halves take equally long. In DeepSpeed's plans both are a reduce_scatter,
        # because times() takes an all_gather there for the update's, of parameters.
        second = "reduce_scatter" if self.card.theirs else "all_gather"
        for what in ("reduce_scatter", second)[:count]:
            event = self.run(self.link, what, l, event)
        self.sent.append(event)
        if last:
            event = self.run(BETWEEN, "all_reduce", l, event)
        if self.grads_on_host:
            self.land(l, micro, event)
        elif self.card.offloads and last:
            self.run(self.down, "divide", l, event)
            self.run(self.down, "to_host", l)

    def land(self, l, micro, event):
        """Copies a gradient to the host, and adds it there to those of earlier micro-batches."""
        landing = self.added[-LANDINGS] if micro and len(self.added) >= LANDINGS else None
        self.sent[-1] = event = self.run(self.down, "to_host", l, event, landing)
        if micro:
            event = self.run(HOST_CORES, "add", l, event)
            self.added.append(event)
        if micro + 1 == self.accumulate:
            self.run(HOST_CORES, "divide", l, event)
            self.run(HOST_CORES, "squared_norm", l)

    def add_norm(self):
        """Each rank awaits its gradients, all ranks add the squares, the host awaits the sum."""
        summed = BETWEEN
        if self.card.offloads:
            summed = HOST_CORES if self.grads_on_host else self.down
        self.run("compute", "wait", None, self.streams.ends[summed])
        if self.grads_on_host:
            self.run("compute", "add_squares", None)
        for l in range(self.layers) if not self.grads_on_host else ():
            if not self.card.offloads:
                self.run("compute", "divide", l)
            self.run("compute", "squared_norm", l)
        self.streams.host = self.run("compute", "sums", None)
        self.streams.syncs.append(self.streams.host)

    def update(self):  # also copies or gathers what Adam has updated
        for piece, l in enumerate(self.layer_of):
            self.read_until(piece + self.slots)
            self.ready[l] = self.run(self.adams, "adam", l, self.pieces_read[piece])
            self.written[piece % self.slots] = self.run("writes", "write", l, self.ready[l])
        card = self.card
        for l in range(self.layers):
            if not self.layer_of:
                self.ready[l] = self.run(self.adams, "adam", l)
            if card.place("parameters") == "host" and not card.offloads:
                self.ready[l] = self.run(self.down, "to_host", l, self.ready[l])
            if card.copied["to_device"][0]:
                self.ready[l] = self.run(self.up, "to_device", l, self.ready[l])
            for _ in range(card.sent["update"][0] + card.sent["update"][1] * self.accumulate):
                self.ready[l] = self.run(self.link, "all_gather", l, self.ready[l])


def play(*arguments, steps=2, **named):
    """Makes a Schedule of the other arguments, plays `steps` steps of it, returns its Streams."""
    schedule = Schedule(*arguments, **named)
    for schedule.streams.step in range(1, steps + 1):
        schedule.play_step()
    return schedule.streams


@dataclass
class Machine:
    """The speeds that a rank attains, lower than in data sheets. What has speed 0 takes no time."""
    flops: float = 0  # 10^12 operations/s
    memory: float = 0  # GB/s of the device's memory
    host_memory: float = 0  # GB/s of the rank's share of the host's memory
    bus: float = 0  # GB/s, each way
    disk: float = 0  # GB/s, each way
    link: float = 0  # Gbit/s of a rank to other nodes
    latency: float = 0  # microseconds of a message to another node
    node: int = 1  # ranks in a node
    node_link: float = 0  # Gbit/s of a rank within its node
    node_latency: float = 0  # microseconds of a message within its node

    def ring(self, size, n, node=None, messages=1):
        """Returns the ms of an all-gather or a reduce-scatter of `size` bytes over n ranks, `node`
        of them in a node, in that many messages. A message takes n - 1 hops, one after the other,
        of which (number of nodes) - 1 go from one node to another. (NCCL's src/graph/tuning.cc
        counts so, too.) In a node a rank's wire carries all bytes. A node has one wire to the other
        nodes for each of its ranks in the ring, and these wires share the bytes. With one rank in a
        node it is the programs' link: (n - 1) (latency + bytes / (n bandwidth))."""
        node = min(node or self.node, n)
        out = -(-n // node) - 1
        wires = ((out, self.link * node, self.latency),
                 (n - 1 - out, self.node_link, self.node_latency))
        carried = (8e-6 * size * (n - 1) / n / speed for hops, speed, _ in wires if hops and speed)
        return max(carried, default=0) + messages * sum(
            hops * late for hops, _, late in wires) / 1e3


def closed(sizes, bucket):
    """Returns, by layer, (elements, messages) that leave after its backward. sizes: elements by
    layer. Buckets of `bucket` elements fill from the last layer on; layer 0 sends what is left."""
    rest, leaves = 0, []
    for l in range(len(sizes))[::-1]:
        rest += sizes[l]
        count = rest // bucket if l else -(-rest // bucket)
        leaves.append((min(rest, count * bucket), count))
        rest -= leaves[-1][0]
    return leaves[::-1]


def over(size, speed):
    """Returns the ms that `size` bytes take at `speed` GB/s; 0 if the speed is 0."""
    return size / speed / 1e6 if speed else 0


@dataclass
class Work:
    """What a step has to do, from which durations follow. Each list has an entry per layer."""
    card: object
    n: int  # ranks
    gathered: list  # all elements of the layer, padded
    trained: list  # the layer's elements that are trained, padded
    forward: list  # operations of a micro-batch
    backward: list
    accumulate: int = 1  # micro-batches
    width: int = 2  # bytes of an element
    sent: int = 2  # bytes of an element of a gradient that is sent
    adam: int = 28  # bytes that Adam reads and writes of an element
    state: int = 12  # bytes of an element's optimizer state on a disk
    pieces: tuple = ()  # by layer: into how many pieces its state on a disk is cut
    # Ranks among which a layer is cut: a group of ranks that holds a whole model (hybrid sharding).
    shards: int = 0  # 0: all ranks are one group
    near: int = 0  # ranks among which a step gathers again what it has gathered (hpZ; 0: all)
    bucket: int = 0  # elements of gradients per message, without a window (0: a layer a message)

    def times(self, machine):
        """Returns the times() of a Schedule of one rank, because the ranks' times are equal."""
        card = self.card
        cut = self.shards or self.n if card.stage else self.n
        part = {kind: 1 if how == "replicated" else cut for kind, how in card.held.items()}
        near = self.near if 0 < self.near < cut else cut
        gathers = defaultdict(int)  # so far, by step
        memory = machine.host_memory if card.copied["to_host"][1] else machine.memory
        leaves = [(size, 1) for size in self.trained]
        if self.bucket and not card.prefetches:
            leaves = closed(self.trained, self.bucket)

        def ms(what, l, step):
            size = self.trained[l] if l is not None else 0
            if what in ("forward", "backward"):
                done = (self.forward if what == "forward" else self.backward)[l]
                return done / machine.flops / 1e9 if machine.flops else 0
            if what == "sums":
                return machine.ring(16 * self.n, self.n)
            if what == "all_gather" and card.prefetches:
                gathers[step] += 1
                all_of, size = self.width * self.gathered[l], self.width * self.trained[l]
                if near == cut or gathers[step] > len(self.trained):
                    return machine.ring(all_of, near)
                return machine.ring(size, cut) + machine.ring(all_of - size, near) * (all_of > size)
            if what == "all_gather" and any(card.sent["update"]):
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
            # How often an element is read or written.
            moves = {"divide": 2, "squared_norm": 1, "add": 3}.get(what, 0)
            if what == "divide" and self.accumulate == 1:
                moves = 0
            return over(moves * self.width * size / part["gradients"], memory)
        return lambda what, l, step: [ms(what, l, step)]

    def figures(self, machine, prefetch=1, beside=False, ends=False):
        """Returns a step's {figure: ms}. It plays at most three micro-batches, because each further
        one takes as long as the third."""
        def played(count):
            step, shares = play(self.card, len(self.trained), self.times(machine), 1, count,
                                prefetch, beside, self.pieces, ends).figures()
            return {"step": step, "computation": shares.pop("computation")} | {
                f"{name} {which}": ms for name, both in shares.items()
                for which, ms in zip(("exposed", "hidden"), both)}
        few, more = played(min(self.accumulate, 3)), max(0, self.accumulate - 3)
        before = played(2) if more else few
        return {name: ms + more * (ms - before.get(name, 0)) for name, ms in few.items()}
