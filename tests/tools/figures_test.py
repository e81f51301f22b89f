# SPDX-License-Identifier: MIT
"""Pages and figures are as tools/render.py makes them of what was measured, and of the cards."""
import itertools
import re
from pathlib import Path

import pytest
from recorded import TRACE, recorded

import figures
import lesson
import measure
import render
import tables
from overlap import slices_of
from recording import Trace
from runs import CHAPTERS, ROOT
from trainers import Picture, state_formula

PICTURES = {path.stem: path.read_text() for path in (ROOT / "notes/figures").glob("*.svg")}
PAGES = "".join(p.read_text() for p in [ROOT / "README.md", *ROOT.glob("[0n]*/**/*.md")])


def test_pages_say_what_was_measured():
    assert [*render.differing(render.load())] == [], "write them anew: tools/render.py"


def test_traffic_is_what_the_cards_say():
    """The figure's bars have the numbers of 04 for A = 1, 4, 16, and then of 05."""
    wanted = []
    for card in map(Picture, CHAPTERS[3:5]):
        for count in (1, 4, 16):
            times = re.sub(r"(\d*)A", lambda a, count=count: str(int(a[1] or 1) * count),
                           " ".join(card.says["sent"].values()))
            wanted.append(str(sum(map(int, times.split()))))
    drawn = re.findall(r'font-weight="bold"[^>]*>(\d+)<', PICTURES["traffic"])
    assert drawn == wanted, "draw notes/figures/traffic.svg anew by hand"
    assert f"04 sends {wanted[2]} elements, 05 sends {wanted[5]}" in PICTURES["traffic"]


def test_exchange_adds_in_these_orders(n=4):
    """A number in notes/figures/exchange.svg lists the ranks whose terms a part adds, in order."""
    wanted = []
    for ring, step, rank, part in itertools.product((True, False), *[range(n)] * 3):
        # `sends`: after how many steps this rank sends this part; `come`: whose terms met by now.
        sends = (rank - part - 1 if ring else part - rank - 1) % n
        come = range(part + 1, part + 2 + step) if ring else range(part - step, part + 1)
        order = [str(number % n) for number in come]
        if sends == (step if ring else n - 1):
            wanted.append("".join(order if ring else sorted(order)))
        elif sends >= step:
            wanted.append(str(rank))
    assert re.findall(r">(\d+)</text>", PICTURES["exchange"]) == wanted


def test_every_figure_is_shown():
    assert [name for name in PICTURES if f"figures/{name}.svg)" not in PAGES] == []


def test_a_number_that_was_not_measured_is_missed():
    blocks = render.load()
    del blocks["output"]["found"]["printed"]
    with pytest.raises(render.Failure, match=r"no 'printed' of 'output': run tools/measure.py"):
        render.rendered(blocks)


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


def test_results_of_a_gpu_become_tables():
    name, when, found = tables.gpu_results(
        "A GPU\n2026-11-28\ncommit 1\n== machine | 0 | 0 s\nclip + adam 1.1 of adam, at most 1.2\n"
        "yes: exposed: 0.02, bar 0.1\n== 06 | 124 | 40 s\n== all | not begun | 0 s\n"
        "step: mlp; 1 round\n03     2.5   torch step   3.125   0.80 bar 0.80\n== pace | 1 | 9 s\n")
    made = render.content("gpu", {"gpu": {"machine": name, "when": when, "found": found}})
    for row in ("06 | not done by then | 40", "all | not begun | 0", "pace | failed, code 1 | 9",
                "06 | clip + adam | 1.1 | at most 1.2", "06 | exposed | 0.02 | bar 0.1",
                "mlp | 03 over torch step: 2.5 / 3.125 ms | 0.80 | bar 0.80"):
        assert f"\n| {row} |\n" in made
    assert made.endswith("|\n\n*A GPU; 2026-11-28; commit 1.*")


def test_programs_count_what_was_measured(programs, folder):
    """The programs count the bytes and elements that notes/measured has for each chapter."""
    blocks = render.load()
    built = measure.Measured(programs.build, programs.mpiexec)
    built.logs = Path(folder)
    for chapter in CHAPTERS:
        name = f"check {chapter}"
        assert measure.measured(name, built, blocks)["found"] == blocks[name]["found"]


def test_a_recorded_trace_is_what_its_log_says():
    """The figures' functions find in the trace the log's bytes, and the work of each stream."""
    log = recorded("traced")
    step = figures.step_of(Trace(TRACE))
    assert [*step] == ["forward", "backward", "update"]
    assert max(sum(in_use) for _, in_use in figures.levels(step)) \
        == log[-1]["summary"]["memory"]["total"]["peak"]
    slices = [*slices_of(Trace(TRACE))]
    assert {(stream, label) for *_, stream, label, step in slices if step == 3} == {
        (stream, f"{letter}{layer}") for layer in range(2) for stream, letters in (
            ("communication", "gr"), ("compute", "fb"), ("copies up", "u"), ("copies down", "d"),
            ("host cores", "as"), ("reads", "i"), ("writes", "o"))
        for letter in letters}
