# SPDX-License-Identifier: MIT
"""The words for what happens in a step: sentences.ini, for narrate and for the page of watch."""
import configparser
from pathlib import Path

SENTENCES = configparser.ConfigParser(delimiters="=", interpolation=None)
SENTENCES.read_string(
    (Path(__file__).parent / "sentences.ini").read_text("utf-8").replace("\n  ", " "))
TITLES = {title: [{*word.split("|")} for word in title.split()] for title in SENTENCES}


def say(which, true, **values):
    """Returns the sentence `which` (short, now or why) with its {values}, for an event of which the
    words in `true` hold; "" if there is none. sentences.ini explains how a section is chosen."""
    for title, words in TITLES.items():
        if which in SENTENCES[title] and all(true & word for word in words):
            return SENTENCES[title][which].format(**values)
    return ""
