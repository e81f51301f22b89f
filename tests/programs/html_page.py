# SPDX-License-Identifier: MIT
"""Reads a page, for the test of the comparison."""
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Its elements in order, what does not balance, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.order, self.ids, self.faults = [], [], [], []
        self.feed(text)
        self.faults += [f"<{tag}> stays open" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.order.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "data") and not value.startswith("#") or \
                    "url(" in (value or "").replace("url(#", ""):
                self.faults.append(f"<{tag}> loads {value}")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> ends another element")
