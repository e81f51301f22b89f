# SPDX-License-Identifier: MIT
"""What the tests on ranks said, as one screen: which hold, which do not, and by how much."""
import re
import textwrap
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

WIDTH = 80
# tests/ranks/ranks_main.cpp prints a failing rank's report under its name.
REPORT = re.compile(r"^---- rank (\d+) of \d+\n(.*?</doctest>)", re.MULTILINE | re.DOTALL)
ENDED = re.compile(r"^rank \d+/\d+.*?: (.*)$", re.MULTILINE)  # as common/run/failure.hpp says it
# The same bytes, looked at in other ways.
VARIANT = re.compile(r" (held|reserved|at the peak|after .*)$")
NUMBERS = re.compile(r" predicted | expected ")
COUNT = re.compile(r"^(\d+) test cases on \d+ ranks: (passed|failed)$", re.MULTILINE)


@dataclass
class Case:
    """A test case that fails: on which numbers of ranks, and its different findings."""
    name: str
    ranks: list = field(default_factory=list)
    findings: dict = field(default_factory=dict)  # by what they are about: the first of each


@dataclass
class Results:
    """Of all runs of the tests."""
    ranks: list
    cases: dict = field(default_factory=dict)  # those that fail, by name
    order: list = field(default_factory=list)  # names of all
    ended: dict = field(default_factory=dict)  # with which words jobs broke off, on which ranks
    count: int = 0

    @property
    def hold(self):
        return not self.cases and not self.ended


def text_of(element, name):
    return " ".join(element.findtext(name, "").split())


def finding(element):
    """What a failed assertion is about, without its numbers, and a line that has them."""
    *where, what = [" ".join(info.text.split()) for info in element.findall("Info")] or [""]
    expected, got = text_of(element, "Original"), text_of(element, "Expanded")
    if element.tag == "Message":
        line, where = text_of(element, "Text"), [*where, what]
    elif expected == "counted == predicted":  # then the last info says of what
        line = "{}: {} counted, {} predicted".format(what, *got.split(" == "))
    elif ", expected " in what:
        line = what
    else:
        thrown = text_of(element, "Exception").strip('"')
        line, where = thrown or f"{expected}: {got}", [*where, what]
    about = re.sub(r"[\d.]+|nan|inf", "", line.partition(":")[0].partition(",")[0])
    about = VARIANT.sub("", about)
    return about, line, list(filter(None, where))


def add_report(results, ranks, xml):
    tests = list(ET.fromstring(xml).iter("TestCase"))
    results.order = [test.get("name") for test in tests]
    for test in tests:
        failed = [each for each in test if each.tag in ("Expression", "Message")]
        if not failed:
            continue
        case = results.cases.setdefault(test.get("name"), Case(test.get("name")))
        case.ranks += [ranks] * (ranks not in case.ranks)
        for element in failed:
            about, line, where = finding(element)
            on = f"{ranks} rank{'s' * (ranks > 1)}"
            case.findings.setdefault(about, f"{line} ({', '.join([on, *where])})")


def add_run(results, ranks, printed, code, patience):
    """printed: all that a job of so many ranks said; code: its exit code, None if no end came."""
    unread = False
    for _, xml in REPORT.findall(printed):
        try:
            add_report(results, ranks, xml)
        except ET.ParseError:  # something else was printed into it
            unread = True
    count, said = COUNT.search(printed), ENDED.search(printed)
    if count:
        results.count = int(count[1])
    told = any(ranks in case.ranks for case in results.cases.values())
    if count and not unread and (told or code == 0):
        return
    own = REPORT.sub("", printed).strip().splitlines()
    words = said[1] if said else f"no end came in {patience} s" if code is None else \
        f"ended with exit code {code}: {own[-1] if own else 'nothing was said'}"
    if "SIG" in words:
        words += ": memory is written where nothing lies; are sizes and dtypes right?"
    results.ended.setdefault(words, []).append(ranks)


def folded(text, indent, most):
    """At most so many lines of the screen; what does not fit ends in three dots."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ",
                         break_on_hyphens=False, max_lines=most, placeholder=" ...")


def columns(ranks, of):
    return " ".join(of(n) for n in ranks)


def grouped(cases):
    """Cases that say the same of different runs, "the run equals the replay: ...", as one."""
    groups = {}
    for case in cases:
        groups.setdefault(case.name.partition(":")[0], []).append(case)
    for same in groups.values():
        ranks = [n for case in same for n in case.ranks]
        findings = {about: line for case in reversed(same) for about, line in case.findings.items()}
        more = f" (and {len(same) - 1} more such)" * (len(same) > 1)
        yield Case(same[0].name + more, ranks, findings)


def screen(results, room):
    """At most `room` lines."""
    lines = []
    for words, ranks in results.ended.items():
        lines += folded(f"Broken off on {', '.join(map(str, ranks))} ranks: {words}", "", 5)
    cases = sorted(results.cases.values(), key=lambda case: results.order.index(case.name))
    last = [f"Test cases that hold: {results.count - len(cases)} of {results.count}."]
    last *= bool(results.count and cases)
    cases = list(grouped(cases))
    if cases:
        lines.append(f"{columns(results.ranks, str)}  ranks; x: fails")
    spare = room - len(lines) - len(cases) - len(last)
    # The first case, of bytes and elements, says three things before the others say their first.
    turns = sorted((depth - 2 * (number == 0), number, line) for number, case in enumerate(cases)
                   for depth, line in enumerate(case.findings.values())
                   if depth == 0 or NUMBERS.search(line))
    shown = {number: [] for number in range(len(cases))}
    for _, number, line in turns:
        part = folded(line, " " * 7, 1 if shown[number] else 2)
        if len(part) <= spare:
            shown[number] += part
            spare -= len(part)
    for number, case in enumerate(cases):
        mark = columns(results.ranks, lambda n: "x" if n in case.ranks else ".")
        lines += [f"{mark}  {case.name}"[:WIDTH], *shown[number]]
    return (lines + last)[:room]
