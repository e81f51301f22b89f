# SPDX-License-Identifier: MIT
"""Figures show what they say: numbers as in formulas and tables, words apart, drawn as before."""
import itertools
import re
from types import SimpleNamespace

import pytest
from recorded import TRACE, recorded

import drawings
import figures
import lesson
import measure
import tables
from runs import CHAPTERS, ROOT
from trainers import Picture, state_formula
from matplotlib import textpath  # figures has said where its list of fonts goes

PICTURES = {path.stem: path.read_text() for path in (ROOT / "notes/figures").glob("*.svg")}
PAGES = "".join(p.read_text() for p in [ROOT / "README.md", *ROOT.glob("[0n]*/**/*.md")])


@pytest.mark.parametrize("name, svg", PICTURES.items(), ids=PICTURES)
def test_words_find_their_place(name, svg):
    """Of the texts that lie level no two touch, and none leaves the picture, which a page shows."""
    places = []
    for has, words in re.findall(r"<text (.*?)>(.*?)</text>", svg):
        x, y = map(float, re.search(r'(?:translate\(|x=")([\d.]+)[y=" ]+([\d.]+)', has).groups())
        size = float(re.search(r"font-size\W+([\d.]+)", has)[1])
        font = textpath.FontProperties(size=size, weight="bold" if "bold" in has else "normal")
        width, *_ = textpath.text_to_path.get_text_width_height_descent(words, font, False)
        width *= 1.04  # a reader's font may be wider than DejaVu Sans
        left = width * (0.5 if "middle" in has else 1 if re.search(r"anchor\W+end", has) else 0)
        if "rotate" not in has:
            places.append((words, x - left, y - 0.75 * size, x - left + width, y + 0.2 * size))
    right, bottom = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
    assert len(places) > 10
    assert [p for p in places if min(p[1:3]) < 0 or p[3] > right or p[4] > bottom] == []
    assert [(a[0], b[0]) for a, b in itertools.combinations(places, 2)
            if a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]] == []
    assert f"figures/{name}.svg)" in PAGES


def test_ownership_is_what_the_cards_say():
    wanted, staging = [], 0
    for card in map(Picture, CHAPTERS):
        device, host, disk = ({column.name: int(12 * column.share) * column.bytes
                               for column in place} for place in card.places)
        staging += host.pop("host: staging", 0)
        others = [place for place in (host, disk) if place]
        total = " + ".join(str(sum(place.values())) for place in (device, *others))
        wanted += [total] * card.ranks
        mixed = state_formula(card.chapter, "bf16") if card.dtype != "fp32" else "–"
        sent = ", ".join(card.says["sent"].values()) if card.ranks > 1 else "–"
        row = f"| {mixed} | {state_formula(card.chapter, 'fp32')} | {sent} |"
        assert row in PAGES, f"the map of README.md lacks {card.chapter}"
    assert re.findall(r'"1[12]" text-anchor="end">([\d +]+)<', PICTURES["ownership"]) == wanted, \
        "draw notes/figures/ownership.svg anew by hand: a row more for each rank, with these bytes"
    assert f"staging takes {staging} more" in PICTURES["ownership"]


@pytest.mark.parametrize("card", map(Picture, CHAPTERS), ids=CHAPTERS)
def test_a_page_draws_what_its_lesson_draws(card):
    drawn = "\n".join(f"    {line}".rstrip() for line in lesson.rows(card, card))
    assert f"\n\n{drawn}\n\n" in (ROOT / card.chapter / "README.md").read_text()


def test_results_of_a_gpu_become_tables(tmp_path):
    (tmp_path / "results").write_text(
        "A GPU\n2026-11-28\ncommit 1\n== machine | 0 | 0 s\nclip + adam 1.1 of adam, at most 1.2\n"
        "yes: exposed: 0.02, bar 0.1\n== 06 | 124 | 40 s\n== all | not begun | 0 s\n"
        "step: mlp; 1 round\n03     2.5   torch step   3.125   0.80 bar 0.80\n== pace | 1 | 9 s\n")
    made = tables.gpu(SimpleNamespace(gpu=tmp_path / "results"))
    for row in ("06 | not done by then | 40", "all | not begun | 0", "pace | failed, code 1 | 9",
                "06 | clip + adam | 1.1 | at most 1.2", "06 | exposed | 0.02 | bar 0.1",
                "mlp | 03 over torch step: 2.5 / 3.125 ms | 0.80 | bar 0.80"):
        assert f"\n| {row} |\n" in made
    assert made.endswith("|\n\n*A GPU; 2026-11-28; commit 1.*")


def test_traffic_is_what_the_cards_say():
    """All of the picture's bars, 04's and then 05's, with A = 1, 4, 16."""
    wanted = []
    for card in map(Picture, CHAPTERS[3:5]):
        for count in (1, 4, 16):
            times = re.sub(r"(\d*)A", lambda a: str(int(a[1] or 1) * count),
                           " ".join(card.says["sent"].values()))
            wanted.append(str(sum(map(int, times.split()))))
    drawn = re.findall(r'font-weight: bold[^>]*>(\d+)<', PICTURES["traffic"])
    assert drawn == wanted
    assert f"04 sends {wanted[2]} elements, 05 sends {wanted[5]}" in PICTURES["traffic"]


def test_exchange_adds_in_these_orders(n=4):
    wanted = []
    for ring, step, rank, part in itertools.product((True, False), *[range(n)] * 3):
        sends = (rank - part - 1 if ring else part - rank - 1) % n  # the part, after so many steps
        come = range(part + 1, part + 2 + step) if ring else range(part - step, part + 1)
        order = [str(number % n) for number in come]
        if sends == (step if ring else n - 1):
            wanted.append("".join(order if ring else sorted(order)))
        elif sends >= step:
            wanted.append(str(rank))
    assert re.findall(r">(\d+)</text>", PICTURES["exchange"]) == wanted


def test_figures_agree_with_the_tables():
    said = re.search(r"saves (\d+) % with 3 layers, (\d+) % with 48", PICTURES["layers"]).groups()
    rows = [re.search(rf"\n\| {count} x \d+ \|.*?([\d.]+) %", PAGES)[1] for count in (3, 48)]
    assert list(map(float, said)) == pytest.approx(list(map(float, rows)), abs=0.55)
    said = re.findall(r">(?:0[3-8], bf16: peak|its \w+) (.*) MB<", PICTURES["mountain"])
    rows = re.findall(r"([\d.]+) \|", " ".join(re.findall(
        r"\n\| (?:all together|on the \w+) .*",
        PAGES.split("measured: ledger")[1].split("<!-- end")[0])))
    assert sorted(map(float, said)) == pytest.approx(sorted(map(float, rows)), abs=0.06)


def test_pages_check_what_the_programs_count(programs, folder):
    """Their tables of bytes and elements are as the programs make them now."""
    measured = measure.Measured(programs.build, programs.mpiexec, None)
    measured.logs = folder
    shown = dict(re.findall(r"<!-- measured: check (\w+) -->\n\n(.*?)\n\n<!-- end -->", PAGES,
                            re.DOTALL))
    assert shown == {chapter: tables.check(measured, chapter) for chapter in CHAPTERS}


@pytest.mark.parametrize("name, said, scale, bars", [
    ("step", r">Of (\d+) ms of messages this step of ZeRO-3 waits for (\d+) \(red\)", (40, 140),
     [r'()"(\S+)" height="\S+" fill="#5696ed"', r"()178\.1h(.*?)v"]),
    ("offload", r">Of (\d+) ms of copies", (50, 150),  # that no other step's are
     [r'd="M (\S+) \S+ L (\S+) .*\n.*fill: #4b6e73; stroke'])])
def test_a_step_lasts_as_long_as_its_bars(name, said, scale, bars):
    svg = PICTURES[name]
    found = re.search(said, svg)
    left, right = (float(re.search(rf' x="(\S+)"[^>]*>{ms}<', svg)[1]) for ms in scale)
    for ms, bar in zip(found.groups(), bars, strict=True):
        length = sum(float(end) - float(start or 0) for start, end in re.findall(bar, svg))
        assert length * (scale[1] - scale[0]) / (right - left) == pytest.approx(float(ms), abs=0.6)


def test_a_recorded_trace_is_what_its_log_says():
    """Bytes, through the phases; and which work lies on which stream."""
    log = recorded("traced")
    step = [*measure.step_of(TRACE)]
    assert [phase for phase, _ in step] == ["forward", "backward", "update"]
    assert max(sum(in_use.values()) for _, course in step for in_use in course) \
        == log[-1]["summary"]["memory"]["total"]["peak"]
    slices = [*measure.slices_of(measure.Trace(TRACE))]
    assert {(stream, label) for *_, stream, label, step in slices if step == 3} == {
        (stream, f"{letter}{layer}") for layer in range(2) for stream, letters in (
            ("communication", "gr"), ("compute", "fb"), ("copies up", "u"), ("copies down", "d"),
            ("host cores", "as"), ("reads", "i"), ("writes", "o"))
        for letter in letters}


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_picture_is_what_its_script_draws(name):
    assert PICTURES[name] == drawings.DRAWINGS[name](), "draw it anew: tools/drawings.py"


def test_drawn_twice_a_figure_is_the_same():
    def drawn():
        fig, ax = figures.figure(300, 200, title="a title", subtitle="and\nmore")
        ax.plot([1, 2], label="line")
        ax.legend()
        return fig

    one, other = (figures.file(drawn()) for _ in "12")
    assert one == other and figures.INK not in one and ">a title<" in one
