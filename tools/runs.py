# SPDX-License-Identifier: MIT
"""Starts the eight programs, and reads what they print and log."""
import contextlib
import io
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = ["01_adam", "02_distributed_adam", "03_mixed_precision",
            "04_zero1", "05_zero2", "06_zero3", "07_offload", "08_infinity"]
KINDS = ["parameters", "gradients", "optimizer", "communication", "activations", "workspace",
         "data"]
STATE = KINDS[:3]
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}  # of an element
USAGE, DATA, COMMUNICATION, NUMERICS, RESOURCES = 2, 3, 4, 5, 6  # exit codes
# How our programs' lines on stderr begin. The launcher and libraries write there, too.
OURS = re.compile(r"(rank \d+/\d+.*?|\w*0\d_\w+|plan): ")
WIDTH = 80  # of a terminal
PLACES = ("device", "host", "disk")  # where a rank's memory is
SIZES = {"bytes": 1, "kB": 1e3, "MB": 1e6}
NOTHING = dict.fromkeys(("resident", "predicted_resident", "peak", "predicted", "reserved"), 0)

# Unless told so, Open MPI does not start as root, and does not start more ranks than cores.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
# Meson's options for a copy with changes: bits are the same, and build and tests take least time.
QUICK = ["-Dcuda=disabled", "-Ddebug=false", "-Dwarning_level=0", "-Db_colorout=never",
         "-Dcpp_args=-O1 -fmax-errors=1"]


class Failure(Exception):
    """A sentence for the user, which says what could not be done, and the code to end with."""

    def __init__(self, sentence, code=1):
        super().__init__(sentence)
        self.code = code


def finish(main, says):
    """Ends the script with the exit code that main returns. If main raises a Failure, prints `says`
    and its sentence, and ends with its code. Other codes: 130 after Ctrl-C, 6 for an OSError."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a closed stream is None
        stream.reconfigure(errors="replace")  # what a terminal's encoding lacks becomes a ?
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when a reader, such as head, ends
    try:
        code = main()
        print(end="", flush=True)
    except Failure as failure:
        print(f"{says}{failure}", file=sys.stderr)
        code = failure.code
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        print(f"{says}{error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        os._exit(6)  # at sys.exit() Python would try once more to write the rest
    sys.exit(code)


@dataclass
class Run:
    """One run of a program: how it is started, and after execute() what it printed and logged."""
    log: Path
    chapter: str = ""
    ranks: int = 0  # 1 for 01, which is started without a launcher
    dtype: str | None = None  # None until the log says the program's default
    words: list = ()  # the program's options, without --log
    command: list = ()
    label: str = ""  # the run's name in a comparison

    def __str__(self):
        return f"{self.chapter} {self.dtype}"

    number = property(lambda self: self.chapter[:2])

    @property
    def shown(self):
        """Returns the command as a reader types it."""
        launch = [] if self.number == "01" else ["mpirun", "-n", str(self.ranks)]
        return shlex.join([*launch, f"build/{self.chapter}/{self.chapter}", *self.words])

    def execute(self):
        """Runs the program to its end and reads its log; raises a Failure if it fails."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)  # never read a log of an earlier run
        start = time.monotonic()
        self.printed = output_of(self.command)
        self.seconds = time.monotonic() - start
        self.read()

    def read(self):
        """Sets what the log says: info, steps, summary, the bytes in each place, and the losses."""
        self.info, self.steps, self.summary = read_log(self.log)
        self.chapter, self.ranks = self.info["chapter"], self.info["ranks"]
        self.dtype, self.options = self.info["dtype"], self.info["options"]
        self.places = {}  # {place: {kind: {what: bytes}}}, without places that are not used
        for place in PLACES:
            if kinds := memory_of(self.summary, place):  # on host and disk only kinds with bytes
                total = {what: sum(held.get(what, 0) for held in kinds.values())
                         for what in NOTHING}
                self.places[place] = dict.fromkeys(KINDS, NOTHING) | {"total": total} | kinds
        self.memory, self.on_host, self.on_disk = (self.places.get(place, {}) for place in PLACES)
        # {to_host, to_device, read or write: its bytes and ms}; {} without bus and disk
        self.bus = self.summary.get("bus", {}) | self.summary.get("disk", {})
        self.losses = [step["loss"] for step in self.steps]
        first, last = self.steps[0]["step"], self.steps[-1]["step"]
        self.whole, self.told = first == 1, f"{first} to {last}"  # whether from step 1; as text


class Programs:
    """The programs of one build folder, the launcher of their MPI, and the folder of their logs."""

    def __init__(self, build, mpiexec, logs):
        self.build, self.mpiexec, self.logs = build, shlex.split(mpiexec), logs
        if not shutil.which(self.mpiexec[0]):
            raise Failure(f"{self.mpiexec[0]} is missing: it starts the ranks")

    def program(self, chapter):
        path = self.build / chapter / chapter
        if not path.exists():
            raise Failure(f"{path} is missing; build first: ninja -C build")
        return str(path)

    def prepare(self, log, chapter, ranks, *arguments, dtype=None):
        """Returns a run to execute. 01 takes the samples of all ranks as micro-batches of its one
        process. 01 and 02 take no dtype, because they are always in fp32."""
        words = [str(argument) for argument in arguments]
        if dtype and chapter >= "03":
            words = ["--dtype", dtype, *words]
        launch, log = [*self.mpiexec, "-n", str(ranks)], self.logs / log
        if chapter == "01_adam":
            words, ranks, launch = ["--accumulate", str(ranks), *words], 1, []
        command = [*launch, self.program(chapter), *words, "--log", str(log)]
        return Run(log, chapter, ranks, dtype, words, command)


def ran(command, hear=lambda line: None):
    """Returns (a command's exit code, what it prints); hear() gets each line when it comes. If this
    script is stopped meanwhile, the command is too, so that no rank outlives its launcher."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=os.environ | ENVIRONMENT) as process:
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                hear(line)
            process.wait()
        except BaseException:
            process.terminate()
            raise
    return process.returncode, "".join(lines)


def output_of(command, *hear):
    """Returns what a command prints; if the command fails, raises a Failure with that text."""
    code, printed = ran(command, *hear)
    if code != 0:
        raise Failure(f"{printed.rstrip()}\nthe command was: {shlex.join(command)}", max(code, 1))
    return printed


def first_line(*command):
    """Returns the first line that a tool prints; None if it prints none, fails or is missing."""
    with contextlib.suppress(subprocess.SubprocessError, OSError, ValueError):
        printed = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)
        return printed.partition("\n")[0].strip() or None


def text_in(path):
    """Returns a file's text, in any Unicode encoding; bytes that are no text are replaced."""
    data = Path(path).read_bytes()
    return data.decode(json.detect_encoding(data), "replace")


def read_log(path):
    """Returns a log as (run, steps, summary); raises a Failure if the file is no log. Of a resumed
    run, run and summary are the last part's, and summary["steps"] counts that part's steps."""
    lines = []
    for at, text in enumerate(io.StringIO(text_in(path)), 1):
        try:
            lines.append(json.loads(text))
            if not isinstance(lines[-1], dict):
                raise TypeError
        except (RecursionError, TypeError, ValueError):
            raise Failure(f"{path}, line {at} is no JSON object, nested too deep, or its end is "
                          "cut off", 3) from None
    if not lines or "summary" not in lines[-1]:
        raise Failure(f"{path} is incomplete: without the summary its run has not ended", 3)
    steps = [line for line in lines if "step" in line]
    taken = [step["step"] for step in steps]
    if not taken or taken != [*range(taken[0], taken[0] + len(taken))]:
        raise Failure(f"{path} has no steps, or not one after the other", 3)
    parts = [at for at, line in enumerate(lines) if "run" in line] or [0]
    counted = sum("step" in line for line in lines[parts[-1]:])
    return lines[parts[-1]]["run"], steps, lines[-1]["summary"] | {"steps": counted}


def bits(number):
    """Returns an fp32 number's bits in hexadecimal; "null" for None."""
    return "null" if number is None else struct.pack(">f", number).hex()


def machine():
    """Returns the machine's CPU and cores, on which times depend, and no name of host or user."""
    cpu = re.search(r"^model name\s*: (.*)", text_in("/proc/cpuinfo"), re.MULTILINE)
    return {"cpu": cpu[1] if cpu else platform.machine(), "cores": len(os.sched_getaffinity(0))}


def memory_of(summary, place):
    """Returns what a log's summary says of a place's bytes, by kind; {} if the place has none."""
    return summary.get("memory" if place == "device" else f"{place}_memory", {})


def on(place):
    """Returns the end of a sentence about memory in a place: "" for the device."""
    return "" if place == "device" else f" on the {place}"


def wrong_bytes(runs):
    """Returns a sentence for each kind of memory that does not equal its formula."""
    return [f"{run}, {kind}{on(place)}: {what} {held[kind][what]} bytes, "
            f"formula {held[kind][formula]}"
            for run in runs for place, held in run.places.items()
            for kind in KINDS
            for what, formula in (("resident", "predicted_resident"), ("peak", "predicted"))
            if held[kind][what] != held[kind][formula]]


def wrong_traffic(runs):
    """Returns a sentence for each phase, padding, scalars, and each direction of bus and disk whose
    count is not its formula's. What a library sends in its own collectives has no count, None."""
    wrong = []
    for run in runs:
        traffic = run.summary["traffic"]
        rows = traffic["phases"] | {row: traffic[row] for row in ("padding", "scalars")}
        wrong += [f"{run}, {row}: sent {sent['counted']} elements, formula {sent['predicted']}"
                  for row, sent in rows.items() if sent["counted"] not in (None, sent["predicted"])]
        wrong += [f"{run}, {way}: {bus['counted']} bytes copied, formula {bus['predicted']}"
                  for way, bus in run.bus.items() if bus["counted"] != bus["predicted"]]
    return wrong


def sent_in(phase):
    """Returns how many elements a phase's row says that one rank sent: counted, or by formula."""
    return phase["predicted"] if phase["counted"] is None else phase["counted"]


def sent(run):
    """Returns how many elements one rank sends in a step."""
    return Fraction(sum(map(sent_in, run.summary["traffic"]["phases"].values())),
                    run.summary["steps"])


def elements_sent(run):
    """Returns the elements sent per step and parameter: (a number, words with (N - 1)/N)."""
    exact, n = sent(run) / run.info["padded_parameters"], run.ranks
    if exact == 0 or n == 1:
        return exact, str(exact)
    multiple = exact / Fraction(n - 1, n)  # not an integer if steps were skipped
    digits = 2 if multiple.denominator > 1 else 0
    return exact, f"{float(multiple):.{digits}f} x {n - 1}/{n}"


def folded(text, indent="", hanging="", most=None):
    """Returns lines for a terminal, in which long paths stay whole. With a number `most` there are
    at most so many lines, three dots stand for the rest, and long words are broken."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + hanging,
                         break_on_hyphens=False, break_long_words=most is not None,
                         max_lines=most, placeholder=" ...")


def number(value, form):  # None, a log's null, is infinity or NaN, which JSON cannot say
    return "inf/nan" if value is None or math.isinf(value) else format(value, form)


def small(value):
    """Returns a difference in two digits: 0, or as 1.2e-07."""
    return "0" if value == 0 else number(value, ".1e")


def unit_of(exact, *counts):
    """Returns the unit for these bytes: "bytes" if `exact`, else kB or MB, by the largest."""
    decimal = "kB" if 0 < max(counts) < 1e6 else "MB"
    return "bytes" if exact else decimal


def sized(count, unit):
    """Returns bytes in a unit, in at most four characters below 10 000; bytes in all digits."""
    value = count / SIZES[unit]
    digits = 0
    if unit != "bytes" and value < 99.95:
        digits = 2 if value < 9.995 else 1
    return f"{value:.{digits}f}" if count else "0"


def spaced(count):
    """Returns a number with a blank between its thousands."""
    return f"{count:,}".replace(",", " ")
