# SPDX-License-Identifier: MIT
"""Adds up what Meson noted of tests, pass by pass: LOG|CODE on a line of standard input, how the
names of its logs begin, and the code with which it ended, or why it was left out.

What failed is named, what was skipped says why, as the last line of its output does. The last line
here is `N passed, N failed, N skipped`. A pass that ran nothing, or with a code that no test
explains, has failed.
"""
import json
import sys
from collections import Counter
from pathlib import Path
from textwrap import fill

from runs import finish

SKIPPED = 77  # the exit code by which Meson knows it
LATE = "124"  # by which `timeout` says that it ended something
KINDS = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}  # other words are failures


def results_of(log, code):
    """(kind, test, why) of each."""
    kinds = KINDS | ({"INTERRUPT": "skipped"} if code == LATE else {})
    for path in log.parent.glob(f"{log.name}*.json"):
        for test in map(json.loads, path.read_text().splitlines()):
            kind, name = kinds.get(test["result"], "failed"), test["name"].rpartition(" / ")[2]
            said = test.get("stdout", "").strip().splitlines() or ["see above"]
            yield kind, name, said[-1] if kind == "skipped" else "see above"
    if code == LATE:
        yield "skipped", "the rest", "the budget was spent"
    elif not code.isdigit():
        yield "skipped", "all of it", code


def main():
    total = Counter()
    for line in sys.stdin:
        log, code = line.rstrip("\n").split("|")
        results = [*results_of(Path(log), code)]
        if not results or code.strip("0") and all(kind == "passed" for kind, _, _ in results):
            results.append(("failed", "the pass itself", f"exit code {code}"))
        total.update(kind for kind, _, _ in results)
        for kind, why in sorted({(kind, why) for kind, _, why in results if kind != "passed"}):
            names = [name for own, name, reason in results if (own, reason) == (kind, why)]
            if kind == "skipped" and len(names) > 3:
                names = [f"{len(names)} tests"]
            print(fill(f"{kind} in {Path(log).name}: {'; '.join(names)}: {why}", 80,
                       subsequent_indent="  "))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0 if total["passed"] else SKIPPED


if __name__ == "__main__":
    finish(main, "tutorial: test: ")
