#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the programs, rewrites every measured table of the pages, and draws what was measured.

A table stands in a page between the comments `measured: NAME` and `end`; figures go to
notes/figures. Nothing is built, and nothing is written when a run fails or when a count of bytes
or elements differs from its formula. The logs of the runs are kept in build/measure.
"""
import argparse
import re
import shlex
import shutil
import sys
from datetime import date
from pathlib import Path

sys.dont_write_bytecode = True
import answers  # noqa: E402
import compare  # noqa: E402
import figures  # noqa: E402
import tables  # noqa: E402
from cards import ROOT  # noqa: E402
from drawn import FIGURES  # noqa: E402
from runs import CHAPTERS, Failure, Programs, first_line, machine  # noqa: E402

TABLES = tables.TABLES | answers.TABLES
LAUNCHERS = ("mpiexec.mpich", "mpiexec.hydra", "mpiexec.openmpi", "mpirun.openmpi", "mpiexec")
BLOCK = re.compile(r"^<!-- measured: (.*?) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


class Measured(Programs):
    """The built programs, each command run once."""

    def __init__(self, build, mpiexec, torch):
        super().__init__(build, mpiexec, build / "measure")
        self.torch = torch  # the Python that has PyTorch, or None
        self.done = {}  # by the command that is shown
        self.used = []  # runs that the table at hand has asked for

    def run(self, chapter, ranks, *arguments, dtype=None):
        """Every count must equal its formula: a page that says otherwise is not written."""
        run = self.prepare(f"{len(self.done):02}_{chapter}.jsonl", chapter, ranks, *arguments,
                           dtype=dtype)
        if run.shown not in self.done:
            print(f"  {run.shown}", flush=True)
            run.execute()
            problems = compare.wrong_bytes([run]) + compare.wrong_traffic([run])
            if problems:
                raise Failure(f"{problems[0]}; the command was: {shlex.join(run.command)}")
            self.done[run.shown] = run
        self.used.append(self.done[run.shown])
        return self.used[-1]


def commit():
    """The commit of the code that was measured, and whether the code has been changed since."""
    git = ["git", "-C", str(ROOT)]
    name = first_line(*git, "rev-parse", "--short", "HEAD") or "unknown"
    code = ["common", "meson.build", *(f"{chapter}/*.[ch]pp" for chapter in CHAPTERS)]
    changed = first_line(*git, "status", "--porcelain", "--", *code)
    return f"{name} with changes" if changed else name


def stamp(runs):
    """Where and when: below every table that was measured."""
    where = f"{machine()['cpu']}, {machine()['cores']} cores"
    ranks = sorted({run.ranks for run in runs if run.ranks > 1})
    if ranks:
        mpi = sorted({run.info["mpi"] for run in runs} - {None})
        where += f"; {' and '.join(map(str, ranks))} ranks, {', '.join(mpi)}"
    return f"\n\n*{where}; {date.today().isoformat()}, commit {commit()}.*"


def renewed(page, chosen, programs):
    """The page's text with its chosen blocks measured anew."""
    text, where = page.read_text(), page.relative_to(ROOT)
    if text.count("<!-- measured: ") != len(BLOCK.findall(text)):
        raise Failure(f"{where}: a `measured` comment has no `end` of its own")

    def renew(block):
        name = block[1]
        maker, *arguments = [name] if name in TABLES else name.split()
        if maker not in TABLES:
            raise Failure(f"{where}: there is no table {maker!r}; there are {', '.join(TABLES)}")
        if not chosen(name):
            return block[0]
        print(f"{where}: {name}", flush=True)
        programs.used = []
        content = TABLES[maker](programs, *arguments)
        content += stamp(programs.used) if programs.used or name == "speed" else ""
        return f"<!-- measured: {name} -->\n\n{content}\n\n<!-- end -->"

    return BLOCK.sub(renew, text)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="the figures alone, or this table or "
                        "figure: figures, 'check 04_zero1', "
                        f"{', '.join(dict.fromkeys([*TABLES, *FIGURES]))}")
    parser.add_argument("--build", type=Path, default=ROOT / "build",
                        help="where the programs are")
    parser.add_argument("--mpiexec", help="the launcher of the built MPI",
                        default=next(filter(shutil.which, LAUNCHERS), "mpiexec"))
    parser.add_argument("--torch", metavar="PYTHON", help="one that has PyTorch; without it the "
                        "table speed is left as it is")
    return parser.parse_args()


def main():
    options = parse()
    names = []  # of the tables and figures that were made

    def chosen(name, *groups):
        if options.only in (name, name.split()[0], *groups) or \
                options.only is None and (name != "speed" or options.torch):
            names.append(name)
        return name in names

    pages = sorted([*(ROOT / "notes").glob("*.md"), ROOT / "README.md",
                    *ROOT.glob("0*/README.md")])
    try:
        programs = Measured(options.build.resolve(), options.mpiexec, options.torch)
        texts = {page: renewed(page, chosen, programs) for page in pages}
        for name, draw in FIGURES.items():
            if chosen(name, "figures"):
                print(f"notes/figures/{name}.svg", flush=True)
                texts[ROOT / f"notes/figures/{name}.svg"] = figures.file(draw(programs))
    except Failure as failure:
        print(f"measure.py: {failure}\nNo page was changed.", file=sys.stderr)
        return 1
    changed = [path for path, text in texts.items()
               if not path.exists() or path.read_text() != text]
    for path in changed:
        path.write_text(texts[path])
        print(f"rewrote {path.relative_to(ROOT)}")
    if not names:
        print(f"measure.py: there is no table or figure {options.only!r}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
