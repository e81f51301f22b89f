#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`./tutorial exercise` behind its shell: where it starts, what it says, its hints.

--all: every chapter's own trainer holds, the one before it does not, by numbers; a rank that leaves
a collective out breaks the job off. Without it nothing is run but what does not compile.
"""
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from programs import CHAPTERS, ROOT, options_of  # noqa: E402
import findings_of_tests as found  # noqa: E402
import trainers  # noqa: E402

PAIRS = list(zip(CHAPTERS, CHAPTERS[1:]))
# What the untouched trainer of the chapter before is told first: it does not compile, writes past
# a tensor, or counts what the card does not predict.
FIRST = {"02": "no matching function for call to", "03": "Broken off on 1, 2, 3 ranks",
         "04": "bytes of optimizer held: 512 counted, 256 predicted",
         "05": "bytes of gradients reserved: 224 counted, 448 predicted",
         "06": "elements sent in forward: 0 counted, 96 predicted",
         "07": "bytes copied down: 0 counted, 672 predicted"}
REPORT = """---- rank {rank} of {ranks}
<?xml version="1.0" encoding="UTF-8"?>
<doctest><TestSuite>
<TestCase name="held" filename="a.cpp"><OverallResultsAsserts/></TestCase>
<TestCase name="bytes" filename="a.cpp">
<Expression type="CHECK"><Original>counted == predicted</Original><Expanded>{got} == 64</Expanded>
<Info>mlp fp32</Info><Info>bytes of gradients held</Info></Expression>
<Expression type="CHECK"><Original>counted == predicted</Original><Expanded>{got} == 64</Expanded>
<Info>mlp fp32</Info><Info>bytes of gradients at the peak</Info></Expression>
</TestCase>
<TestCase name="bits" filename="b.cpp">
<Message type="ERROR"><Text>loss of step number 2: 4.5 (40900000), expected 4 (40800000)</Text>
<Info>dtype fp32</Info></Message></TestCase>
</TestSuite></doctest>
"""


class Trial:
    """An exercise in a folder of its own, beside any that lies in the build."""

    def __init__(self, options, folder, before, after):
        self.trainer = folder / after[:2] / after / "trainer.hpp"
        self.before, self.after = before, after
        self.place = os.path.relpath(folder)  # as it is told; a reader's is build/exercise
        self.command = [sys.executable, ROOT / "notes/scripts/exercise.py", before, after,
                        "--build", options.build, "--mpiexec", options.mpiexec, "--out", folder]

    def __call__(self, how):
        return subprocess.run([*self.command, how], text=True, capture_output=True,
                              stdin=subprocess.DEVNULL)

    def write(self, text):
        self.trainer.parent.mkdir(parents=True, exist_ok=True)
        self.trainer.write_text(text)

    def once(self, code, *words):
        done = self("--once")
        lines = done.stdout.replace(self.place, "build/exercise").splitlines()
        wide = [line for line in lines if len(line) > 80]
        missing = [word for word in words if word not in " ".join(done.stdout.split())]
        if done.returncode != code or missing or len(lines) > 24 or wide:
            yield f"{self.after}: not {code} with {words} on a screen: {done}"


def screens():
    """Of made-up reports: what fails, where, by how much; and what has broken off."""
    results = found.Results([1, 2])
    found.add_run(results, 1, "3 test cases on 1 ranks: passed\n", 0, 9)
    if not results.hold or results.count != 3:
        yield f"a run that passes: {results}"
    found.add_run(results, 2, REPORT.format(rank=0, ranks=2, got=128)
                  + REPORT.format(rank=1, ranks=2, got=96)
                  + "3 test cases on 2 ranks: failed\n", 1, 9)
    expected = ["1 2  ranks; x: fails", ". x  bytes",
                "       bytes of gradients held: 128 counted, 64 predicted (2 ranks, mlp fp32)",
                ". x  bits",
                "       loss of step number 2: 4.5 (40900000), expected 4 (40800000) (2 ranks,",
                "         dtype fp32)", "Test cases that hold: 1 of 3."]
    if results.hold or found.screen(results, 20) != expected:
        yield f"a screen: {found.screen(results, 20)}"
    if len(found.screen(results, 4)) != 4:
        yield "a low screen is too high"
    broken = REPORT.format(rank=0, ranks=2, got=128).replace("<TestCase", "mine <", 1)
    for said, code, told in (
            ("rank 1/2: all-gather has waited\n", 4, "Broken off on 2 ranks: all-gather has"),
            ("rank 0/2 on a: exception: SIGABRT\n", 134, "memory is written"),
            ("", None, "no end came in 9 s"),
            ("There are not enough slots\n", 1, "exit code 1: There are not enough slots"),
            ("3 test cases on 2 ranks: failed\n", 1, "exit code 1: 3 test cases on 2 ranks"),
            (broken + "3 test cases on 2 ranks: failed\n", 1, "exit code 1: 3 test cases")):
        results = found.Results([2])
        found.add_run(results, 2, said, code, 9)
        if results.hold or told not in " ".join(found.screen(results, 20)):
            yield f"after {said!r}: {found.screen(results, 20)}"


def beginnings(options, folder):
    """The body is the chapter's before, the card the chapter's; what is written there stays. Hints
    come one by one, then the diff."""
    for before, after in PAIRS:
        trial = Trial(options, folder, before, after)
        hints = []
        while not hints or not hints[-1].startswith("From your trainer"):
            hints.append(trial("--hint").stdout)
            if len(hints) > 6:
                break
        text, new, old = trial.trainer.read_text(), *map(trainers.source, (after, before))
        lines = trainers.changes(text, new, after).count
        if trainers.card(text) != trainers.card(new) or not text.endswith(
                old.partition(trainers.card(old))[2]):
            yield f"{after} does not begin with {before}'s trainer under its own card"
        numbered = all(hint.startswith(f"Hint {i} of {len(hints) - 1}: ")
                       for i, hint in enumerate(hints[:-1], 1))
        diff = f": {lines} lines\n@@ {after}" in hints[-1]
        if not (4 <= len(hints) <= 6 and numbered and lines and diff):
            yield f"{after}: hints: {hints}"
        trial.write(new)
        if "0 lines" not in trial("--hint").stdout or trial.trainer.read_text() != new:
            yield f"{after}: what was written there does not stay"


def refused(options, folder):
    trial = Trial(options, folder, *PAIRS[3])
    own = trainers.source("05_zero2")
    trial.write(own.replace("View params(int l)", "View params(int l"))
    yield from trial.once(1, "It does not compile. The first error: trainer.hpp:54: ")
    trial.write(own.replace("(g + k) / n", "g + k / n"))
    yield from trial.once(1, "The card is not 05_zero2's any more")


def watched(options, folder):
    """At every save the screen is drawn again, until Ctrl-C."""
    trial = Trial(options, folder, *PAIRS[3])
    wrong = trainers.source("05_zero2").replace("(g + k) / n", "g + k / n")
    trial.write(wrong)  # is refused before anything is compiled
    with subprocess.Popen([*trial.command, "--watch"], stdout=subprocess.PIPE, text=True) as job:
        screens = 0
        for line in job.stdout:
            if "Save to run again" in line:
                screens += 1
                if screens == 3:
                    job.send_signal(signal.SIGINT)
                    break
                trial.write(f"{wrong}// save {screens}\n")
    if (screens, job.returncode) != (3, 130):
        yield f"watching: {screens} screens, then {job.returncode}"


def whole(options, folder):
    for before, after in PAIRS:
        trial = Trial(options, folder, before, after)
        yield from trial.once(1, FIRST[after[:2]])
        trial.write(trainers.source(after))
        yield from trial.once(0, "test cases hold on 1, 2, 3 ranks", f"this is {after}")
    late = Trial(options, folder, *PAIRS[4])  # a wait that is missed where a stream is late, or not
    updated = "      window_.updated(l, compute_.record());\n"
    late.write(trainers.source("06_zero3").replace(f"{updated}    }}\n    return",
                                                   "    }\n    return"))
    yield from late.once(1, "ranks; x: fails", "expected")
    alone = Trial(options, folder, *PAIRS[3])
    alone.write(trainers.source("05_zero2").replace(
        "      comm_.all_gather(", "      if (layout_.shard_start(l) == 0) comm_.all_gather("))
    yield from alone.once(1, "Broken off on 2")


def problems(options, folder):
    yield from screens()
    yield from beginnings(options, folder / "hints")
    yield from refused(options, folder / "refused")
    yield from watched(options, folder / "watched")
    if options.all:
        yield from whole(options, folder / "all")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="exercise_") as made:
        found_wrong = list(problems(options_of(__doc__, all={"action": "store_true"}), Path(made)))
    print("\n".join(found_wrong) or "exercises say what holds and what does not")
    sys.exit(1 if found_wrong else 0)
