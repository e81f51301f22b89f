#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The CPU's bits are those of notes/digests.json, at every vector width that this machine has.

The file holds runs, and of each the last loss as printed and the digest; the pages show no others.
Its runs of 200 steps are the demo's: with --demo the demo judges them. --write makes all losses and
digests anew, and those of rows that have none yet.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from programs import ALONE, ROOT, Failure, Programs, options_of  # noqa: E402

FILE = ROOT / "notes/digests.json"
WIDTHS = ["avx512", "avx2", "neon", "plain"]  # no machine has all
DEMO = [ROOT / "notes/scripts/demo.py", "--steps", "200", "--ranks", "4"]


def steps_of(row):
    return int(re.search(r"--steps (\d+)", row["options"])[1])


def compute(programs, row):
    """The row as its run comes out here."""
    alone = row["program"] == ALONE
    _, steps, summary = programs.logged(0 if alone else row["ranks"], row["program"],
                                        *row["options"].split(), "--device", "cpu")
    return {"program": row["program"], "ranks": row["ranks"], "loss": f"{steps[-1]['loss']:.5f}",
            "digest": summary["digest"], "options": row["options"]}


def widths(programs):
    """Those that the programs take here. Throws Failure when the variable has no effect."""
    found = []
    trial = programs.command(0, ALONE, "--task", "toy", "--steps", "1", "--device", "cpu")
    for width in WIDTHS:
        outcome = programs.start(trial, ZERO_VECTORS=width)
        if outcome.code not in (0, 2):
            raise Failure(f"ZERO_VECTORS={width}: {outcome}")
        found += [width] * (outcome.code == 0)
    if "plain" not in found or found == WIDTHS:
        raise Failure(f"of {', '.join(WIDTHS)} ZERO_VECTORS takes {', '.join(found) or 'none'}")
    return found


def check_rows(programs, recorded, width, emulated):
    """Yields what differs. Without vectors, or emulated, a step takes long: few are taken."""
    most = 20 if emulated or width == "plain" else 100
    rows = [row for row in recorded
            if steps_of(row) <= most and (row["program"] == ALONE or not emulated)]
    for row in rows:
        if (here := compute(programs, row)) != row:
            yield f"{width}: computed {here}\n  recorded {row}"
    print(f"{width}: {len(rows)} runs", flush=True)
    if not rows:
        yield f"{width}: no run was compared"


def check_demo(options, width):
    with tempfile.TemporaryDirectory(prefix="demo_") as out:
        done = subprocess.run([*DEMO, "--out", out, "--build", options.build,
                               "--mpiexec", options.mpiexec], text=True, capture_output=True)
    same = "the same bits as the README's run: yes" in done.stdout.splitlines()
    print(f"{width}: {'the same bits' if same else 'other bits'}", flush=True)
    if done.returncode != 0 or not same:
        yield f"{width}: the demo ends with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}"


def check_pages(recorded):
    known = {row["digest"] for row in recorded}
    for page in [ROOT / "README.md", *ROOT.glob("notes/*.md")]:
        for digest in set(re.findall(r"\b[0-9a-f]{16}\b", page.read_text())) - known:
            yield f"{page.name} shows the digest {digest}, which notes/digests.json has not"
    shown = re.findall(r"^\| 0\d_\w+ \| \w+ \| (\S+) ", (ROOT / "README.md").read_text(), re.M)
    losses = [row["loss"] for row in recorded if steps_of(row) > 100]
    near = [abs(float(a) - float(b)) < 5.6e-5 for a, b in zip(shown, losses)]  # 4 digits and 5
    if len(shown) != len(losses) or not all(near):
        yield f"README.md's final losses are {shown}, those of notes/digests.json {losses}"


def write(rows):
    """A row is two lines, the second its options."""
    lines = [json.dumps(row) for row in rows]
    text = ",\n ".join(line.replace(', "options"', ',\n  "options"') for line in lines)
    FILE.write_text(f"[{text}]\n")


def problems(options):
    programs = Programs(options.build, options.mpiexec)
    if options.emulator:
        native = programs.command
        programs.command = lambda *words: [options.emulator, *native(*words)]
    recorded = json.loads(FILE.read_text())
    if options.write:
        write([compute(programs, row) for row in recorded])
        return
    if not options.demo:
        yield from check_pages(recorded)
    for width in widths(programs):
        os.environ["ZERO_VECTORS"] = width
        if not options.demo:
            yield from check_rows(programs, recorded, width, bool(options.emulator))
        elif width != "plain":
            yield from check_demo(options, width)


def main():
    options = options_of(
        __doc__, demo={"action": "store_true", "help": "by the whole demo"},
        write={"action": "store_true", "help": "write the file's values anew"},
        emulator={"help": "what starts the programs; then those of 01 alone"})
    try:
        found = list(problems(options))
    except Failure as failure:
        found = [str(failure)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
