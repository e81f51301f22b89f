# SPDX-License-Identifier: MIT
"""Reads sentences.ini: the words of narrate and of watch's page for what happens in a step."""
import configparser
from pathlib import Path

SENTENCES = configparser.ConfigParser(delimiters="=", interpolation=None)
SENTENCES.read_string(
    (Path(__file__).parent / "sentences.ini").read_text("utf-8").replace("\n  ", " "))
TITLES = {title: [{*word.split("|")} for word in title.split()] for title in SENTENCES}


def say(which, true, **values):
    """Returns the sentence `which` (short, now or why) with its {values}; "" if there is none. The
    words of `true` hold for an event and choose a section, as sentences.ini explains."""
    for title, words in TITLES.items():
        if which in SENTENCES[title] and all(true & word for word in words):
            return SENTENCES[title][which].format(**values)
    return ""
