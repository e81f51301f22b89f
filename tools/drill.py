# SPDX-License-Identifier: MIT
"""Runs 05_zero2 or 08_infinity while something goes wrong, and shows what it says, how it ends.
`./tutorial drill` calls this to list the drills; with a name, to check that there is such a drill;
and with a launcher too, to run it. tests/programs/injector.cpp makes most faults, in a call of rank
1. Exit code 0: all went as DRILLS says, 1: it did not."""
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

from runs import COMMUNICATION, DATA, NUMERICS, RESOURCES, USAGE, WIDTH, Failure, finish, folded
from trial import expect_code, of_ours

KILLED = 9, 137, 0  # if a rank is killed: MPICH's launcher's code, Open MPI's, MPICH 4.1 to 4.2.2's
PROGRAM = "build/05_zero2/05_zero2 --device cpu"
SMALL = PROGRAM + " --task mlp --width 64 --layers 8"
ON_DISK = PROGRAM.replace("05_zero2", "08_infinity") + " --task mlp --width 16 --layers 8"
INJECT = "env LD_PRELOAD=build/tests/programs/libinjector.so FAULT="
SAVED = "build/drill"


def faulty(fault, words, program=SMALL):  # run() replaces MPIEXEC; injector.cpp explains `fault`
    return [f"MPIEXEC -n 2 {INJECT}'{fault}' {program} {words}"]


def by_rank(shell):  # `-n 1 ONE : -n 1 OTHER` would crash the launcher of Open MPI 5.0.7
    return [f"MPIEXEC -n 2 sh -c '{shell}'"]


# By name: what goes wrong; commands; the exit code, or codes, of each; a pattern that the last two
# lines of the last command match; a sentence on what the reader has seen.
DRILLS = {
    "dies": (
        "a rank is killed", faulty("killed 1 reduce_scatter 4 1", "--steps 5 --quiet"), [KILLED],
        "",
        "A killed rank says nothing. The launcher sees it, and ends the other one. (Code 0? The "
        "launchers of MPICH 4.1 to 4.2.2 may lose the code of a killed rank.)"),
    "stuck": (
        "a rank stands still",
        faulty("stopped 1 reduce_scatter 3 3", "--steps 5 --quiet --timeout 2"), [COMMUNICATION],
        "rank 0/2: .* has waited .* for rank 1",
        "The watchdog of the rank that waits names the step, the collective and the late rank."),
    "order": (
        "a rank leaves out a message of a collective",
        faulty("lost 1 reduce_scatter 4 1", "--steps 5 --quiet"), [COMMUNICATION],
        "every rank must call the same collectives in the same order",
        "Each message says of which collective it is, so that none is taken for another."),
    "options": (
        "ranks are given other options", by_rank(f"{PROGRAM} --lr 0.00$((1 + RANK))"),
        [USAGE], "rank 1 .*--lr 0.002", "Ranks compare their options before the first step."),
    "data": (
        "ranks read other texts of the same name",
        by_rank(f"cd 0$((1 + RANK))_* && ../{PROGRAM} --data README.md"), [DATA],
        "rank 1 reads a text of .* bytes", "Ranks compare what they have read, too."),
    "nan": (
        "a gradient is NaN", faulty("nan 1 reduce_scatter 3 4", "--steps 5"), [0],
        " 1 step skipped",
        "The sum of squares is NaN on every rank, so all skip this step, and the run goes on."),
    "bit": (
        "a bit of a message is flipped", faulty("bit 1 all_gather 2 5", "--steps 5 --quiet"),
        [NUMERICS], "the parameters of layer 2 differ between rank 0 .* and rank 1",
        "Ranks compare digests of what they should all hold, at the end (or --check-every)."),
    "full": (
        "the disk is full while saving",
        faulty("full 1 7", f"--steps 3 --quiet --save-every 2 --save {SAVED}"), [RESOURCES],
        "step 2 is not saved: rank 1/2: .*No space left on device",
        "The run goes on to its end, nothing half written stays, and the code tells of it."),
    "save": (
        "killed in the middle of a save, and gone on with",
        [*faulty("file 1 100", f"--steps 6 --quiet --save-every 2 --save {SAVED}"), f"ls {SAVED}",
         f"MPIEXEC -n 2 {SMALL} --steps 6 --resume {SAVED} --save {SAVED}"],
        [KILLED, 0, 0], "parameters 8de167132d01cad4 ",
        "The run goes on from the last whole save, to the digest that it has in one piece."),
    "disk": (
        "the disk of 08's optimizer state fails in step 3: what is left?",
        [*faulty("pread 1 160 5", f"--steps 6 --quiet --save-every 2 --save {SAVED}", ON_DISK),
         f"ls {SAVED}",
         f"MPIEXEC -n 2 {ON_DISK} --steps 6 --resume {SAVED} --save {SAVED}"],
        [RESOURCES, 0, 0], "parameters c41e43affa7f829d ",
        "The state on the disk is lost with the run, as its files have no names. What was saved "
        "after step 2 is not: the run goes on from there, on another disk by --offload-dir."),
    "signal": (
        "interrupted after 6 seconds, as by Ctrl-C",
        [f"MPIEXEC -n 2 timeout --preserve-status -s INT 6 {SMALL} --steps 1000000 --quiet "
         f"--save {SAVED}", f"ls {SAVED}"],
        [(130, 9), 0], r"step_\d+$",
        "The step was finished and saved before the run ended. (Code 9? The launcher's.)")}


def run(mpiexec, _, commands, codes, says, seen):
    """Runs a drill of DRILLS; raises a Failure if a code or the last lines are not the drill's."""
    shutil.rmtree(SAVED, ignore_errors=True)
    rank = "OMPI_COMM_WORLD_RANK" if "openmpi" in mpiexec else "PMI_RANK"
    for command, code in zip(commands, codes, strict=True):
        command = command.replace("RANK", rank)
        words = shlex.split(command.replace("MPIEXEC", shlex.quote(mpiexec)))
        # For textwrap a fault is one word: no-break spaces keep it on a line.
        shown = re.sub("FAULT='.*?'", lambda it: it[0].replace(" ", "\u00a0"), command)
        lines = textwrap.wrap(shown.replace("MPIEXEC", Path(mpiexec).name), WIDTH - 6,
                              break_on_hyphens=False)
        print("$ " + " \\\n    ".join(lines).replace("\u00a0", " "), flush=True)
        codes = code if isinstance(code, tuple) else (code,)
        ended, printed = expect_code(codes, ["env", "MPIEXEC_TIMEOUT=100", *words])
        said = (of_ours(printed) if ended else printed.splitlines())[-2:]
        for line in said or ["(nothing of its own)"]:
            print(*folded(line, "  ", "  "), sep="\n")
        print(f"exit code {ended}\n")
    if not re.search(says, "\n".join(said)):
        raise Failure(f"that was to say \"{says}\"")
    print(*folded(seen), sep="\n")


def main():
    name, mpiexec, *_ = *sys.argv[1:], "", ""
    if not name:
        print("./tutorial drill NAME makes two ranks go wrong. What will they say?\n")
        print("\n".join(f"  {name:10}{title}" for name, (title, *_) in DRILLS.items()))
    elif name not in DRILLS:
        raise Failure(f"'{name}' is not one of {', '.join(DRILLS)}", 2)
    elif mpiexec:
        run(mpiexec, *DRILLS[name])


if __name__ == "__main__":
    finish(main, "tutorial: drill: ")
