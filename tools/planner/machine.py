# SPDX-License-Identifier: MIT
"""Reads numbers as people write them, as 7.5e9, 80GB or 10%."""
import json
import re
from decimal import Decimal, InvalidOperation

from runs import ROOT, Failure, spaced

# NUMBERS: {an option's kind: (the least, the most, an example, {unit: factor})}. OPTIONS: the rest
# of notes/options.json, for line.py.
NUMBERS, *OPTIONS = json.loads((ROOT / "notes/options.json").read_text("utf-8"),
                               parse_float=Decimal).values()
MOST_PARAMETERS, MOST_RANKS = NUMBERS["COUNT"][1], NUMBERS["N"][1]
WHOLE = ("COUNT", "N", "NUMBER", "LAYERS")


def number(option, text, kind):
    """Returns the number in an option's text, in its kind's base unit, or raises a Failure."""
    least, most, example, units = NUMBERS[kind]
    parts = re.fullmatch(r"([\d.]+(?:E[+-]?\d{1,3})?) *([A-Z%]*)", text.strip().upper())
    if parts and kind == "SIZE" and not parts[2]:
        raise Failure(f"{option}: {text:.40} has no unit: say it as {example}", 2)
    try:
        value = Decimal(parts[1]) * units[parts[2]]
        if least <= value <= most and not (kind in WHOLE and value % 1):
            return int(value) if kind in (*WHOLE, "SIZE") else float(value)
    except (TypeError, InvalidOperation, KeyError):
        pass
    whole = "whole " if kind in WHOLE else ""
    raise Failure(f"{option}: {text:.40} is not a {whole}number from "
                  f"{spaced(least)} to {spaced(most)}, as {example}", 2)


def share(option, text, whole, kind):
    """Returns the number in a text, which may be a percentage of `whole`."""
    if "%" in text:
        return round(number(option, text, "%") * whole / 100)
    return number(option, text, kind)
