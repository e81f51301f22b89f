# SPDX-License-Identifier: MIT
"""Plays the steps of a traced run once more, with another link, bus, disk or prefetch."""
from collections import Counter, defaultdict, deque

from spans import median, shares, span
from planner.plan import PLANS
from runs import Failure
from simulate import TYPES, over, play


class Replay:
    """A traced run that is played on `machine`. Computation takes as long as it took, task by task
    and rank by rank. So do messages, copies, reads and writes, if `machine` has no speed for them.
    A message's time counts from when its last rank began it. `prefetch` is the run's own if it is
    None. If `machine` has a link, `late` ms are added to each message there, and after steps()
    `handshakes` has, for each message and rank, its ms in the trace minus those of `machine`'s
    link. Throws Failure if the trace cannot be played."""

    def __init__(self, trace, machine, prefetch=None, late=0):
        self.trace, self.machine, self.late, self.handshakes = trace, machine, late, []
        self.ranks, held = len(trace.events), trace.about["held"]
        self.disk_tensors = sum(of["place"] == "disk" for of in held)
        name = trace.about["chapter"]
        # 08 with --state host has a card of its own.
        name = "08_state_host" if name == "08_infinity" and not self.disk_tensors else name
        if name not in PLANS or self.ranks < 2 or len(trace.steps) < 2:
            raise Failure(f"{name} on {self.ranks} ranks, {len(trace.steps)} steps: a step is "
                          "played again of 02 to 08 on two ranks or more, from its second on")
        self.card = PLANS[name]
        self.width = held[0]["bytes"] / held[0]["elements"]  # bytes; held begins with parameters
        if not all(trace.events):
            raise Failure("a rank has no events in this trace: it cannot be played", 3)
        own = [event for event in trace.events[0] if timed(event)]
        updated = [event["args"]["step"] for event in own if event["task"] == "adam"]
        if not updated:
            raise Failure("all steps of this trace were skipped: it cannot be played", 3)
        last = [event for event in own if event["args"]["step"] == max(updated)]
        counts = Counter(map(key, last))
        self.accumulate = counts["forward", 0]
        layers = range(len(trace.layers)) if self.disk_tensors else ()
        self.pieces = [counts["adam", l] for l in layers]
        # 02 to 05 send on compute; if changed by notes/changing/overlap.md, on a second stream.
        self.beside = not self.card.prefetches and any(
            event["cat"] == "collective" and event["stream"] == "communication" for event in last)
        # The prefetch is how many layers were gathered before layer 0 was used, without layer 0.
        first = min(event["args"]["order"] for event in last if key(event) == ("forward", 0))
        ahead = sum(key(event)[0] == "all_gather" and event["args"]["order"] < first
                    for event in last) - 1
        self.prefetch = ahead if prefetch is None else prefetch
        # {(task, layer, traced step, from 1): by rank, [(begin, duration)]}, both in ms
        self.tasks = defaultdict(lambda: [[] for _ in trace.events])
        for rank, events in enumerate(trace.events):
            for event in sorted(filter(timed, events), key=span):
                if event["args"]["step"]:
                    step = trace.steps.index(event["args"]["step"]) + 1
                    self.tasks[*key(event), step][rank].append((event["ts"] / 1e3,
                                                                event["dur"] / 1e3))

    def times(self, what, layer, step):
        """Returns how many ms a task takes on each rank, as simulate.Schedule asks for it."""
        machine, waiting = self.machine, self.left.get((what, layer, step), [[]])
        if not any(waiting):
            return [0] * self.ranks
        if not all(waiting):
            raise Failure(f"{what} of layer {layer} in step {step} ran on some ranks only: this "
                          "trace cannot be played", 3)
        count = self.disk_tensors if what in ("read", "write") else 1  # slices: one per tensor
        now = [[of.popleft() for _ in range(min(count, len(of)))] for of in waiting]
        shard = self.trace.layers[layer]["shard"] if layer is not None else 0
        if TYPES.get(what) == "collective":
            arrived = max(begin for (begin, _), in now)
            own = [max(0, begin + ms - arrived) for (begin, ms), in now]
            if not (machine.link or machine.latency):
                return own
            size = self.width * shard if layer is not None else 16  # bytes of two sums
            modelled = machine.ring(self.ranks * size, self.ranks)
            self.handshakes += [ms - modelled for ms in own]
            return [modelled + self.late] * self.ranks
        if what in ("to_host", "to_device") and machine.bus:
            return [over(self.width * shard, machine.bus)] * self.ranks
        if what in ("read", "write") and machine.disk:
            size = 4 * self.disk_tensors * shard / self.pieces[layer]
            return [over(size, machine.disk)] * self.ranks
        return [sum(ms for _, ms in each) for each in now]

    def steps(self):
        """Returns [(ms of rank 0's step, spans.shares() of it)], from the second step on."""
        self.left = {of: [*map(deque, tasks)] for of, tasks in self.tasks.items()}
        streams = play(self.card, len(self.trace.layers), self.times, self.ranks, self.accumulate,
                       self.prefetch, self.beside, self.pieces, steps=len(self.trace.steps))
        return [streams.figures(0, step) for step in range(1, len(streams.syncs))]


def timed(event):  # whether it is work on a stream: no wait, no phase, no borrowing
    return event["cat"] in ("compute", "copy", "collective", "bus")


def key(event):
    return event["task"], event["layer"]


def measured(trace):
    """Returns, for the run as it was, what Replay.steps() returns for the run as it is played. A
    step lasts from one exchange of norms to the next."""
    norms = sorted(span(event)[1] for event in trace.events[0]
                   if timed(event) and key(event)[0] == "sums")
    return [((end - begin) / 1e3, shares(trace.events[0], begin, end))
            for begin, end in zip(norms, norms[1:])]


def usual(steps):
    """Returns {what: its median in ms}, of what Replay.steps() returns: the step, its computation,
    and how long each other kind of work was exposed and hidden."""
    found = {"step": median([step for step, _ in steps]),
             "computation": median([parts["computation"] for _, parts in steps])}
    for kind in ("messages", "copies", "disk", "host cores"):
        found |= {f"{kind} {which}": median([parts.get(kind, (0, 0))[at] for _, parts in steps])
                  for at, which in enumerate(("exposed", "hidden"))}
    return found
