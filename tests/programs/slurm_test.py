# SPDX-License-Identifier: MIT
"""notes/running.md's commands and script for Slurm work on two nodes, both of them this machine."""
import os
import re
import shutil
import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from programs import ON_RANKS, ROOT, USAGE

ZERO3, KILLED = ON_RANKS[4], 137  # the exit code of a rank that SIGKILL ended
PAGE = (ROOT / "notes/running.md").read_text()
COMMANDS = re.findall(r"(?m)^    ((?:srun|salloc) -N .*)$", PAGE)
SCRIPT = re.sub("(?m)^    ", "", re.search(r"(?m)^    #!/bin/bash\n(    .*\n)+", PAGE)[0])
SLOWER = re.sub(r"--steps \d+", "--device cpu --latency 2000 --steps $(cat steps)", SCRIPT)
TESTED = re.search(r"Slurm (\d+\.\d+)", PAGE)[1]  # other versions may want another configuration
DIGEST, = re.findall(r'"06_zero3", "ranks": 4,.*"(\w+)",\n.*"--dtype bf16 --steps 200"',
                     (ROOT / "notes/digests.json").read_text())
# bash is process 1 of a PID namespace: however the test ends, `read` ends, then bash, and then the
# kernel ends all daemons and ranks. munged needs --force for a socket in a private folder.
DAEMONS = """(umask 77; head -c 64 /dev/urandom >key)
munged -F --force --key-file=$PWD/key --socket=$PWD/munge --pid-file=$PWD/pid --seed-file=seed &
until [ -S munge ]; do sleep .1; done; slurmctld -D & slurmd -D -N n1 & slurmd -D -N n2 & read -r"""
# A job that is queued again waits for cred_expire seconds. DefaultTime is in minutes.
CONFIGURATION = """ClusterName=zero; SlurmctldHost={host}(127.0.0.1); SlurmctldPort={ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny; AuthInfo=socket={folder}/munge,cred_expire=5
SlurmUser={user}; SlurmdUser={user}; StateSaveLocation={folder}; SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid; SlurmdPidFile={folder}/%n.pid; KillWait=5
ProctrackType=proctrack/pgid; SchedulerParameters=sched_interval=1
NodeName=n[1-2] NodeAddr=127.0.0.1 Port=[{ports[1]},{ports[2]}] CPUs=2
PartitionName=all Nodes=n[1-2] Default=YES DefaultTime=2
"""


def until(holds, seconds=90):
    """Returns whether holds() becomes true within these seconds."""
    return any(holds() or time.sleep(0.1) for _ in range(10 * seconds))


@pytest.fixture(scope="module")
def slurm(programs):
    """Returns a function that runs a command in a folder with a link to the build."""
    path = os.environ["PATH"] + ":/usr/sbin"
    for tool in ("mpiexec.mpich", "munged", "slurmctld", "slurmd", "srun"):
        if not shutil.which(tool, path=path):
            pytest.skip(f"MPICH and Slurm are needed, and there is no {tool}")
    with tempfile.TemporaryDirectory(prefix="zero_") as made:
        folder, own = Path(made), {"PATH": path, "TMPDIR": made, "SLURM_CONF": f"{made}/slurm.conf"}
        (folder / "build").symlink_to(programs.build)
        free = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [(one.getsockname()[1], one.close())[0] for one in free]
        (folder / "slurm.conf").write_text(CONFIGURATION.replace("; ", "\n").format(
            host=os.uname().nodename, user=os.getuid(), folder=made, ports=ports))
        run = partial(programs.start, cwd=folder, **own)
        run.folder, myself = folder, ["--map-current-user"] if os.getuid() else []
        with (folder / "said").open("w") as said, Popen(
                ["unshare", *myself, *"--pid --fork --mount-proc --kill-child bash -c".split(),
                 DAEMONS], cwd=folder, env=os.environ | own, stdin=PIPE, stdout=said, stderr=said):
            if not until(lambda: run("sinfo -h -o %D%t".split()).out == "2idle\n", 20):
                give_up = pytest.fail if TESTED in run(["srun", "-V"]).out else pytest.skip
                give_up(f"Slurm does not start here: {(folder / 'said').read_text()[-200:]}")
            yield run


def test_the_page_has_both_commands():
    assert [command.split()[0] for command in COMMANDS] == ["srun", "salloc"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page(programs, slurm, command):
    done = slurm(f"{command} --device cpu".replace("mpirun", programs.mpiexec).split())
    assert done.code == 0 and f"parameters {DIGEST} " in done.out, done
    if "srun" in command:
        done = slurm(command.replace(" --mpi=pmi2", "").split())
        assert done.code == USAGE and "the launcher started 4 ranks, MPI" in done.own_errors()[0]


@pytest.mark.parametrize("fault, option", (("stopped", ""), ("killed", ""), ("killed", "-K")))
def test_a_rank_is_gone(programs, slurm, fault, option):
    """The other rank names it and ends the job, so Slurm kills both. With -K Slurm is faster."""
    done = slurm([*f"srun -N 2 -n 2 --mpi=pmi2 {option} env LD_PRELOAD={programs.injector}".split(),
                  f"FAULT={fault} 1 reduce_scatter 3 3", *programs.command(  # 0: no mpirun
                      0, ZERO3, "--device", "cpu", "--timeout", 60 if option else 2)])
    assert done.code == KILLED and ("for rank 1: a rank is" in done.err) != bool(option), done


ENDS = r"ended by signal 15 after step (\d+)"


def submitted(slurm):
    """Submits the page's script. Returns the job's number and its output's path."""
    (slurm.folder / "zero.sbatch").write_text(SLOWER)
    (slurm.folder / "steps").write_text("1000000")
    job = slurm("sbatch --parsable zero.sbatch".split()).out.strip()
    (said := slurm.folder / f"zero_{job}.log").touch()
    return job, said


def stop(slurm, said, start, command):
    """Runs the command after the first step since the job started for the `start`-th time: of so
    many steps a run prints only the first and each tenth part."""
    assert until(lambda: len(re.findall(r"\n +\d+ +\d\.\d+ ", said.read_text())) == start)
    slurm(command.split())


def test_a_cancelled_job_is_saved(slurm):
    """scancel saves the run and ends the job for good."""
    job, said = submitted(slurm)
    stop(slurm, said, 1, f"scancel {job}")
    show = f"scontrol show job {job}"
    assert until(lambda: "JobState=CANCELLED" in slurm(show.split()).out)
    assert "Restarts=0 " in slurm(show.split()).out
    assert until(lambda: [*slurm.folder.glob("saved/step_[0-9]*")], 20), said.read_text()
    shutil.rmtree(slurm.folder / "saved")


def test_the_script_resumes_itself(programs, slurm):
    """The job queues itself again after a signal, and at its time limit (checked every 30 s)."""
    job, said = submitted(slurm)
    ways = f"scancel --signal=TERM {job}", f"scontrol update TimeLimit=1 JobId={job}"
    for start, command in enumerate(ways, 1):
        stop(slurm, said, start, command)
        assert until(lambda: len(re.findall(ENDS, said.read_text())) == start), said.read_text()
    # Before its third start the job gets more time and fewer steps.
    slurm(f"scontrol update TimeLimit=9 JobId={job}".split())
    steps = int(re.findall(ENDS, said.read_text())[-1]) + 20
    (slurm.folder / "steps").write_text(str(steps))
    over, show = r"(?s)JobState=COMPLETED .* Restarts=2 .* ExitCode=0:0", f"scontrol show job {job}"
    assert until(lambda: re.search(over, slurm(show.split()).out)), said.read_text()
    digest = programs.logged(4, ZERO3, "--steps", steps, "--device", "cpu")[2]["digest"]
    assert f"parameters {digest} " in said.read_text()
