# SPDX-License-Identifier: MIT
"""Has small recorded runs, which the tests of the scripts read instead of running a program.

`recorded.py BUILD MPIEXEC` records them anew: the logs of a demo of 4 steps on 2 ranks, each a line
of recorded.jsonl, and a trace of 08 with the log of its run. It leaves out paths of the machine,
events of rank 1, and what no script reads."""
import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE, TRACE = HERE / "recorded.jsonl", HERE / "recorded.trace.json"
LOGS = {Path(log[0]["run"]["options"]["log"]).stem: log
        for log in map(json.loads, FILE.read_text().splitlines() if FILE.exists() else ())}


def recorded(name):
    """Returns a log's lines (run, steps, summary), which the caller may change."""
    return copy.deepcopy(LOGS[name])


def text_of(lines):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def changed(lines, *names):
    """Changes the value under these names in the last line's summary: by 1, or to another text."""
    *above, last = names
    part = lines[-1]["summary"]
    for name in above:
        part = part[name]
    part[last] = "cc" if isinstance(part[last], str) else part[last] + 1
    return lines


def record(build, mpiexec):
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "tools/demo.py", "--build", build, "--mpiexec", mpiexec, "--ranks",
                        "2", "--steps", "4", "--out", folder], check=True)
        trace, program = f"{folder}/trace", f"{build}/08_infinity/08_infinity"
        subprocess.run([mpiexec, "-n", "2", program, *"--task mlp --layers 2 --width 16".split(),
                        "--steps", "3", "--trace", trace, "--log", f"{folder}/traced.jsonl"],
                       check=True)
        read = json.loads(Path(trace).read_text())
        events = [event for event in read["traceEvents"] if event["pid"] == 0]
        for event in events:
            copied = event.get("cat") == "bus"  # recording.py joins a piece's tensors by views
            for name in ("at", "sent") if copied else ("at", "reads", "writes", "sent"):
                event["args"].pop(name, None)
        TRACE.write_text(json.dumps(read | {"traceEvents": events}, separators=(",", ":")) + "\n")
        for path in sorted(Path(folder).glob("*.jsonl")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            text += text_of([lines]).replace(f"{folder}/", "").replace(f"{ROOT}/", "")
    FILE.write_text(text)


if __name__ == "__main__":
    record(*sys.argv[1:])
