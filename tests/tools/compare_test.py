# SPDX-License-Identifier: MIT
"""`./tutorial compare` says of recorded logs where bits part, and what is counted and refused."""
import itertools
import re
from xml.etree import ElementTree

import pytest
from recorded import LOGS, TRACE, changed, recorded, text_of

import counts
import findings
import report
from overlap import times_of
from recording import Trace
from runs import Failure, first_line, sent

FP32 = ["02_distributed_adam_fp32", "05_zero2_fp32", "06_zero3_fp32", "07_offload_fp32",
        "08_infinity_fp32"]


@pytest.fixture
def study(folder):
    """Makes a Study of logs, in files whose names a page must not take for elements of HTML."""
    def of(*logs, **options):
        paths = [folder / f"{i}<b>.jsonl" for i in range(len(logs))]
        for path, lines in zip(paths, logs):
            path.write_text(text_of(lines))
        return findings.Study([*map(report.load, paths)], [], **options)

    return of


@pytest.fixture
def text(study, capsys):
    def of(*logs, **options):
        report.print_text(report.sections(study(*logs, **options)))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        return "\n".join(lines)

    return of


def with_loss(lines, step, loss, name="loss"):
    lines[step][name] = loss
    return lines


def resumed(lines):
    """Returns the log as if another run had made its first two steps."""
    lines[1:3] = [{"resume": {"step": 2}}]
    return lines


OTHER = "06_zero3_fp32"
LEAVES = "06 fp32 leaves 05 fp32 in step 3: the loss is 3.77812052 (0x4071ccba) there, "
# (a log to compare with 05's, whether report.holds() for the two, what is said of them).
PAIRS = [
    (recorded(OTHER), True, ["Both runs in fp32 have the same losses and the same parameters, to "
                             "the bit."]),
    (with_loss(recorded(OTHER), 3, 3.778120756149292), False,  # the next fp32 number
     ["06_zero3 leaves 05_zero2 in step 3, in fp32.", findings.REASONS,
      LEAVES + "3.77812076 (0x4071ccbb) here. 1 of 4 steps differ, by at most 2.4e-07.",
      "The parameters at the end are the same"]),
    (with_loss(recorded(OTHER), 3, None), False,
     [LEAVES + "no number (null) here", findings.REASONS]),
    (with_loss(recorded(OTHER), 2, 1.5, "grad_norm"), True,
     ["the same losses", "Their gradients' norms differ from step 2 on.", findings.REASONS]),
    (changed(recorded(OTHER), "layer_digests", 3), False,
     ["06_zero3 leaves 05_zero2 in its parameters alone, in fp32.",
      "differ in 1 of 8 layers, layer 3 is", findings.REASONS]),
    (recorded("06_zero3_bf16"), True, ["There is one run in fp32; there is one run in bf16.",
                                       "06 bf16 leaves 05 fp32 in step 1: ", findings.REASONS]),
    (resumed(recorded(OTHER)), True, ["Both runs in fp32 have the same bits in 2 common losses.",
                                      "the bits of 05 fp32 in 2 losses",
                                      "Their logs have the steps 3 to 4 and 1 to 4"])]


@pytest.mark.parametrize("other, good, words", PAIRS)
def test_where_bits_part(study, text, other, good, words):
    logs = recorded("05_zero2_fp32"), other
    said = " ".join(text(*logs).split())
    assert [word for word in words if word not in said] == []
    assert (findings.REASONS in said) == (findings.REASONS in words)
    assert ("What they compute is the same" in said) == ("Both runs in fp32" in said)
    assert report.holds(study(*logs)) == good


@pytest.mark.parametrize("names, words", [
    (["memory", "gradients", "peak"], "gradients: peak 1579009 bytes, formula 1579008"),
    (["traffic", "phases", "update", "counted"], "update: sent 1 elements, formula 0"),
    (["traffic", "scalars", "counted"], "scalars: sent 9 elements, formula 8"),
    (["host_memory", "optimizer", "resident"],
     "07_offload fp32, optimizer on the host: resident 3158017 bytes, formula 3158016"),
    (["bus", "to_device", "counted"], "to_device: 4210689 bytes copied, formula 4210688"),
    (["disk_memory", "optimizer", "peak"],
     "08_infinity fp32, optimizer on the disk: peak 2105345 bytes, formula 2105344"),
    (["disk", "read", "counted"], "read: 8421377 bytes copied, formula 8421376")])
def test_counts_that_differ_from_formulas(study, text, names, words):
    log = changed(recorded(f"{'08_infinity' if 'disk' in names[0] else '07_offload'}_fp32"), *names)
    assert words in " ".join(text(log).split()) and not report.holds(study(log))


P = 526336  # parameters: 8 layers of 257 x 256


def test_rows(text):
    """Rows of 2 ranks say what the chapters' formulas give, borrowed layers included."""
    said = text(*map(recorded, FP32))
    assert "Look at times last" in said and "by choice; notes/changing/overlap.md" in " ".join(
        said.split()) and "Look at times" not in text(recorded("01_adam_fp32"))

    def mb(*counts):
        return " +".join(f"{count / 1e6:.2f}" for count in counts)

    layer, sent = 4 * P / 8, 4 * P
    for row in (
            f"02 fp32 +{mb(4 * P, 4 * P, 8 * P, 16 * P)} +0.00 +{mb(16 * P)} +0.00 +0.59",
            f"05 fp32 +{mb(4 * P, 2 * P, 4 * P, 10 * P)} +37.50 +{mb(10 * P + layer)} +34.38",
            f"06 fp32 +{mb(2 * P, 2 * P, 4 * P, 8 * P)} +50.00 +{mb(8 * P + 4 * layer)} +37.50",
            f"  on the host +0 +0 +{mb(6 * P, 6 * P)} +{mb(6 * P)} +{mb(2 * P)}",
            f"08 fp32 +0 +0 +0 +0 +100.00 +{mb(4 * layer)} +87.50",
            f"  on the host +{mb(2 * P, 2 * P, 3 * layer, *[4 * P + 3 * layer] * 2)} +0",
            f"  on the disk +0 +0 +{mb(4 * P, 4 * P)} +{mb(4 * P)} +0",
            f"05 fp32 +2 x 1/2 +0 +{mb(sent / 2, sent / 2)} ",
            f"06 fp32 +3 x 1/2 +{mb(sent / 2, sent)} +0 "):
        assert re.search(f"(?m)^{row}", said), row
    assert f"holds {mb(4 * P)} MB of state, {mb(6 * P)} on the host, and sends 1.5 times what " \
        f"data parallelism sends, which holds {mb(16 * P)}." in " ".join(said.split())


def test_to_the_byte(text):
    """--bytes shows all digits. What a library sends in its own collectives is not counted."""
    log = recorded("05_zero2_fp32")
    for row in log[-1]["summary"]["traffic"]["phases"].values():
        row["counted"] += len(log[1:-1])
    assert re.search(rf"(?m)^05 fp32 .* 4 +{2 * P + 4} +{2 * P + 4} ", text(log, exact=True))
    for row in log[-1]["summary"]["traffic"]["phases"].values():
        row["counted"] = None
    said = text(log, exact=True)
    assert re.search(rf"(?m)^05 fp32( +\d+){{3}} +{10 * P} +{10 * P + P // 2} +\d+$", said)
    assert re.search(rf"(?m)^05 fp32 +2 x 1/2 +0 +{2 * P} +{2 * P} ", said)
    assert "as the formulas say" in said


def test_a_run_has_a_name_of_its_own(study):
    names = [run.label for run in study(*[recorded("05_zero2_fp32")] * 2).runs]
    assert names == ["05 0<b>", "05 1<b>"]
    assert findings.labels(study(recorded("05_zero2_fp32")).runs * 2) == ["1: 05 0<b>",
                                                                          "2: 05 0<b>"]


GOOD = text_of(recorded("05_zero2_fp32")).encode()
UNLIKE = "is no log as these programs write"


@pytest.mark.parametrize("content, words", [
    (None, "No such file"), (b"", "without the summary"),
    (GOOD[:GOOD.rindex(b'{"summary')], "without the summary"),
    (GOOD.replace(b'"step":3', b'"step":2'), "steps, or not one after the other"),
    (GOOD.replace(b'"ranks":2', b'"ranks":"two"'), UNLIKE),
    (GOOD.replace(b'"median_ms"', b'"ms"'), UNLIKE)])
def test_what_is_no_log(folder, content, words):
    path = folder / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure, match=f"^{path}.*{words}") as failure:
        report.load(path)
    assert failure.value.code == 3 and "\n" not in str(failure.value)


# Of each section: (its heading, how many pictures it has, what the first of them says).
SECTIONS = [
    ("saves 100.00 % of what data parallelism holds on a device, and 93.75 % at its peak", 2,
     "04_zero1: 6.32 MB, 25 % saved"),
    ("All 8 runs in fp32 and all 6 runs in bf16 have the same losses and the same parameters, to "
     "the bit", 2, "losses in fp32: all 8 runs: from 5.5388 to 3.2265"),
    ("sends 3 x 1/2 elements per parameter and step, 02 fp32 2 x 1/2, as the formulas say", 4,
     "06_zero3: 3.16 MB"),
    ("A step over time", 2, "08_infinity: of "), ("What you saw, and what next", 0, "")]


@pytest.fixture
def page(study, folder):
    """The page of these logs, read as XML. By the logs lies a trace, of steps after `before`."""
    def of(*logs, before=0):
        path = folder / "new/report.html"
        (folder / "trace").write_text(re.sub(
            '"step":([1-9])', lambda step: f'"step":{int(step[1]) + before}', TRACE.read_text()))
        report.write(study(*logs), path)
        return ElementTree.fromstring(path.read_text().partition("\n")[2])

    return of


def widths(picture, colour):
    return [float(rect.get("width")[:-1]) for rect in picture.iter("rect")
            if rect.get("fill") == colour]


def test_page(page):
    """The page closes each element, and loads nothing. Pictures say in words what they show."""
    logs = [recorded(name) for name in LOGS if name[-4:] in ("fp32", "bf16")]
    logs[-1][0]["run"]["options"]["trace"] = "elsewhere/trace"
    made = page(*logs)
    assert made.find(".//script") is None
    assert not re.search(r"@import|url\(", made.find("head/style").text)
    for name, value in (pair for element in made.iter() for pair in element.items()):
        assert not re.search(r"(^|\})(src|href|data)$", name) and "url(" not in value
    for section, (heading, count, says) in zip(made.findall(".//section"), SECTIONS, strict=True):
        assert heading in "".join(section.find("h2").itertext()).replace("\u00a0", " ")
        pictures = section.findall(".//svg[@role='img']")
        assert len(pictures) == count
        assert count == 0 or says in pictures[0].get("aria-label")
        assert all(any(cell.text for cell in table.iter("td")) for table in section.iter("table"))
    assert all(table in [inner for fold in made.iter("details") for inner in fold.iter("table")]
               for table in made.iter("table"))
    fp32, bf16 = made.findall(".//section")[0].findall(".//svg[@role='img']")
    for _, row in itertools.groupby(fp32.iter("rect"), lambda rect: rect.get("y")):
        ends = [[float(rect.get(name)[:-1]) for name in ("x", "width")] for rect in row]
        assert [left + width for left, width in ends[:-1]] == pytest.approx(
            [left for left, _ in ends[1:]], abs=0.01)
    whole, *_, half, also = widths(fp32, counts.COLOURS["parameters"])
    assert [half, also] == pytest.approx([whole / 2] * 2, abs=0.01)
    assert widths(bf16, counts.COLOURS["parameters"])[0] == pytest.approx(whole / 2, abs=0.01)


def test_a_curve_for_each_course(page):
    """All runs that agree share a curve. A loss that is no number interrupts a curve."""
    for other, heading, paths in (
            (recorded(OTHER), "Both runs in fp32 have the same losses", ["LLL"]),
            (with_loss(recorded(OTHER), 3, None), "06_zero3 leaves 05_zero2 in step 3, in fp32",
             ["LLL", "LM"])):
        section = page(recorded("05_zero2_fp32"), other).findall(".//section")[1]
        assert section.find("h2").text.startswith(heading)
        assert [re.sub("[^ML]", "", path.get("d"))[1:] for path in section.iter("path")] == paths


@pytest.mark.parametrize("before", (0, 10))
def test_timeline(page, before):
    """The timeline shows the shortest step, also of a resumed run, and in red what it waits for, as
    `overlap` adds it up. It ignores another chapter's trace."""
    log, other = recorded("traced"), recorded("06_zero3_fp32")
    for row in log[1:-1]:
        row["step"] += before
    for each in log, other:
        each[0]["run"]["options"]["trace"] = "/somewhere/trace"
    assert len(page(other).findall(".//section")) == 4
    section = page(log, before=before).findall(".//section")[3]
    said = re.search(r"of ([\d.]+) ms of messages and copies ([\d.]+) pass .* for ([\d.]+) it",
                     "".join(section.find(".//li").itertext()).replace("\u00a0", " "))
    every, beside, waits = map(float, said.groups())
    times = times_of(Trace(TRACE).events[0])
    of_steps = [[sum(times[column, None][step][i] for column, layer in list(times) if layer is None)
                 for i in (0, 1)] for step in (1, 2, 3)]
    assert any([waits, beside] == pytest.approx(times, abs=0.051) for times in of_steps)
    assert every == pytest.approx(waits + beside, abs=0.11)
    red = 0
    for picture, heading in zip(section.iter("svg"), section.iter("h3")):
        whole = float(re.search(r"([\d.]+) ms$", heading.text.replace("\u00a0", " "))[1])
        red += sum(widths(picture, counts.WAITS)) * whole / 100
    assert 0 < red <= waits + 0.2


def test_a_tool_that_prints_no_text_is_as_if_missing():
    assert first_line("printf", "a\\nb") == "a" and first_line("printf", r"\351") is None


def test_a_log_that_goes_on_is_its_last_part(folder):
    """A resumed log has the options of its last part, and that part's counts per step."""
    whole, parts = recorded("04_zero1_fp32"), recorded("04_zero1_fp32")
    head = recorded("04_zero1_fp32")[0]
    head["run"]["options"]["align"] += 1
    parts.insert(-1 - len(parts[1:-1]) // 2, head)
    for row in parts[-1]["summary"]["traffic"]["phases"].values():
        row.update({name: row[name] // 2 for name in ("counted", "predicted")})
    read = []
    for lines in (whole, parts):
        (folder / "log").write_text(text_of(lines))
        read.append(report.load(folder / "log"))
    assert len(read[1].steps) == len(read[0].steps) == 2 * read[1].summary["steps"]
    assert read[1].options["align"] == read[0].options["align"] + 1
    assert sent(read[1]) == sent(read[0]) > 0
    assert [*counts.in_step(read[1])] == [*counts.in_step(read[0])]
