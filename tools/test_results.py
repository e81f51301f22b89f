# SPDX-License-Identifier: MIT
"""Adds up Meson's records of tests, pass by pass. A line of standard input is LOG|CODE: how the
names of a pass's logs begin, and the code with which the pass ended, or why it was left out.

It names what failed, and says why tests were skipped, which is the last line of their output. The
last line that it prints is `N passed, N failed, N skipped`. A pass that ran nothing, or that ended
with a code that no test explains, has failed."""
import json
import sys
from collections import Counter
from pathlib import Path
from textwrap import fill

from runs import finish

SKIPPED = 77  # by this exit code Meson knows a skipped test; also this script's if none passed
LATE = "124"  # the exit code of `timeout` when the time is over
KINDS = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}  # other words: it failed


def main():
    total = Counter()
    for log, code in (line.rstrip("\n").split("|") for line in sys.stdin):
        name, found = Path(log).name, {}  # {(kind, why): tests}
        for test in (json.loads(text) for path in Path(log).parent.glob(f"{name}*.json")
                     for text in path.read_text("utf-8").splitlines()):
            kind = KINDS.get(test["result"], "failed")
            said = test.get("stdout", "").strip().splitlines() if kind == "skipped" else []
            key = kind, (said or ["see above"])[-1]
            if code == LATE and test["result"] == "INTERRUPT":
                key = "skipped", "the budget was spent"
            found.setdefault(key, []).append(test["name"].rpartition(" / ")[2])
        if code == LATE or not code.isdigit():
            key = "skipped", "the budget was spent" if code == LATE else code
            found.setdefault(key, []).append("what is left")
        elif not found or code != "0" and not any(kind == "failed" for kind, _ in found):
            found["failed", f"exit code {code}"] = ["the pass itself"]
        for (kind, why), tests in found.items():
            total[kind] += len(tests)
            if kind != "passed":
                some = tests if kind == "failed" or len(tests) < 4 else [f"{len(tests)} tests"]
                print(fill(f"{kind} in {name}: {'; '.join(some)}: {why}", 80,
                           subsequent_indent="  "))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    if total["failed"]:
        return 1
    return 0 if total["passed"] else SKIPPED


if __name__ == "__main__":
    finish(main, "tutorial: test: ")
