#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Runs the programs, writes the numbers it measured to notes/measured, and renders the pages.
render.py says what is in notes/measured. Programs must be built; the table overlap builds a copy.
Nothing is written when a run fails, or when a count of bytes or elements differs from its formula.
The logs of the runs are kept in build/measure."""
import argparse
import json
import re
import shlex
from datetime import date
from pathlib import Path

import render
from figures import FIGURES
from recording import Trace
from runs import (CHAPTERS, Failure, Programs, finish, first_line, machine, wrong_bytes,
                  wrong_traffic)
from tables import TABLES, gpu_results
from trainers import ROOT


class Measured(Programs):
    """The built programs. Each command is run only once."""

    def __init__(self, build, mpiexec, torch=None):
        super().__init__(build, mpiexec, build / "measure")
        self.torch = torch  # the Python that has PyTorch, or None
        self.done = {}  # {the command that is shown: its Run}
        self.used = []  # runs that the present block has asked for

    def of_build(self, build):
        """Returns the programs of another build; their runs, too, are added to `used`."""
        other = Measured(build, shlex.join(self.mpiexec), self.torch)
        other.used = self.used
        return other

    def run(self, chapter, ranks, *arguments, dtype=None):
        """Returns the executed run; raises a Failure if a count differs from its formula."""
        log = f"{len(self.done):02}_{chapter}.jsonl"
        run = self.prepare(log, chapter, ranks, *arguments, dtype=dtype)
        if run.shown not in self.done:
            print(f"  {run.shown}", flush=True)
            run.execute()
            for problem in wrong_bytes([run]) + wrong_traffic([run]):
                raise Failure(f"{problem}; the command was: {shlex.join(run.command)}")
        self.used.append(self.done.setdefault(run.shown, run))
        return self.used[-1]

    def traced(self, chapter, ranks, *arguments):
        """Returns (the trace of a run, the run)."""
        path = self.logs / f"{chapter}.trace.json"
        run = self.run(chapter, ranks, *arguments, "--trace", path)
        return Trace(path), run


class Measuring(render.Block):
    """A block whose numbers are measured, not read."""

    def __init__(self, name, programs, blocks):
        super().__init__(name, blocks)
        self.programs, self.found = programs, {}

    def get(self, what, measure):
        if what not in self.found:
            # The numbers become what will be read from the file: a tuple becomes a list.
            self.found[what] = json.loads(json.dumps(measure(self.programs)))
        return self.found[what]


def when(runs):
    """Returns, as text, the runs' ranks and MPI, the day, the commit, and "with changes" if any."""
    where = ""
    if ranks := sorted({run.ranks for run in runs if run.ranks > 1}):
        mpi = sorted({run.info["mpi"] for run in runs} - {None})
        where = f"{' and '.join(map(str, ranks))} ranks, {', '.join(mpi)}; "
    git = ["git", "-C", str(ROOT)]
    commit = first_line(*git, "rev-parse", "--short", "HEAD") or "unknown"
    code = ["common", "meson.build", *(f"{chapter}/*.[ch]pp" for chapter in CHAPTERS)]
    if first_line(*git, "status", "--porcelain", "--", *code):
        commit += " with changes"
    return f"{where}{date.today().isoformat()}, commit {commit}"


def measured(name, programs, blocks):
    """Returns a block's numbers, with the machine and the time; None if it measures nothing."""
    maker, *arguments = name.split()
    programs.used.clear()
    block = Measuring(name, programs, blocks)
    if maker == "figure":
        FIGURES[arguments[0]](block)
    else:
        TABLES[maker](block, *arguments)
    return {"machine": "{cpu}, {cores} cores".format(**machine()), "when": when(programs.used),
            "found": block.found} if block.found else None


def write(blocks):
    """Writes a file for each machine, with a line for each number or record."""
    machines, written = {}, []
    for name, block in sorted(blocks.items()):
        machines.setdefault(block["machine"], {})[name] = block
    for machine_name, own in machines.items():
        parts = []
        for name, block in own.items():
            found = ",\n".join(f"{json.dumps(what)}: {json.dumps(number, ensure_ascii=False)}"
                               for what, number in block["found"].items())
            parts.append(f'{json.dumps(name)}: {{"when": {json.dumps(block["when"])}, "found": {{\n'
                         f"{found}}}}}")
        path = render.MEASURED / (re.sub(r"\W+", "_", machine_name).lower() + ".json")
        path.parent.mkdir(exist_ok=True)
        written.append(path)
        path.write_text(f'{{"machine": {json.dumps(machine_name)}, "blocks": {{\n'
                        + ",\n".join(parts) + "}}\n", "utf-8")
    for path in {*render.MEASURED.glob("*.json")} - {*written}:
        path.unlink()  # each block in it is now measured on another machine, or on no page


def main():
    names = dict.fromkeys([*TABLES, *FIGURES])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="the figures alone, or this table or "
                        f"figure: figures, 'check 04_zero1', {', '.join(names)}")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="that of the programs")
    parser.add_argument("--mpiexec", default="mpirun", help="the launcher of the built MPI")
    parser.add_argument("--torch", metavar="PYTHON", help="one that has PyTorch; without it the "
                        "table speed is left as it is")
    parser.add_argument("--gpu", metavar="RESULTS", type=Path,
                        help="makes the table gpu alone, of what tests/gpu/fifteen_minutes.sh left")
    asked = parser.parse_args()
    if asked.only and asked.only.split()[0] not in {"figures", *names} - {"gpu"}:
        raise Failure(f"there is no table or figure {asked.only!r}", 2)
    if asked.only == "speed" and not asked.torch:
        raise Failure("the table speed needs --torch PYTHON")

    def chosen(name):
        if asked.only is None:
            return name != "gpu" and (name != "speed" or asked.torch)
        plain = name.removeprefix("figure ")
        return asked.only in (plain, plain.split()[0]) or \
            (asked.only == "figures" and name.startswith("figure "))

    blocks = render.load()
    every = [name for page in render.PAGES for name in render.blocks_of(page)]
    every += [f"figure {name}" for name in FIGURES]
    if asked.gpu:
        name, at, found = gpu_results(asked.gpu.read_text("utf-8"))
        blocks["gpu"] = {"machine": name, "when": at, "found": found}
    else:
        programs = Measured(asked.build.resolve(), asked.mpiexec, asked.torch)
        for name in every:
            if chosen(name):
                print(name, flush=True)
                if block := measured(name, programs, blocks):
                    blocks[name] = block
    write({name: block for name, block in blocks.items() if name in every})
    render.main()


if __name__ == "__main__":
    finish(main, "measure.py: ")
