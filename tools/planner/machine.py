# SPDX-License-Identifier: MIT
"""Numbers as people write them; and how long a step takes at a machine's speeds."""
import json
import re
from decimal import Decimal, InvalidOperation

from runs import BYTES, ROOT, Failure, spaced

# Of an option's kinds that are numbers: from, to; as an example; units. The others of that file are
# in question.py.
NUMBERS, *OPTIONS = json.loads((ROOT / "notes/options.json").read_text("utf-8"),
                               parse_float=Decimal).values()
MOST_PARAMETERS, MOST_RANKS = NUMBERS["COUNT"][1], NUMBERS["N"][1]
WHOLE = ("COUNT", "N", "NUMBER", "LAYERS")


def number(option, text, kind):
    least, most, like, units = NUMBERS[kind]
    found = re.fullmatch(r"([\d.]+(?:E[+-]?\d{1,3})?) *([A-Z%]*)", text.strip().upper())
    if found and kind == "SIZE" and not found[2]:
        raise Failure(f"{option}: {text:.40} has no unit: say it as {like}", 2)
    try:
        value = Decimal(found[1]) * units[found[2]]
        if least <= value <= most and not (kind in WHOLE and value % 1):
            return int(value) if kind in (*WHOLE, "SIZE") else float(value)
    except (TypeError, InvalidOperation, KeyError):
        pass
    raise Failure(f"{option}: {text:.40} is not a {'whole ' * (kind in WHOLE)}number from "
                  f"{spaced(least)} to {spaced(most)}, as {like}", 2)


def share(option, text, whole, kind):
    """In %, or not."""
    if "%" in text:
        return round(number(option, text, "%") * whole / 100)
    return number(option, text, kind)


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
        last = on_link(1, BYTES[q.dtype] * rank.first * (n - 1))
    copies = over(sum(rank.copied.values()), q.bus)
    update = max(over(rank.disk, q.disk), over(rank.adam, q.adam))
    forward = q.compute / q.accumulate * q.operations[0] / sum(q.operations)
    return {"communication": messages, "copies": copies, "update on the host": update,
            "step at most": messages + q.compute + copies + update,
            "step at best": max(last + max(messages - last, q.compute), copies)
            + max(0, update - forward)}
