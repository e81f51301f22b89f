# SPDX-License-Identifier: MIT
"""Numbers as people write them."""
import json
import re
from decimal import Decimal, InvalidOperation

from runs import ROOT, Failure, spaced

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
