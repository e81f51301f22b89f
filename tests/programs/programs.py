# SPDX-License-Identifier: MIT
"""Starts the chapters' programs, alone or on ranks, for the tests that see them from outside."""
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from runs import (CHAPTERS, COMMUNICATION, DATA, KINDS, NUMERICS, OURS, RESOURCES, USAGE, bits,
                  read_log)
from trainers import CARDS

ALONE, *ON_RANKS = CHAPTERS
MIXED = [name for name in CHAPTERS if CARDS[name]["mixed_precision"]]
WINDOW = [name for name in CHAPTERS if CARDS[name]["borrowed"]["and_prefetched"]]  # take --prefetch
OFFLOAD = CHAPTERS[6]
SKIPPED = 77  # the exit code by which Meson knows a skipped test


@dataclass
class Outcome:
    """The exit code and output of a program. The code is None if it had to be killed."""
    code: int | None
    out: str
    err: str

    def own_errors(self):
        """Returns the lines of stderr that are the program's, not the launcher's or a library's."""
        return [line for line in self.err.splitlines() if OURS.match(line)]


# Patterns: what a rank says that waits for others, WAITS.format(seconds, " for rank 1"), and what
# it says if only a GPU or a disk knows what it waits for, STANDS.format(seconds).
ALLOWS = ": a rank is stuck or gone, or an operation takes longer than --timeout allows$"
WAITS = (r"(forward|backward|update): (reduce_scatter of layer \d+|all_gather of layer \d+|sums) "
         "on stream (compute|communication) has waited {} s{}" + ALLOWS)
STANDS = ("(setup|load|forward|backward|update): since .* on stream .* began, nothing has ended "
          "for {} s" + ALLOWS)
OWN_HOST = str(ROOT / "tests/gpu/own_host.sh")
# How ranks on GPUs can communicate and add.
WAYS = {"mpi": ["--comm", "mpi"], "nccl": ["--comm", "nccl"],
        "native": ["--comm", "nccl", "--reduce", "native"]}


def own_options(chapter, dtype, prefetch):
    """Returns options for a dtype and a prefetch, as far as the chapter takes them."""
    return [*(["--dtype", dtype] if chapter in MIXED else []),
            *(["--prefetch", prefetch] if chapter in WINDOW else [])]


def options_on(way, chapter):
    """Returns options for GPUs that communicate by `way`, one of WAYS; if it is None, the CPU's."""
    if not way:
        return ["--device", "cpu"]
    return ["--device", "cuda", *(WAYS[way] if chapter != ALONE else [])]


@dataclass
class Programs:
    """The programs of one build folder and the launcher of their MPI."""
    build: Path
    mpiexec: str
    prefix: str = ""  # begins the programs' names
    emulator: str = ""  # starts programs of another kind of machine
    patience: int = 100  # seconds until a job counts as hanging

    @cached_property
    def launcher(self):
        return subprocess.run([self.mpiexec, "--version"], capture_output=True, text=True).stdout

    @property
    def loses_codes(self):
        """Whether its launcher may end with 0 although a rank was killed: MPICH's from 4.1 to 4.2.2
        (pmodels/mpich, issue 7057)."""
        return re.search(r"Version: +4\.(1|2\.[012])\b", self.launcher) is not None

    @property
    def passes_signals(self):
        """Whether its launcher passes signals on. Open MPI's sends SIGTERM instead of any signal,
        soon SIGKILL, and ends with 1."""
        return not re.search("Open MPI|OpenRTE", self.launcher)

    @property
    def is_open_mpi_4(self):
        """Whether its launcher is Open MPI 4's. A job then ends in seconds, in which a rank may say
        that it waits; a too long message overruns its buffer, and MPI_Abort may then crash."""
        return re.search(r"\((Open MPI|OpenRTE)\) 4", self.launcher) is not None

    @property
    def injector(self):
        """The injector's name for LD_PRELOAD, without its folder, whose name may have blanks.
        start() sets LD_LIBRARY_PATH to that folder."""
        return f"lib{self.prefix}injector.so"

    def command(self, ranks, chapter, *args):
        """Returns the command that runs a chapter on ranks; with 0 ranks without the launcher."""
        folder = self.build / ("tests/programs" if self.prefix else chapter)
        own = [str(folder / (self.prefix + chapter)), *map(str, args)]
        # Where there are too few GPUs, own_host.sh lets NCCL's ranks share one.
        host = [OWN_HOST] if "nccl" in args else []
        launch = [self.mpiexec, "-n", str(ranks), *host] if ranks else []
        return [*filter(None, [self.emulator]), *launch, *own]

    def unlike(self, one, other, *launch):
        """Returns the command of two ranks, each of which runs its own line of sh. (`-n 1 ONE : -n
        1 OTHER` crashes the launcher of Open MPI 5.0.7.)"""
        rank = "OMPI_COMM_WORLD_RANK" if "openmpi" in self.mpiexec else "PMI_RANK"
        return [self.mpiexec, *launch, "-n", "2", "sh", "-c",
                f"if [ ${rank} = 0 ]; then {one}; else {other}; fi"]

    def start(self, command, cwd=None, **variables):
        """Runs a command to its end, with these environment variables added."""
        # The launcher ends a job that hangs: if it were killed from here, its ranks would live on.
        # Each job has its own TMPDIR: Open MPI's jobs that start together cannot share one.
        with tempfile.TemporaryDirectory(prefix="job_") as of_this_job:
            environment = os.environ | {
                "MPIEXEC_TIMEOUT": str(self.patience), "TMPDIR": of_this_job,
                "LD_LIBRARY_PATH": f"{self.build}/tests/programs",
                "UCX_LOG_FILE": "stderr"} | variables  # UCX would print on stdout
            try:
                done = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, timeout=self.patience + 5)
            except subprocess.TimeoutExpired as late:
                return Outcome(None, text_of(late.stdout), text_of(late.stderr))
        return Outcome(done.returncode, text_of(done.stdout), text_of(done.stderr))

    def run(self, ranks, chapter, *args, cwd=None, **variables):
        return self.start(self.command(ranks, chapter, *args), cwd, **variables)

    def logged(self, ranks, chapter, *args, **variables):
        """Runs quietly. Returns the log's (run, steps, summary). The run must end with 0, or with
        NUMERICS if its last loss is not finite."""
        with tempfile.TemporaryDirectory(prefix="log_") as folder:
            log = Path(folder) / "log"
            outcome = self.run(ranks, chapter, *args, "--quiet", "--log", log, **variables)
            assert outcome.code in (0, NUMERICS), f"{chapter} {args} on {ranks}: {outcome}"
            run, steps, summary = read_log(log)
            lost = steps[-1]["loss"] is None
            assert outcome.code == (NUMERICS if lost else 0), f"{chapter} {args}: {outcome}"
            return run, steps, summary

    def why_no_gpu(self):
        """Says why programs find no GPU; "" if they find one."""
        trial = self.run(0, ALONE, "--device", "cuda", "--task", "toy", "--steps", "1", "--quiet")
        missing = "no GPU" in trial.err or "without CUDA" in trial.err
        return trial.err.strip() if missing else ""


def text_of(output):
    return (output or b"").decode(errors="replace")
