# SPDX-License-Identifier: MIT
"""`./tutorial compare` of made-up logs: one bit, its reason, what is refused, and the page."""
import math
import re
import struct
from xml.etree import ElementTree

import pytest

from made_up import LOSSES, flipped, made, text_of
import report
from findings import Study, digit, labels, ulps
from runs import Failure


@pytest.fixture
def study(folder):
    """Makes one of logs, in files whose names a page must not take for elements."""
    def of(*logs):
        paths = [folder / f"{i}<b>.jsonl" for i in range(len(logs))]
        for path, lines in zip(paths, logs):
            path.write_text(text_of(lines))
        return Study([report.load(path) for path in paths], [])

    return of


@pytest.fixture
def text(study, capsys):
    def of(*logs):
        report.print_text(study(*logs))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        return "\n".join(lines)

    return of


DEFECT = "this is a defect"
SAME = "none the same bits"
NOT_ASSOCIATIVE = "addition is not associative"
ANOTHER = "another run"
OTHERS = {"ranks": 2, "accumulate": 2}
# The first log, the second, whether a bit of that is flipped, what is said of it.
PAIRS = [
    ({}, {}, False, [SAME]),
    ({}, {}, True, [DEFECT, "step 3, digit 8", "2.50000000 (0x40200000) there, "
                    "2.50000024 (0x40200001) here, 1 fp32 number apart. 1 of 4 steps",
                    "differ in 1 of 4 layers, layer 1 is the first"]),
    ({}, {"seed": 2}, True, ["seed 1 and 2", ANOTHER]),
    ({}, {"batch": 16}, True, ["batch 8 and 16: 32 and 64 samples a step: another run"]),
    ({}, {"ranks": 2, "batch": 16}, True, [NOT_ASSOCIATIVE, "ranks 4 and 2; batch 8 and 16"]),
    ({}, OTHERS, True, [NOT_ASSOCIATIVE, "ranks 4 and 2; accumulate 1 and 2"]),
    (OTHERS, OTHERS | {"chapter": "04_zero1"}, True,
     [NOT_ASSOCIATIVE, "family (when the ranks are added) every micro-batch and once a step"]),
    ({}, {"chapter": "04_zero1"}, True, [DEFECT]),
    (OTHERS | {"chapter": "06_zero3"}, OTHERS | {"chapter": "07_offload"}, True, [DEFECT]),
    ({"chapter": "06_zero3"}, {"chapter": "07_offload", "bus": 0.1}, False,
     [SAME, "07 fp32, bus 0.1 GB/s, prefetch 1: a step waits 1.0 ms of its 2.0 for copies"]),
    ({}, {"chapter": "01_adam", "ranks": 1, "accumulate": 4}, True, [DEFECT]),
    ({"clip": 1.0}, {"chapter": "01_adam", "ranks": 1, "accumulate": 4, "clip": 1.0}, True,
     ["chapter 05_zero2 and 01_adam: one process adds the norm"]),
    ({"dtype": "bf16"}, {"dtype": "bf16", "ranks": 1, "accumulate": 4}, True, [NOT_ASSOCIATIVE]),
    ({}, {"dtype": "bf16"}, True, ["dtype fp32 and bf16"]),
    ({}, {"device": "cuda"}, True, ["device cpu and cuda", "an order of its own"]),
    ({}, {"reduce": "native"}, True, ["reduce ordered and native", "NCCL adds"]),
    ({"reduce": "native"}, {"reduce": "native"}, True, ["reduce native and native"]),
    ({"reduce": "native", "ranks": 2}, {"reduce": "native", "ranks": 2}, True, [DEFECT]),
    ({"loss_scale": 8}, {"loss_scale": 4}, True, [DEFECT, "loss-scale 8 and 4"]),
    ({"dtype": "fp16", "loss_scale": 8}, {"dtype": "fp16", "loss_scale": 4}, True, [ANOTHER]),
    ({"tea": "green"}, {"tea": "black"}, True, ["tea green and black: not known to this"]),
    ({"prefetch": 1}, {"prefetch": 2}, False,
     [SAME, "The same bits although prefetch 1 and 2: 05 1<b>."]),
    # What must not move a bit.
    ({"chapter": "07_offload", "link": 0, "trace": "", "memory": False, "latency": 0, "timeout": 60,
      "check-every": 0, "device-memory": 0, "pageable": False, "host-threads": 0},
     {"chapter": "07_offload", "link": 9, "trace": "t", "memory": True, "latency": 5, "timeout": 9,
      "check-every": 3, "device-memory": 9, "pageable": True, "host-threads": 3, "bus": 2.0,
      "prefetch": 0, "log": "b", "quiet": False}, True,
     [DEFECT, "link 0 and 9", "bus 0.0 and 2.0", "device-memory 0 and 9",
      "pageable False and True"]),
    ({"data": "one"}, {"data": "copy"}, True, [DEFECT]),
    ({"data": "one"}, {"data": "two"}, True, ["data one and two", "another text: another run"]),
    ({"losses": [4.0, None]}, {"losses": [4.0, None]}, False, [SAME]),
    ({"losses": [4.0, 2.0]}, {"losses": [4.0, None]}, False,
     [DEFECT, "2.00000000 (0x40000000) there, no number (null) here. 1 of 2"]),
    ({"losses": LOSSES}, {"losses": LOSSES[:2]}, False,
     ["has the bits of", "in 2 losses", "have the steps 1 to 2 and 1 to 4"]),
    ({"losses": LOSSES}, {"losses": [4.0, 0.0]}, False, [DEFECT, "step 2, digit 1"])]


@pytest.mark.parametrize("first, second, flip, words", PAIRS)
def test_bits_and_the_reason(study, text, folder, monkeypatch, first, second, flip, words):
    monkeypatch.chdir(folder)
    for name, content in (("one", "a"), ("copy", "a"), ("two", "b")):
        (folder / name).write_text(content)
    other = flipped(made(**second), 3) if flip else made(**second)
    said = " ".join(text(made(**first), other).split())
    assert [word for word in words if word not in said] == []
    assert (DEFECT in words) == (DEFECT in said) != report.holds(study(made(**first), other))


# What is changed in a log's summary, and what is said of it.
CHANGED = [
    (["layer_digests", 3], "1 of 4 layers, layer 3 is the first"),
    (["digest"], DEFECT),
    (["memory", "gradients", "peak"], "gradients: peak 1025 bytes, formula 1024"),
    (["traffic", "phases", "update", "counted"], "update: sent 1 elements, formula 0"),
    (["host_memory", "optimizer", "resident"],
     "07_offload fp32, optimizer on the host: resident 3073 bytes, formula 3072"),
    (["bus", "to_device", "counted"], "to_device: 4097 bytes over the bus, formula 4096")]


def change(lines, names):
    """What is a number is one more then."""
    *above, last = names
    part = lines[-1]["summary"]
    for name in above:
        part = part[name]
    part[last] = "cc" if isinstance(part[last], str) else part[last] + 1
    return lines


@pytest.mark.parametrize("names, words", CHANGED)
def test_what_does_not_hold(study, text, names, words):
    logs = made("06_zero3"), change(made("07_offload"), names)
    assert words in " ".join(text(*logs).split())
    assert not report.holds(study(*logs))


def uncounted(lines):
    """What a library sends within its own collectives."""
    for row in lines[-1]["summary"]["traffic"]["phases"].values():
        row["counted"] = None
    return lines


# A resumed run of a reader's own chapter; one of which a step's line is missing.
RESUMED, GAP = made("08_mine"), made("06_zero3")
del RESUMED[0]["run"]["options"]["prefetch"]  # of which a chapter that offloads may know nothing
RESUMED[1:3], GAP[3] = [{"resume": {"step": 2}}], {"save": {"step": 3}}
ROWS = [
    ([made(), RESUMED, GAP],
     [r"08 fp32 .* 3 to 4 ", r"08 fp32 +05 fp32 +2  none +the same bits",
      r"08 fp32 has the bits of 05 fp32 in 2 losses.$",
      r"  Their logs have the steps 3 to 4 and 1 to 4: those of both are compared.$",
      r"  Their logs have the steps 1 to 4 without 3 and 1 to 4: ", r"06 fp32 +2 x 3/4 "]),
    ([made("02_distributed_adam"), made(), made(dtype="bf16"),
      flipped(made("06_zero3", dtype="bf16"), 1)],
     [r"05 fp32 +02 fp32 +4  none", r"05 bf16 +02 fp32 +4  none",
      r"06 bf16 +05 bf16 +4  step 1, digit 8",
      r"02 fp32( +16.4 +16.4 +0.00){2} +6.14 +6.14$",
      r"05 fp32( +4.10 +4.10 +75.00){2} +6.14 +6.14$",
      r"06 bf16( +4.10 +4.10){2} +3.07 +3.07$"]),
    ([made("02_distributed_adam"), made("07_offload")],
     [r"07 fp32( +2.05 +2.05 +87.50){2} +6.14 +6.14$", r"  on its host( +3.07 +3.07){2}$",
      r"  on its host +0 +0 +3.07 +1.02",
      r"07 fp32 +4 +– +1( +1.02){2} +2.0( +0.50){2}( +0.25){2}$"]),
    ([uncounted(made())], [r"05 fp32 +2 x 3/4", r"05 fp32( +4.10){4} +6.14 +–$"]),
    # A loss of 2^48 is no wider than others.
    ([made(), made(losses=[4.0, 2.0**48])], [r"05 1<b> +1<b> +fp32 +4 +1 +cpu +2 +2.81e\+14 +"]),
    ([made(), made()], [r"05 0<b> +0<b>", r"05 1<b> +1<b>"]),
    ([made(link=0), made(link=9.5)], [r"05 1<b> +05 0<b> "])]


@pytest.mark.parametrize("lines, rows", ROWS)
def test_rows(text, lines, rows):
    shown = text(*lines)
    assert [row for row in rows if not re.search(f"^{row}", shown, re.M)] == []


def test_a_peak_stands_beside_its_own_formula(text, folder, monkeypatch, capsys):
    """With a layer that is borrowed; and with --bytes, to the byte."""
    lines = made("06_zero3")
    for what in ("peak", "predicted"):
        lines[-1]["summary"]["memory"]["gradients"][what] += 2000
    assert re.search(r"(?m)^06 fp32 +4.10 +4.10 +75.00 +6.10 +6.10 +62.79 ",
                     text(made("02_distributed_adam"), lines))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["compare", "--bytes", *map(str, folder.glob("*.jsonl"))])
    assert report.main() == 0
    assert re.search(r"(?m)^06 .* 4096 +75.00 +6096 +6096 +62.79 +6144 +6144$",
                     capsys.readouterr().out)


def test_what_nobody_counts_is_not_wrong(study):
    assert report.holds(study(uncounted(made())))
    assert labels(study(made()).runs * 2) == ["1: 05 0<b>", "2: 05 0<b>"]  # the same log twice


def fp32(bits):
    return struct.unpack(">f", bytes.fromhex(bits))[0]


@pytest.mark.parametrize("a, b, apart, place", [
    (1.0, fp32("3f800001"), 1, 8), (fp32("3f800001"), 1.0, -1, 8),
    (-fp32("00000001"), fp32("00000001"), 2, 1), (fp32("411fffff"), 10.0, 1, 1), (0.0, -0.0, 0, 1),
    (2.5, 2.25, -(1 << 20), 2), (1.5, 10.5, 23592960, 1),
    (fp32("1e3ce508"), fp32("1ebce508"), 1 << 23, 1), (None, 1.0, math.inf, 1)])
def test_steps_between_numbers_and_their_first_digit(a, b, apart, place):
    assert (ulps(a, b), digit(a, b)) == (apart, place)


GOOD = text_of(made()).encode()
UNLIKE = "is no log as these programs write"
NO_LOGS = [
    (None, "No such file"), (b"", "without the summary"), (b'{"run":\xff\n', "line 1 is no JSON"),
    (GOOD[:len(GOOD) // 2], "line 6 is no JSON, nested too deep, or its end is cut off"),
    (GOOD[:GOOD.rindex(b'{"summary')], "without the summary"),
    (b'{"run":[]}\n[]\n{"summary":[]}\n', "has no steps"),
    (GOOD.replace(b'"step":3', b'"step":2'), "steps, or not one after the other"),
    (GOOD.replace(b'"digest"', b'"x":' + b"[" * 10**5 + b"]" * 10**5 + b',"digest"'), "too deep"),
    *((GOOD.replace(b'"ranks":4', b'"ranks":' + bad), "line 1: run.ranks is ")
      for bad in (b'"four"', b"0", b"3e27")),
    (GOOD.replace(b'"parameters":1', b'"parameters":-1'), "run.parameters is -1024, not a whole"),
    (GOOD.replace(b'"ms":2.0', b'"ms":1e308'), "line 2: ms is 1e+308, not a number below"),
    (GOOD.replace(b'"peak":1024', b'"peak":"x"'), "memory.parameters.peak is "),
    (GOOD.replace(b'"median_ms":2.0,', b""), UNLIKE),  # a field is missing
    *((GOOD.replace(b'"loss":3.5', b'"loss":' + bad), "line 3: loss is ") for bad in
      (b"0.1", b'"x"', b"1e999")),
]


@pytest.mark.parametrize("content, words", NO_LOGS, ids=[words for _, words in NO_LOGS])
def test_what_is_no_log(folder, content, words):
    path = folder / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure) as failure:
        report.load(path)
    assert failure.value.code == 3 and "\n" not in str(failure.value)
    assert str(failure.value).startswith(str(path)) and words in str(failure.value)


# Of each section: whether it has a picture, and its heading. Its tables are those of the text.
SECTIONS = [
    (True, "fp32: 5 runs, the same bits in all 4 losses; bf16: one run"),
    (True, "saves 87.50 % of data parallelism's state on a device, and 87.50 % at its peaks"),
    (False, "as the formulas say"), (False, "a step waits 1.0 ms of its 2.0 for copies")]


def test_page(study, folder, capsys):
    """It ends what it begins, and loads nothing."""
    path = folder / "new/report.html"
    report.write(study(
        made("02_distributed_adam"), made(), made("06_zero3"), made("06_zero3", dtype="bf16"),
        made("07_offload"), made("06_zero3", link=1.0, prefetch=0)), path)
    assert str(path) in capsys.readouterr().out
    page = ElementTree.fromstring(path.read_text().partition("\n")[2])
    assert page.find(".//script") is None
    assert not re.search(r"@import|url\(", page.find("head/style").text)
    for name, value in (pair for element in page.iter() for pair in element.items()):
        if re.search(r"(^|\})(src|href|data)$", name):
            assert value.startswith("#"), "the page loads what is elsewhere"
        assert "url(" not in value.replace("url(#", "")
    found = page.findall(".//section")
    assert len(found) == len(SECTIONS)
    for section, (picture, heading) in zip(found, SECTIONS):
        assert any(element.tag.endswith("}svg") for element in section.iter()) == picture
        assert heading in "".join(section.find("h2").itertext()).replace("\u00a0", " ")
        assert any(cell.text for cell in section.iter("td"))
