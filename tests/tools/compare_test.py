# SPDX-License-Identifier: MIT
"""`./tutorial compare` of recorded logs: where bits part, what is counted, what is refused."""
import re
from xml.etree import ElementTree

import pytest
from recorded import LOGS, changed, recorded, text_of

import findings
import report
from runs import Failure

FP32 = ["02_distributed_adam_fp32", "05_zero2_fp32", "06_zero3_fp32", "07_offload_fp32"]


@pytest.fixture
def study(folder):
    """Makes one of logs, in files whose names a page must not take for elements."""
    def of(*logs, **options):
        paths = [folder / f"{i}<b>.jsonl" for i in range(len(logs))]
        for path, lines in zip(paths, logs):
            path.write_text(text_of(lines))
        return findings.Study([*map(report.load, paths)], [], **options)

    return of


@pytest.fixture
def text(study, capsys):
    def of(*logs, **options):
        report.print_text(study(*logs, **options))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        return "\n".join(lines)

    return of


def with_loss(lines, step, loss):
    lines[step]["loss"] = loss
    return lines


def resumed(lines):
    """As if its first two steps had been another run's."""
    lines[1:3] = [{"resume": {"step": 2}}]
    return lines


OTHER = "06_zero3_fp32"
LEAVES = "06 fp32 leaves 05 fp32 in step 3: the loss is 3.77812052 (0x4071ccba) there, "
# The second log beside 05's, whether that is as it should be, what is said of it.
PAIRS = [
    (recorded(OTHER), True, ["none the same bits"]),
    (with_loss(recorded(OTHER), 3, 3.778120756149292), False,  # the next fp32 number
     [LEAVES + "3.77812076 (0x4071ccbb) here. 1 of 4 steps differ.", findings.REASONS,
      "The parameters at the end are the same"]),
    (with_loss(recorded(OTHER), 3, None), False,
     [LEAVES + "no number (null) here", findings.REASONS]),
    (changed(recorded(OTHER), "layer_digests", 3), False,
     ["none differ, layer 3 first", "differ in 1 of 8 layers, layer 3 is", findings.REASONS]),
    (recorded("06_zero3_bf16"), True, ["06 bf16 leaves 05 fp32 in step 1: ", findings.REASONS]),
    (resumed(recorded(OTHER)), True, ["the bits of 05 fp32 in 2 losses",
                                      "Their logs have the steps 3 to 4 and 1 to 4"])]


@pytest.mark.parametrize("other, good, words", PAIRS)
def test_where_bits_part(study, text, other, good, words):
    logs = recorded("05_zero2_fp32"), other
    said = " ".join(text(*logs).split())
    assert [word for word in words if word not in said] == []
    assert (findings.REASONS in said) == (findings.REASONS in words)
    assert report.holds(study(*logs)) == good


@pytest.mark.parametrize("names, words", [
    (["memory", "gradients", "peak"], "gradients: peak 1579009 bytes, formula 1579008"),
    (["traffic", "phases", "update", "counted"], "update: sent 1 elements, formula 0"),
    (["traffic", "scalars", "counted"], "scalars: sent 9 elements, formula 8"),
    (["host_memory", "optimizer", "resident"],
     "07_offload fp32, optimizer on the host: resident 3158017 bytes, formula 3158016"),
    (["bus", "to_device", "counted"], "to_device: 4210689 bytes over the bus, formula 4210688")])
def test_counts_that_differ_from_formulas(study, text, names, words):
    log = changed(recorded("07_offload_fp32"), *names)
    assert words in " ".join(text(log).split()) and not report.holds(study(log))


P = 526336  # parameters: 8 layers of 257 x 256


def test_rows(text):
    """Of 2 ranks: what is held by the chapters' formulas, with a layer or two that are borrowed."""
    said = text(*map(recorded, FP32))

    def mb(*counts):
        return " +".join(f"{count / 1e6:.2f}" for count in counts)

    layer, sent = 4 * P / 8, 4 * P
    for row in (
            f"02 fp32( +{mb(16 * P)}){{2}} +0.00( +{mb(16 * P)}){{2}} +0.00( +{mb(sent)}){{2}}",
            f"05 fp32( +{mb(10 * P)}){{2}} +37.50( +{mb(10 * P + layer)}){{2}} +34.38",
            f"06 fp32( +{mb(8 * P)}){{2}} +50.00( +{mb(8 * P + 4 * layer)}){{2}} +37.50"
            f"( +{mb(1.5 * sent)}){{2}}",
            f"  on its host( +{mb(6 * P)}){{2}}",
            f"  on its host +0 +0 +{mb(6 * P, 2 * P)}",
            "06 fp32 +3 x 1/2", rf"07 fp32 +2 +– +1( +{mb(2 * P)}){{2}} +\d"):
        assert re.search(f"(?m)^{row}", said), row


def test_to_the_byte(text):
    """With --bytes; and what a library sends within its own collectives is not counted."""
    log = recorded("05_zero2_fp32")
    for row in log[-1]["summary"]["traffic"]["phases"].values():
        row["counted"] = None
    said = text(log, exact=True)
    assert re.search(rf"(?m)^05 fp32( +{10 * P}){{2}}( +{10 * P + P // 2}){{2}} +{4 * P} +–$", said)
    assert "as the formulas say" in said


def test_a_run_has_a_name_of_its_own(study):
    names = [run.label for run in study(*[recorded("05_zero2_fp32")] * 2).runs]
    assert names == ["05 0<b>", "05 1<b>"]
    assert findings.labels(study(recorded("05_zero2_fp32")).runs * 2) == ["1: 05 0<b>",
                                                                          "2: 05 0<b>"]


GOOD = text_of(recorded("05_zero2_fp32")).encode()
UNLIKE = "is no log as these programs write"


@pytest.mark.parametrize("content, words", [
    (None, "No such file"), (b"", "without the summary"), (b'{"run":\xff\n', "line 1 is no JSON"),
    (GOOD[:-9], "line 6 is no JSON"), (GOOD[:GOOD.rindex(b'{"summary')], "without the summary"),
    (GOOD.replace(b'"step":3', b'"step":2'), "steps, or not one after the other"),
    (GOOD.replace(b'"digest"', b'"x":' + b"[" * 10**5 + b"]" * 10**5 + b',"digest"'), "too deep"),
    (GOOD.replace(b'"ranks":2', b'"ranks":"two"'), UNLIKE),
    (GOOD.replace(b'"median_ms"', b'"ms"'), UNLIKE)])
def test_what_is_no_log(folder, content, words):
    path = folder / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure, match=f"^{path}.*{words}") as failure:
        report.load(path)
    assert failure.value.code == 3 and "\n" not in str(failure.value)


# Of each section: whether it has a picture, and its heading. Its tables are those of the text.
SECTIONS = [
    (True, "fp32: 7 runs, the same bits in all 4 losses; bf16: 5 runs, the same bits in all 4"),
    (True, "saves 87.50 % of data parallelism's state on a device, and 81.25 % at its peaks"),
    (False, "as the formulas say"), (False, "a step waits 0.2 ms of its ")]


def test_page(study, folder):
    """It ends what it begins, and loads nothing."""
    path = folder / "new/report.html"
    report.write(study(*(recorded(name) for name in LOGS if name[-4:] in ("fp32", "bf16"))), path)
    page = ElementTree.fromstring(path.read_text().partition("\n")[2])
    assert page.find(".//script") is None
    assert not re.search(r"@import|url\(", page.find("head/style").text)
    for name, value in (pair for element in page.iter() for pair in element.items()):
        if re.search(r"(^|\})(src|href|data)$", name):
            assert value.startswith("#"), "the page loads what is elsewhere"
        assert "url(" not in value.replace("url(#", "")
    found = page.findall(".//section")
    for section, (picture, heading) in zip(found, SECTIONS, strict=True):
        assert any(element.tag.endswith("}svg") for element in section.iter()) == picture
        assert heading in "".join(section.find("h2").itertext()).replace("\u00a0", " ")
        assert any(cell.text for cell in section.iter("td"))
    report.write(study(recorded(OTHER), with_loss(recorded(OTHER), 3, None)), path)
    assert "06 1<b> leaves 06 0<b>" in "".join(
        ElementTree.fromstring(path.read_text().partition("\n")[2]).itertext())
