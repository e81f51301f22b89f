# SPDX-License-Identifier: MIT
"""A fault during a run ends all ranks in time, with a sentence and an exit code that name it. The
log has whole lines, and a summary only if the run was whole.

injector.cpp makes most faults, in one call of one rank; a shell that starts the program, others.
"""
import contextlib
import ctypes
import errno
import json
import mmap
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from programs import (ALLOWS, ALONE, COMMUNICATION, DATA, NUMERICS, ON_RANKS, RESOURCES, WAITS,
                      Outcome, read_log)

NONE = 0
DDP, MIXED, ZERO1, ZERO2, ZERO3, OFFLOAD, INFINITY = ON_RANKS
A_FEW_SECONDS = 10
TIMEOUT = 2  # seconds
MLP = f"--task mlp --width 64 --layers 8 --steps 5 --timeout {TIMEOUT} --log new.log"
TEXT = "--width 8 --layers 2 --batch 2 --log new.log"
SHORT_FILE = "/sys/devices/system/cpu/online"  # its size is 4096 bytes, but it ends after a few
NO_THREAD = "the system .* gave no memory, thread or output: Resource temporarily"
DIFFER = (r"^\w+: the (parameters|optimizer state) of layer {} differ between rank 0 .* and rank "
          "1 .*, which should hold the same$")
DUE = (r"^rank (\d)/2: rank (?!\1)\d sent (\w+ of layer \d), where (?!\2 )\w+ of layer \d is due: "
       "every rank must call the same collectives in the same order$")
DISK = f"{MLP} --offload-dir DISK"  # DISK becomes a folder, which must be empty at the end
LOST = "the loss of the last step, 9, is not finite"

# Exit code (None: any but 0), ranks (0: without a launcher), chapter, arguments, the injector's
# FAULT or the shell's command, and a pattern: of the program's error lines, or of a good output.
ENDS = [
    # The injector also checks here that no message is sent just before the end.
    (NONE, 2, ZERO3, MLP, "none", "parameters [0-9a-f]{16} .* 0 steps skipped"),
    *((NONE, 2, chapter, MLP, "nan 1 reduce_scatter 3 4",
       "parameters [0-9a-f]{16} .* 1 step skipped") for chapter in (DDP, ZERO2, OFFLOAD)),
    *((DATA, 3, chapter, MLP, "throws 1 reduce_scatter 3 1", "^rank 1/3: sample is unreadable$")
      for chapter in (DDP, ZERO2, INFINITY)),
    # DDP sends on the compute stream, 07 on the communication stream.
    *((code, 2, chapter, MLP, f"{what} 1 reduce_scatter 3 1", words) for chapter in (DDP, OFFLOAD)
      for code, what, words in (
          (None, "killed", ""),
          (COMMUNICATION, "exits", "^rank 1/2: left in the middle of the run: something called"),
          (COMMUNICATION, "short", r"^rank 0/2: rank 1 sent \d+ elements instead of \d+: run the"),
          (COMMUNICATION, "lost", DUE),
          (COMMUNICATION, "unsent", "^rank 1/2: a message with rank 0 failed: a rank is gone"),
          (COMMUNICATION, "long", "^rank 0/2: a message with rank 1 failed: a rank is gone, or "
                                  "runs another build; MPI says: [^()&]*truncated"))),
    *((RESOURCES, 2, chapter, MLP, "memory 1 9",
       r"^rank 1/2: the system gave no \d+ bytes for .*: use fewer") for chapter in (DDP, OFFLOAD)),
    # 08's disk fails in a step, or has no room before the first step, or cannot be written.
    *((RESOURCES, 2, INFINITY, DISK, f"{call} 1 99 {number}",
       rf"^rank 1/2: step \d, {what} of layer \d: --offload-dir DISK: \d+ bytes could not be {why}")
      for call, number, what, why in (
          ("pread", errno.EIO, "read", "read: Input/output error"),
          ("pread", 0, "read", "read: the file has become shorter"),
          ("pwrite", errno.ENOSPC, "write", "written: No space left on device"))),
    (RESOURCES, 2, INFINITY, DISK.replace("64", "16"), "pread 1 124 5",  # the digest's read fails
     r"^rank 1/2: --offload-dir DISK: \d+ bytes could not be read: Input/output error$"),
    (RESOURCES, 2, INFINITY, DISK, f"fallocate 1 2 {errno.ENOSPC}",
     r"^rank 1/2: --offload-dir DISK, \d+ bytes: No space left on device$"),
    (RESOURCES, 2, INFINITY, DISK, "room 1",
     r"^rank 1/2: each rank needs 199 680 bytes in --offload-dir DISK, 2 on .* share 4 096 that"),
    (RESOURCES, 2, INFINITY, DISK, f"tmpfile 1 2 {errno.EROFS}",
     "^rank 1/2: --offload-dir DISK, a file without a name: Read-only file system$"),
    *((RESOURCES, 0, INFINITY, f"{MLP} --offload-dir {where}", '"$@"', f"-dir {where}{why}")
      for where, why in (
          ("none", ": No such file or directory$"), ("ssh", ", a file without a name: Not a dir"),
          ("/dev/shm", r": it lies in the machine's memory \(tmpfs\): name a folder on a disk"))),
    *((None, 2, INFINITY, DISK, f"killed 1 {when} 3", "")
      for when in ("all_gather 2", "reduce_scatter 3", "sums -1")),
    # The fault holds the lock of stderr, so the program ends without a sentence.
    (COMMUNICATION, 0, INFINITY, DISK, "locked_disk 0 99", ""),
    # The rank has already called MPI's end: the exit code is the launcher's.
    (None, 2, ZERO2, MLP, "unfinished 1 1",
     "since the end of MPI on the host began, nothing has ended for [2-9] s"),
    (COMMUNICATION, 2, DDP, MLP, "stopped 1 reduce_scatter 3 3", ""),
    (RESOURCES, 1, DDP, MLP, "memory 0 9", "^rank 0/1: the system gave no"),
    (RESOURCES, 0, DDP, MLP, "memory 0 9", "^rank 0/1: the system gave no"),
    # A bit changes in an all-gather of the last step, after which replicas are always compared, or
    # of the third, where only --check-every 1 finds it, because 04's next gather would repair it.
    # accounts_test.cpp tries every tensor.
    (NUMERICS, 2, DDP, MLP, "bit 1 all_gather 2 5", DIFFER.format(2)),
    (NUMERICS, 2, ZERO1, f"{MLP} --check-every 1", "bit 1 all_gather 0 3", DIFFER.format(0)),
    (NUMERICS, 0, ALONE, f"{TEXT} --lr 1e30 --steps 9",
     '"$@" | sed -n "s/.*in a row/01_adam: &/p" >&2; exit ${PIPESTATUS[0]}',
     f"{LOST}: a lower --lr than 1e|: 8 steps in a row were skipped: try a lower --lr$"),
    (NONE, 0, ALONE, "--task toy --lr 50 --steps 2", '"$@"',  # a huge loss fits its column
     r"\n       2  \d\.\d{4}e\+11  \d\.\d{4}e\+08    "),
    (RESOURCES, 0, ALONE, TEXT, "memory 0 1", "for data: use a smaller --data or --batch"),
    (RESOURCES, 0, ALONE, TEXT, "thread 0 1", NO_THREAD),
    (RESOURCES, 0, ALONE, TEXT, 'set -o pipefail; "$@" | :', "cannot be written: Broken pipe"),
    (RESOURCES, 0, ALONE, TEXT, 'ulimit -f 1; "$@"', "new.log: File too large"),
    (RESOURCES, 0, ALONE, "--task toy --steps 1 --trace kept",  # the old trace stays
     'echo good >kept; (ulimit -f 1; "$@"); code=$?; [ "$(cat kept*)" = good ] && exit $code',
     "kept: File too large"),
    (RESOURCES, 0, ALONE, "--width 2048 --steps 1", 'ulimit -v 250000; "$@"',
     "the system gave no [0-9]* bytes for"),
    (RESOURCES, 0, ALONE, "--data large", 'truncate -s 1T large; "$@"',
     "available: use a smaller --data or --batch"),
    *((DATA, ranks, chapter, f"{TEXT} --data {SHORT_FILE}", '"$@"',
       f"cannot read byte .* of the 4096 of {SHORT_FILE}: it has become shorter")
      for ranks, chapter in ((0, ALONE), (2, DDP)) if os.path.exists(SHORT_FILE))]
# In each of these runs rank `bad` stands still; in the one that is appended, 08's disk.
STILL = [pytest.param(COMMUNICATION, ranks, chapter, MLP, f"{how} {bad} reduce_scatter 3 3", "",
                      id=f"still {chapter} {how} {bad} of {ranks}")
         for chapter in (DDP, ZERO2, ZERO3, OFFLOAD, INFINITY)
         for ranks, bad, how in ((2, 1, "stopped"), (2, 0, "stuck"), (3, 1, "stopped"))]
STILL.append(pytest.param(
    COMMUNICATION, 0, INFINITY, DISK, "stuck_disk 0 99",
    r"^rank 0/1: step \d, \w+: since .* on stream .* began, nothing has ended for [23] s: ",
    id="still disk"))


@pytest.fixture
def disk():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="zero_") as made:
        yield made
        assert not os.listdir(made)


@pytest.fixture(name="folder")
def filled(folder):
    """A folder with an ssh for the launcher, which runs its command here, and a folder per host."""
    for name, text in {
            "ssh": '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nshift\neval "$*"\n',
            "here/text.txt": "to be or not to be\n", "there/empty": ""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "ssh").chmod(0o755)
    return folder


def check_log(path, whole):
    lines = path.read_text().splitlines() if path.exists() else []
    told = [key for line in lines[:-1] for key in json.loads(line)]
    with contextlib.suppress(ValueError):  # a full disk may have cut off the last line
        told += json.loads(lines[-1]) if lines else []
    assert ("summary" in told) == whole


@pytest.mark.parametrize("code, ranks, chapter, args, how, words", ENDS + STILL)
def test_a_fault_ends_a_run(programs, folder, disk, code, ranks, chapter, args, how, words):
    args, words = (text.replace("DISK", disk) for text in (args, words))
    inject = f'LD_PRELOAD={programs.injector} {{}} exec "$@"'
    shell = how if "$@" in how else inject.format(how if "=" in how else f'FAULT="{how}"')
    launch = [programs.mpiexec, "-n", str(ranks)] if ranks else []
    program = programs.command(0, chapter, *args.split())
    start = time.monotonic()
    outcome = programs.start([*launch, "bash", "-c", shell, "bash", *program], folder)
    took = time.monotonic() - start
    patience = 0
    if re.match("stopped|stuck|unfinished", how):
        # The programs multiply --timeout by the ranks per core.
        patience = TIMEOUT * max(1, -(-ranks // len(os.sched_getaffinity(0))))
        # The sentence has the seconds that the rank waited: `patience`, on a busy machine more.
        bad = how.split()[1]
        words = words or (rf"^rank (?!{bad}/)\d+/\d+: step \d+, "
                          + WAITS.format(f"[{patience}-9]", f" for ranks? {bad}"))
    # Open MPI 4.1 may crash on a message that is too long, or let another rank's watchdog be first.
    died = programs.is_open_mpi_4 and (
        outcome.code in (134, 139) if how.startswith("long") else outcome.code == 4 and ranks == 2)
    assert died or outcome.code == code or code is None and (
        outcome.code or programs.loses_codes), outcome
    assert patience <= took < patience + A_FEW_SECONDS, outcome
    if code == NONE:
        assert re.search(words, outcome.out) and not outcome.own_errors(), outcome
    elif words and outcome.code != 139:
        lines = outcome.own_errors()
        killed = "ended by signal 15 before the first step"  # by Open MPI, as another rank failed
        also = f"{words}|{ALLOWS}|{killed}" if programs.is_open_mpi_4 else words
        assert any(re.search(words, line) for line in lines), outcome
        assert all(re.search(also, line) for line in lines), outcome
    if "new.log" in args:
        check_log(folder / "new.log", code == NONE or "unfinished" in how or LOST in words)


def test_a_disk_may_be_awkward(programs, disk):
    """The bits stay the same if a disk moves single pages, or refuses O_DIRECT or O_TMPFILE."""
    def digest(fault, chapter=INFINITY, *more):
        return programs.logged(2, chapter, *MLP.split()[:-2], *more, FAULT=fault,
                               LD_PRELOAD=programs.injector)[2]["digest"]

    expected = digest("none", ZERO3)
    for fault in ("none", "some 1", "unaligned 1", f"direct 1 1 {errno.EINVAL}",
                  f"tmpfile 1 1 {errno.EOPNOTSUPP}", f"tmpfile 1 1 {errno.EISDIR}"):
        # Pieces of 1500 elements end in the middle of a page.
        found = digest(fault, INFINITY, "--offload-dir", disk, "--piece", 1500)
        assert found == expected, fault


def pages_in_memory(file):
    """Returns how many of the file's pages are in the page cache."""
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as seen:
        kept = (ctypes.c_ubyte * (len(seen) // mmap.PAGESIZE))()
        begin = (ctypes.c_char * len(seen)).from_buffer(seen)
        assert ctypes.CDLL(None).mincore(begin, ctypes.c_size_t(len(seen)), kept) == 0
        del begin
        return sum(page & 1 for page in kept)


def test_what_is_on_the_disk_takes_no_memory(programs, folder, disk):
    """The memory of 08's process that its ledgers do not know is that of 07, plus what three more
    threads may take: a huge page of stack and one of heap each. Where files can bypass the page
    cache, the cache has next to nothing of the 144 MB of state."""
    def beyond(chapter, *where):
        words = "--task mlp --width 1000 --layers 12 --batch 8 --steps 6 --quiet --log".split()
        log = folder / chapter
        job = subprocess.Popen(programs.command(0, chapter, *words, log, *where),
                               stdout=subprocess.DEVNULL)
        if where:
            while not log.exists() or log.read_text().count("\n") < 3:
                time.sleep(0.01)
            job.send_signal(signal.SIGSTOP)
            opened = [path for path in Path(f"/proc/{job.pid}/fd").iterdir()
                      if os.readlink(path).startswith(disk)]
            kept.extend(map(pages_in_memory, opened))
            job.send_signal(signal.SIGCONT)
        _, code, used = os.wait4(job.pid, 0)
        assert code == 0
        summary = read_log(log)[2]
        return 1024 * used.ru_maxrss - summary["memory"]["total"]["reserved"] - sum(
            kind["reserved"] for kind in summary["host_memory"].values())

    kept = []
    assert beyond(INFINITY, "--offload-dir", disk) <= beyond(OFFLOAD) + 3 * 2 * (2 << 20)
    with contextlib.suppress(OSError):
        os.close(os.open(disk, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT))
        assert kept == 6 * [12], kept  # 3 files, each opened twice: the last page of 12 layers


def two_hosts(programs, folder):
    """Returns options with which MPICH's launcher starts its ranks as if on two hosts."""
    return ["-launcher", "ssh", "-launcher-exec", str(folder / "ssh"),
            "-hosts", "127.0.0.1,127.0.0.2"] if "mpich" in programs.mpiexec else []


@pytest.mark.parametrize("which", (signal.SIGINT, signal.SIGTERM))
def test_a_launcher_gets_a_signal(programs, folder, which):
    """The ranks end after the current step, which is logged. Rank 0 may wait in the next."""
    if not programs.passes_signals:
        pytest.skip("this launcher ends its ranks when it gets a signal")
    program = programs.command(0, ZERO3, *TEXT.split(), "--quiet", "--steps", 10**8)
    process = subprocess.Popen(
        [programs.mpiexec, *two_hosts(programs, folder), "-n", "2", *program], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (folder / "new.log").exists() or (folder / "new.log").stat().st_size < 2000:
        assert process.poll() is None, "it has ended before"
        time.sleep(0.01)
    process.send_signal(which)
    _, err = process.communicate(timeout=A_FEW_SECONDS)
    assert process.returncode == 128 + which
    said, = Outcome(process.returncode, "", err).own_errors()
    last = json.loads((folder / "new.log").read_text().splitlines()[-1])["step"]
    assert re.search(f"^rank [01]/2.*: ended by signal {int(which)} after step {last}$", said)


def test_a_second_signal_ends_a_run_at_once(programs):
    """A signal two seconds or more after the first does not wait for the step's end."""
    words = "--task mlp --width 1024 --batch 32768".split()  # a step of many seconds
    with subprocess.Popen(programs.command(0, ALONE, *words), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        while "norm" not in process.stdout.readline():
            assert process.poll() is None
        for wait in (0.2, 2.5):
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
        assert "ended by" not in process.communicate(timeout=A_FEW_SECONDS)[0]
    assert process.returncode == 128 + signal.SIGINT


def test_a_text_that_one_rank_cannot_read(programs, folder):
    """The message names the rank and its file."""
    program = shlex.join(programs.command(0, ZERO3, "--data", "text.txt"))
    command = programs.unlike(f"cd here && {program}", f"cd there && {program}",
                              *two_hosts(programs, folder))
    outcome = programs.start(command, folder)
    sentence = "rank 1/2: cannot read text.txt: No such file or directory"
    assert (outcome.code, outcome.own_errors()) == (DATA, [sentence])
