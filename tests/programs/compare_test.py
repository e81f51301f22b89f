#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`./tutorial compare` of made-up logs: one bit, its reason, what is refused, and the page."""
import contextlib
import io
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from programs import ROOT  # noqa: E402
from html_page import Page  # noqa: E402
from made_up import LOSSES, PLANNER, flipped, made, trace  # noqa: E402
import compare  # noqa: E402
import differences  # noqa: E402
import report  # noqa: E402
import traces  # noqa: E402
from findings import Study  # noqa: E402
from logs import load  # noqa: E402
from plans import Plans  # noqa: E402
from runs import Failure  # noqa: E402

REPORT = ROOT / "notes/scripts/report.py"


class Folder:
    """Logs in it, and the command run there."""

    def __init__(self, path):
        self.path = path
        self.build = path / "build"

    def write(self, name, lines):
        text = lines if isinstance(lines, bytes) else \
            "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        (self.path / name).write_bytes(text)
        return name

    def run(self, *words):
        return subprocess.run([sys.executable, REPORT, "--build", self.build, *words],
                              cwd=self.path, text=True, capture_output=True)

    def files(self, *logs):
        """In names that a page must not take for elements."""
        return [self.path / self.write(f"{i}<b>.jsonl", lines) for i, lines in enumerate(logs)]

    def text(self, *logs):
        """What is printed of them, and whether all holds."""
        study = Study([load(path) for path in self.files(*logs)], [], Plans(self.build))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            report.print_text(study)
        return printed.getvalue(), report.holds(study)


# ---- Bits and reasons ------------------------------------------------------------------------

DEFECT = "this is a defect"
SAME = "none the same bits"
NOT_ASSOCIATIVE = "addition is not associative"
ANOTHER = "another run"
OTHERS = {"ranks": 2, "accumulate": 2}
# The first log, the second, whether a bit of that is flipped, the exit code, what is said of it.
PAIRS = [
    ({}, {}, False, 0, [SAME]),
    ({}, {}, True, 1, [DEFECT, "step 3, digit 8", "2.50000000 (0x40200000) there, "
                       "2.50000024 (0x40200001) here, 1 fp32 number apart. 1 of 4 steps",
                       "differ in 1 of 4 layers, layer 1 is the first"]),
    ({}, {"seed": 2}, True, 0, ["seed 1 and 2", ANOTHER]),
    ({}, {"lr": 0.5}, True, 0, ["lr 0.002 and 0.5", ANOTHER]),
    ({}, {"batch": 16}, True, 0, ["batch 8 and 16: 32 and 64 samples a step: another run"]),
    ({}, {"ranks": 2, "batch": 16}, True, 0, [NOT_ASSOCIATIVE, "ranks 4 and 2; batch 8 and 16"]),
    ({}, OTHERS, True, 0, [NOT_ASSOCIATIVE, "ranks 4 and 2; accumulate 1 and 2"]),
    (OTHERS, OTHERS | {"chapter": "04_zero1"}, True, 0,
     [NOT_ASSOCIATIVE, "family every micro-batch and once a step"]),
    (OTHERS, OTHERS | {"chapter": "06_zero3"}, True, 1, [DEFECT]),
    ({}, {"chapter": "04_zero1"}, True, 1, [DEFECT]),
    (OTHERS | {"chapter": "06_zero3"}, OTHERS | {"chapter": "07_offload"}, True, 1, [DEFECT]),
    ({"chapter": "06_zero3"}, {"chapter": "07_offload", "bus": 0.1}, False, 0,
     [SAME, "07 fp32 holds 0.00 MB on a device, 0.01 MB together with its host: the 0.00 MB of 06 "
      "fp32, and 0.00 MB of staging and 0.00 MB of master weights", "07 fp32, bus 0.1 GB/s, "
      "prefetch 1: a step waits 1.0 ms of its 2.0 for copies"]),
    ({"chapter": "07_offload"},
     {"chapter": "07_offload", "bus": 1.5, "pageable": True, "device-memory": 9}, False, 0,
     [SAME, "The same bits although bus 0.0 and 1.5"]),
    ({"chapter": "07_offload", "device-memory": 0, "pageable": False},
     {"chapter": "07_offload", "device-memory": 9, "pageable": True, "bus": 2.0}, True, 1,
     [DEFECT, "bus 0.0 and 2.0; device-memory 0 and 9; pageable False and True"]),
    ({}, {"chapter": "01_adam", "ranks": 1, "accumulate": 4}, True, 1, [DEFECT]),
    ({"clip": 1.0}, {"chapter": "01_adam", "ranks": 1, "accumulate": 4, "clip": 1.0}, True, 0,
     ["chapter 05_zero2 and 01_adam: one process adds the norm"]),
    ({"dtype": "bf16"}, {"dtype": "bf16", "ranks": 1, "accumulate": 4}, True, 0,
     [NOT_ASSOCIATIVE]),
    ({}, {"dtype": "bf16"}, True, 0, ["dtype fp32 and bf16"]),
    ({}, {"device": "cuda"}, True, 0, ["device cpu and cuda", "an order of its own"]),
    ({}, {"reduce": "native"}, True, 0, ["reduce ordered and native", "NCCL adds"]),
    ({"reduce": "native"}, {"reduce": "native"}, True, 0, ["reduce native and native"]),
    ({"reduce": "native", "ranks": 2}, {"reduce": "native", "ranks": 2}, True, 1, [DEFECT]),
    ({}, {"loss_scale": 8}, True, 1, [DEFECT]),
    ({"loss_scale": 8}, {"loss_scale": 4}, True, 1, [DEFECT, "loss-scale 8 and 4"]),
    ({"dtype": "fp16", "loss_scale": 8}, {"dtype": "fp16", "loss_scale": 4}, True, 0, [ANOTHER]),
    ({"tea": "green"}, {"tea": "black"}, True, 0, ["tea green and black: not known to this"]),
    ({"prefetch": 1}, {"prefetch": 2}, False, 0,
     [SAME, "The same bits although prefetch 1 and 2: 05 fp32 prefetch 2."]),
    ({"link": 0, "trace": "", "memory": False, "latency": 0, "timeout": 60, "check-every": 0,
      "prefetch": 1},
     {"link": 9, "trace": "t", "memory": True, "latency": 5, "timeout": 9, "check-every": 3,
      "prefetch": 0, "log": "b", "quiet": False}, True, 1, [DEFECT, "link 0 and 9"]),
    ({"data": "one"}, {"data": "copy"}, True, 1, [DEFECT]),
    ({"data": "one"}, {"data": "two"}, True, 0, ["data one and two", "another text: another run"]),
    ({"losses": [4.0, None]}, {"losses": [4.0, None]}, False, 0, [SAME]),
    ({"losses": [4.0, 2.0]}, {"losses": [4.0, None]}, False, 1,
     [DEFECT, "2.00000000 (0x40000000) there, no number (null) here. 1 of 2"]),
    ({"losses": LOSSES}, {"losses": LOSSES[:2]}, False, 0,
     ["has the bits of", "in 2 losses", "They took 2 and 4 steps"]),
    ({"losses": LOSSES}, {"losses": [4.0, 0.0]}, False, 1, [DEFECT, "step 2, digit 1"]),
]


def log_of(options):
    lines = made(**{name: value for name, value in options.items() if name != "device"})
    if options.get("device"):
        lines[0]["run"]["device"] = options["device"]
    return lines


def pairs(folder):
    for name, text in (("one", "a"), ("copy", "a"), ("two", "b")):
        (folder.path / name).write_text(text)
    for first, second, flip, code, words in PAIRS:
        other = log_of(second)
        text, holds = folder.text(log_of(first), flipped(other, 3) if flip else other)
        said = " ".join(text.split())
        if holds != (code == 0) or not all(word in said for word in words) or \
                (DEFECT in said) != (code == 1):
            yield f"{first} and {second}, flipped: {flip}: not {code} and {words}: {text}"
        if wide := [line for line in text.splitlines() if len(line) > 80]:
            yield f"wider than 80 columns: {wide[0]}"


def found_wrong(folder):
    """What is no matter of two losses; and who is compared with whom."""
    digest, held, sent, there, copied, lost = (made(), made(), made(), made("07_offload"),
                                               made("07_offload"), made("07_offload"))
    there[-1]["summary"]["host_memory"]["optimizer"]["resident"] += 1
    copied[-1]["summary"]["bus"]["up"]["counted"] += 1
    for what in lost[-1]["summary"]["host_memory"]["optimizer"]:
        lost[-1]["summary"]["host_memory"]["optimizer"][what] -= 8
    digest[-1]["summary"]["layer_digests"][3] = "cc"
    held[-1]["summary"]["memory"]["gradients"]["peak"] += 1
    sent[-1]["summary"]["traffic"]["phases"]["update"]["counted"] += 1
    path, = folder.files(made())
    twice = [run.label for run in Study([load(path), load(path)], [], Plans(folder.build)).runs]
    if twice != ["1: 05 0<b>", "2: 05 0<b>"]:
        yield f"the same log twice is called {twice}"
    native = made()
    for row in native[-1]["summary"]["traffic"]["phases"].values():
        row["counted"] = None
    if not (told := folder.text(native))[1] or "2 x 3/4" not in told[0]:
        yield f"elements that nobody counts: {told[0]}"
    for lines, words in ((digest, DEFECT), (digest, "1 of 4 layers, layer 3 is the first"),
                         (held, "05_zero2 fp32, gradients: peak 1025 bytes, formula 1024"),
                         (sent, "05_zero2 fp32, update: sent 1 elements, formula 0"),
                         (there, "07_offload fp32, optimizer on the host: resident 3073 bytes, "
                          "formula 3072"),
                         (copied, "07_offload fp32, up: 4097 bytes over the bus, formula 4096")):
        text, holds = folder.text(made(), lines)
        if holds or words not in " ".join(text.split()):
            yield f"not '{words}' in {text}"
    for lines, said in ((lost, ["07_offload fp32: 6136 bytes in both places, 06_zero3 4096, 1024 "
                                "of staging, 1024 of master weights"]), (made("07_offload"), [])):
        runs = [load(path) for path in folder.files(made("06_zero3"), lines)]
        if compare.lost(runs) != said:
            yield f"of bytes in two places it is said {compare.lost(runs)}"
    text, holds = folder.text(made("02_distributed_adam"), made("07_offload"))
    for row in (r"07 fp32( +25.0 / 25.0){2} +0.0 / 0.0 +12.5 / 12.5 +12.5$",
                r"  on its host( +0.0 / 0.0){2} +37.5 / 37.5 +18.8 / 18.8 +18.8$",
                r"  on its host +0 +0 +0.00 +0.00",
                r"07 fp32 +4 +– +1( +0.00){2} +2.0( +0.50){2}( +0.25){2}$"):
        if not re.search(f"^{row}", text, re.M) or not holds:
            yield f"no row {row}: {text}"
    text, holds = folder.text(made("02_distributed_adam"), made(), made(dtype="bf16"),
                              flipped(made("06_zero3", dtype="bf16"), 1))
    for row in (r"05 fp32 +02 fp32 +4  none", r"05 bf16 +02 fp32 +4  none",
                r"06 bf16 +05 bf16 +4  step 1, digit 8",
                r"05 fp32( +25.0 / 25.0){4} +25.0$", r"02 fp32( +100.0 / 100.0){4} +100.0$"):
        if not re.search(f"^{row}", text, re.M) or holds:
            yield f"no row {row}: {text}"


def numbers():
    """Steps between fp32 numbers, first digits, and the parts of one interval outside of others."""
    one = struct.unpack(">f", bytes.fromhex("3f800001"))[0]
    tiny = struct.unpack(">f", bytes.fromhex("00000001"))[0]
    ten = struct.unpack(">f", bytes.fromhex("411fffff"))[0]  # the number below 10
    for a, b, apart, digit in ((1.0, one, 1, 8), (one, 1.0, -1, 8), (-tiny, tiny, 2, 1),
                               (ten, 10.0, 1, 1), (0.0, -0.0, 0, 1), (2.5, 2.25, -(1 << 20), 2),
                               (1.5, 10.5, None, 1), (1e-20, 2e-20, None, 1),
                               (None, 1.0, math.inf, 1)):
        a, b = (v and struct.unpack(">f", struct.pack(">f", v))[0] for v in (a, b))
        if differences.digit(a, b) != digit or apart not in (None, differences.ulps(a, b)):
            yield f"{a} and {b}: digit {differences.digit(a, b)}, {differences.ulps(a, b)} apart"
    for others, left in (([], [[0, 10]]), ([[2, 3], [5, 12]], [[0, 2], [3, 5]]),
                         ([[-1, 4]], [[4, 10]]), ([[0, 10]], []), ([[12, 13]], [[0, 10]])):
        if (found := traces.without([[0, 10]], others)) != left:
            yield f"0 to 10 without {others}: {found}"
    if (found := traces.joined([(3, 5), (0, 1), (4, 6), (1, 2)])) != [[0, 2], [3, 6]]:
        yield f"joined intervals: {found}"


# ---- What is refused -------------------------------------------------------------------------

def refused(folder):
    whole = (folder.path / folder.write("good.jsonl", made())).read_bytes()
    cut = whole[:len(whole) // 2]
    wrong = made()
    wrong[0]["run"]["ranks"] = "four"
    odd = made()
    odd[2]["loss"] = 0.1  # is no number of fp32
    for what, text, words in (
            ("cut", cut, "is incomplete: its end is cut off"),
            ("no_summary", whole[:whole.rindex(b"{\"summary")], "without the summary"),
            ("empty", b"", "is no log"), ("words", b"step 1 loss 4\n", "is no log"),
            ("json", b'{"runs":[]}\n', "is no log"), ("bytes", b'{"run":\xff\n', "is incomplete"),
            ("lists", b'{"run":[]}\n[]\n{"summary":[]}\n', "is no log as these programs write"),
            ("wrong", wrong, "is no log as these programs write"),
            ("odd", odd, "is no log as these programs write"), ("missing", None, "No such file")):
        if text is not None:
            folder.write(what, text)
        try:
            yield f"{what} is read as {load(folder.path / what)}"
        except Failure as failure:
            sentence = str(failure)
            if failure.code != 3 or not sentence.startswith(str(folder.path / what)) or \
                    words not in sentence or "\n" in sentence:
                yield f"{what}: not code 3 and '{words}', but {failure.code}: {sentence}"
    for names, words in ((["good.jsonl", "cut"], "cut is incomplete"),
                         ([], "run ./tutorial demo first")):
        done = folder.run(*names)
        if (done.returncode, done.stdout) != (3, "") or words not in done.stderr or \
                not re.fullmatch("tutorial: compare: .*\n", done.stderr):
            yield f"{names}: not one sentence with '{words}': {done}"
    done = folder.run(*folder.files(made(), flipped(made(), 2)))
    if done.returncode != 1 or DEFECT not in " ".join(done.stdout.split()):
        yield f"a defect: {done}"


# ---- The page --------------------------------------------------------------------------------

HEADINGS = ["fp32: five runs, the same bits in all 4 losses; bf16: one run",
            "holds 12.5 % of data parallelism's state on a device, and 12.5 % at its peaks",
            "as the formulas say", "a step waits 1.0 ms of its 2.0 for copies",
            "rises to 0.01 MB in a step",
            "waits 3.0 ms of its 10.0 for messages", "Over a link of 1 Gbit/s a step takes",
            "07 saves 87.5 % at its peaks on a device, in 64 it would save 87.5 %",
            "At 16 micro-batches a step 06 sends 24 times what 02 sends"]


def page(folder, told):
    """Each picture is there, and a table below it; told: of traces, a link and formulas."""
    new = {"trace": "trace.json"} if told else {}
    logs = [made("02_distributed_adam", **new), made("05_zero2", **new), made("06_zero3", **new),
            made("06_zero3", dtype="bf16"), made("07_offload", **new)]
    if told:
        trace(folder.path / "trace.json")
        folder.build.mkdir(exist_ok=True)
        (folder.build / "plan").write_text(PLANNER)
        (folder.build / "plan").chmod(0o755)
    logs.append(made("06_zero3", **({"link": 1.0, "prefetch": 0} if told else {})))
    done = folder.run(*folder.files(*logs))
    path = folder.build / "compare/report.html"
    if done.returncode != 0 or str(path) not in done.stdout:
        yield f"no page: {done}"
        return
    text = path.read_text()
    parsed = Page(text)
    yield from parsed.faults
    if len(set(parsed.ids)) != len(parsed.ids):
        yield "two elements have the same id"
    if re.search(r"<script|@import|https?://(?!www\.w3\.org/)", text):
        yield "the page names what is elsewhere"
    tags = [tag for tag, _ in parsed.order]
    if parsed.order[0] != ("html", {"lang": "en"}) or tags.count("h1") != 1 or \
            "title" not in tags or "width=device-width" not in text:
        yield "a page has a language, a title, a heading and the width of its screen"
    for tag, attributes in parsed.order:
        if tag == "svg" and not (attributes.get("role") == "img" and attributes["aria-label"]):
            yield "a picture without words"
    sections = re.split(r"<section ", text)[1:]
    pictures = [section.count("<figure") for section in sections]
    expected = [2, 1, 1, 1, *[1 if told else 0] * 5]
    if pictures != expected or tags.count("svg") != sum(expected):
        yield f"pictures {pictures}, not {expected}"
    for count, heading, section in zip(expected, HEADINGS, sections):
        title = re.search("<h2.*?>(.*)</h2>", section)[1].replace("&nbsp;", " ")
        if told and heading not in title:
            yield f"'{heading}' is not in {title}"
        if count and section.rfind("<table") < section.rfind("</figure"):
            yield f"no numbers below the pictures of {title}"
    cells = [re.sub("<[^>]*>", "|", row) for row in re.findall("<tr>.*?</tr>", text)]
    for row in ("06 with prefetch||2.0||240.0||24.0||2.4", "06 without prefetch||2.0||242.0",
                "02||2.0||162.0||18.0", "06||3 / 2||12||48", "06||75.0||75.0",
                "07 with prefetch||2.0||240.0", "07||3 / 2||12||48", "07||87.5||87.5",
                "on its host||0.0 / 0.0||0.0 / 0.0||37.5 / 37.5", "07 fp32||4||–||1||0.00",
                "10.00||3.00||4.00||3.00||1.00||2.00||1.00"):
        if told and not any(f"|{row}|" in line or f"|{row} /" in line for line in cells):
            yield f"no row {row} in {cells}"
    alone = Study([load(path) for path in folder.files(made(), made(seed=2))], [],
                  Plans(folder.build))
    titles = [section.title for section in report.sections(alone)]
    for title in ("Over a link of 1 Gbit/s a step takes 18 ms in 05, by formula",
                  "At 16 micro-batches a step 05 sends 17 x (N - 1)/N elements a parameter"):
        if told and title not in titles:
            yield f"no '{title}' in {titles}"
    if not told and (text.count("--trace FILE") != 2 or text.count("ninja -C") != 3):
        yield "it is not said how to get what is missing"


def problems(folder):
    yield from numbers()
    yield from refused(folder)
    yield from pairs(folder)
    yield from found_wrong(folder)
    for told in (False, True):
        yield from page(folder, told)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="compare_") as path:
        with contextlib.chdir(path):
            found = list(problems(Folder(Path(path))))
    print("\n".join(found) or "runs are compared as they should be")
    sys.exit(1 if found else 0)
