#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`./tutorial` from outside: in a folder whose name has blanks, from another working directory."""
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.dont_write_bytecode = True
from programs import CHAPTERS, ROOT, options_of  # noqa: E402
from compare import unlike_recorded  # noqa: E402

# Wrong arguments, the exit code, and what the one sentence contains.
REFUSED = [
    ("lessons", 2, "unknown command 'lessons'"), ("lesson", 2, "name one chapter"),
    ("lesson 9", 2, "there is no chapter '9'; the first is 01, the last is 07"),
    ("lesson 05 06", 2, "name one chapter"), ("exercise", 2, "name one chapter"),
    ("exercise 01", 2, "01 is the first chapter"), ("exercise 8", 2, "there is no chapter '8'"),
    ("exercise 05 --fast", 2, "--once or --hint, not '--fast'"),
    ("doctor now", 2, "no options"),
    ("test --fast", 2, "not '--fast'"), ("test --all --gpu", 2, "not '--all --gpu'"),
    ("demo --ranks", 2, "--ranks needs a value"), ("demo --ranks 0", 2, "not '0'"),
    ("demo --ranks 99999999999999999999", 2, "takes 1 to 999999"),
    ("demo --steps 1e3", 2, "not '1e3'"), ("demo fast", 2, "unknown option 'fast'"),
    ("demo --data no.txt", 3, "/no.txt is not a file that can be read"),
    ("compare --all", 2, "unknown option '--all'"), ("compare", 3, "has no logs: run ./tutorial"),
    ("compare no.jsonl", 3, "/elsewhere/no.jsonl cannot be read: No such file"),
]


class Copy:
    """Of what the script itself needs, without a build."""

    def __init__(self, folder):
        self.folder = folder / "a path/with blanks"
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        for name in ("tutorial", "notes/scripts", *CHAPTERS):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, self.folder / name)

    def __call__(self, text):
        return subprocess.run([self.folder / "tutorial", *text.split()], cwd=self.elsewhere,
                              text=True, capture_output=True, stdin=subprocess.DEVNULL)

    def refuses(self, text, code, words):
        done = self(text)
        sentence = done.stderr.splitlines()
        if (done.returncode, done.stdout) != (code, "") or len(sentence) != 1 or \
                not sentence[0].startswith("tutorial: ") or words not in sentence[0]:
            yield f"{text}: not code {code} and '{words}': {done}"


def lesson_lines(copy, number):
    """What it tells a pipe, and in the same order a terminal of 80 columns, without its colours."""
    primary, secondary = pty.openpty()
    on_terminal = subprocess.Popen([copy.folder / "tutorial", "lesson", number], stdout=secondary,
                                   env=os.environ | {"COLUMNS": "80"})
    os.close(secondary)
    told = b""
    with contextlib.suppress(OSError):  # by which the end of a terminal is told
        while part := os.read(primary, 1 << 16):
            told += part
    on_terminal.wait()
    os.close(primary)
    text = told.decode().replace("\r\n", "\n")
    return copy(f"lesson {number}").stdout, re.sub(r"\033\[[\d;]*m", "", text), text


def lessons(copy):
    for words in ("lesson 5", "lesson 05", "lesson 05_zero2/"):
        done = copy(words)
        picture, _, diff = done.stdout.partition("Left out are ")
        added, removed = (len(re.findall(rf"^\{sign}", diff, re.M)) for sign in "+-")
        left_out = int(diff.split()[0]) if diff else 0
        last = re.fullmatch(r"05_zero2/trainer.hpp: (\d+) changed lines, (\d+) removed and "
                            r"(\d+) added", done.stdout.splitlines()[-1])
        if done.returncode != 0 or not last or left_out != 4 or added == 0 or \
                not added + removed + left_out == int(last[1]) == int(last[2]) + int(last[3]):
            yield f"{words}: {done}"
        for line in ("  rank 1   ▄▄▄▄▄▄▄▄▄▄▄▄    ····▄▄▄▄····    ····████···· x3",
                     "  changed                  ^^^^^^^^^^^^",
                     "  bytes    24 + 8 + 48 = 80 a rank",
                     "  sent     forward 0, backward A, update 1",
                     "ZeRO-2: the gradients become a shard too"):
            if line not in picture:
                yield f"{words} does not say {line!r}"
        if ".name = " in diff or "#include" in diff or "-  Tensor grads_;  // full\n" not in diff:
            yield f"{words} shows what is no idea, or not what is one: {diff}"
    first, window, host = (copy(f"lesson {number}").stdout for number in (1, 6, 7))
    if (copy.folder / "01_adam/trainer.hpp").read_text() not in first:
        yield "lesson 1 does not show the whole trainer"
    if (copy.folder / "06_zero3/layer_window.hpp").read_text() not in window:
        yield "lesson 6 does not show its new file"
    if (copy.folder / "07_offload/host.hpp").read_text() not in host or \
            "\n+    host_.finish();\n" not in host or "07_offload/trainer.hpp: " not in host:
        yield "lesson 7 does not show its new file and what has changed"
    if "8 + 8 = 16 a rank, and 8 + 48 = 56 on its host" not in host:
        yield "lesson 7 does not say what the host holds"
    for number in ("02", "03", "04", "05", "06", "07"):
        piped, folded, coloured = lesson_lines(copy, number)
        wide = [line for line in folded.split("new file: ")[0].splitlines() if len(line) > 80]
        if wide or "\033" in piped or "\033[32m+" not in coloured or \
                "".join(folded.split()) != "".join(piped.split()):
            yield f"lesson {number} on a terminal: {wide} {coloured}"


def reports(copy):
    doctor, usage = copy("doctor"), copy("help")
    for row in ("system", "cores", "memory", "compiler", "meson", "MPICH", "GPUs", "Missing: "):
        if not re.search(rf"^{row}", doctor.stdout, re.M):
            yield f"doctor says nothing of {row}: {doctor}"
    if doctor.returncode != 0 or max(map(len, usage.stdout.splitlines())) > 79:
        yield f"doctor ends with {doctor.returncode}, or help is too wide"
    for words in ("", "help", "--help", "-h", "demo --help"):
        if (copy(words).returncode, copy(words).stdout) != (0, usage.stdout):
            yield f"'{words}' does not print the help"


def one_at_a_time(copy):
    """And nothing is installed or built where nothing can be written."""
    build = copy.folder / "build"
    shutil.rmtree(build, ignore_errors=True)  # the doctor's
    build.touch()
    yield from copy.refuses("test", 6, "/build cannot be written")
    build.unlink()
    (build / "log").mkdir(parents=True)
    with (build / "log/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for words in ("test", "demo"):
            yield from copy.refuses(words, 6, "another ./tutorial is at work")


def stopped(options, folder):
    """A demo that is told to stop leaves no rank behind."""
    out = folder / "demo"
    demo = subprocess.Popen([sys.executable, ROOT / "notes/scripts/demo.py", "--ranks", "2",
                             "--steps", "400", "--build", options.build, "--mpiexec",
                             options.mpiexec, "--out", out], stdout=subprocess.DEVNULL)

    def ranks():
        count = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                line = path.read_bytes()
                count += b"--log" in line and str(out).encode() in line
        return count

    late = time.monotonic() + 60
    while not (out / "02_distributed_adam_fp32.jsonl").exists() and time.monotonic() < late:
        time.sleep(0.05)
    demo.send_signal(signal.SIGTERM)
    code, late = demo.wait(timeout=30), time.monotonic() + 10
    while ranks() and time.monotonic() < late:
        time.sleep(0.1)
    if code != 128 + signal.SIGTERM or ranks():
        yield f"a demo that is told to stop ends with {code} and leaves {ranks()} processes"


def judged():
    """What the demo's last line says of bits. The whole demo is run by digests_test.py."""
    def runs():
        return [SimpleNamespace(chapter=row["program"], ranks=row["ranks"], dtype="fp32",
                                words=[*row["options"].split(), "--quiet"],
                                info={"device": "cpu"}, summary=dict(row)) for row in recorded]

    recorded = json.loads((ROOT / "notes/digests.json").read_text())
    ours, other, on_gpu, unknown = runs(), runs(), runs(), runs()
    other[3].summary["digest"] = "0123456789abcdef"
    on_gpu[3].info["device"], unknown[3].words[-1] = "cuda", "--clip=1"
    if unlike_recorded(ours) != []:
        yield f"demo: the README's own bits are another's: {unlike_recorded(ours)}"
    for what, others in {"a GPU": on_gpu, "other options": unknown}.items():
        if unlike_recorded(others) is not None:
            yield f"demo: bits with {what} are compared"
    said = unlike_recorded(other) or []
    if len(said) != 1 or not said[0].startswith(f"{other[3].chapter} fp32: 0123456789abcdef,"):
        yield f"demo: of another digest it says {said}"


def problems(options, folder):
    copy = Copy(folder)
    for refused in REFUSED:
        yield from copy.refuses(*refused)
    yield from lessons(copy)
    yield from reports(copy)
    yield from one_at_a_time(copy)
    yield from stopped(options, folder)
    yield from judged()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tutorial_") as made:
        found = list(problems(options_of(__doc__), Path(made)))
    print("\n".join(found) or "./tutorial answers as it should")
    sys.exit(1 if found else 0)
