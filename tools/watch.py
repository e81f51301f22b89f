# SPDX-License-Identifier: MIT
"""Makes the page on which one walks through a step of each chapter. The page depends only on the
runs, the sources, the planner's cards, sentences.ini and the files in tools/watch.

`./tutorial watch` calls it; by hand: watch.py BUILD MPIEXEC PAGE. It copies the broken runs from
notes/step.html, because their programs would have to be built; --renew MPI builds and runs them."""
import difflib
import json
import re
import sys
from pathlib import Path

import sabotage
from narrate import RANKS, TINY
from page_reader import ROOT
from planner.plan import card_of, own_terms
from recording import recording
from runs import CHAPTERS, KINDS, PLACES, finish, memory_of
from sentences import SENTENCES, say
from trainers import CARDS, source

HERE, MADE = ROOT / "tools/watch", ROOT / "notes/step.html"
DTYPES, MICRO_BATCHES = ("bf16", "fp32"), (1, 2)
# With this seed the element that the page follows has a gradient, so that Adam moves it.
MODEL = TINY | {"--layers": 3, "--seed": 2}
# The letter of a row of the grid, by what it holds; a slot's number follows it. PIECES: letters of
# the host's copies of what a disk holds. The host has room for three pieces, a layer each.
ROWS = {"parameters": "P", "gradients": "G", "master": "M", "momentum": "m", "variance": "v",
        "staged": "S"}
PIECES = {"master": "N", "momentum": "n", "variance": "w"}
LANDING = "L"  # the host's memory for a gradient that its cores add to another
PHASES = ("forward", "backward", "update")
# A frame's fields. phase: the one that needs the event; during: that in which the host asks for it.
FIELDS = ("kind layer phase during micro stream line inside bytes sent read write lend free "
          "now why").split()


def place(pool, value):
    """Returns the value's place in the pool. The page stores each value of the pool once."""
    return pool.setdefault(json.dumps(value), len(pool))


# {chapter: its question}. `event` is the kind, layer and phase of the event after the question.
QUESTIONS = {title[:2]: {
    "event": title.partition(" question ")[2], "now": of["now"], "answers": [of[n] for n in "123"],
    "right": int(of["right"]) - 1, "why": of["why"]}
    for title, of in SENTENCES.items() if " question " in title}


def row(view):
    """Returns the row of the grid in which a view lies, as "G" or, in slot 2, "P2"."""
    if "slot" in view and view["of"] in PIECES:
        return PIECES[view["of"]]
    of = LANDING if view.get("place") == "host" else ROWS[view["of"]]
    return of + str(view.get("slot", ""))


def told_of(event):
    """Returns whether the page shows the event: work but no clearing, a slot lent or given back."""
    return event["name"] != "clear" if event["ph"] == "X" else event["args"]["lent"]


def inside(event):
    """Returns [path, line, its text] of what the trainer's line calls in another file, or None."""
    for path, _, at in (at.partition(":") for at in event["args"]["at"]):
        if not path.endswith("trainer.hpp"):
            path = path if path[0] == "0" else f"common/{path}"
            line = (ROOT / path).read_text("utf-8").splitlines()[int(at) - 1]
            return [path, int(at), line.strip()]
    return None


class Story:
    """A recorded step of a trainer, `text`, as frames: events with the numbers of each rank."""

    def __init__(self, build, mpiexec, chapter, text, dtype, micro, pool, broken=False):
        options = ["--accumulate", str(micro * (RANKS if chapter == "01_adam" else 1))]
        if CARDS[chapter]["mixed_precision"]:
            options += ["--dtype", dtype]
        if broken and CARDS[chapter]["ranks"]:
            # A broken program that forgets to wait for messages must outrun them on any machine.
            options += ["--latency", "50000"]
        self.trace, self.run = recording(["--run", str(build), mpiexec, chapter, *options], RANKS,
                                         MODEL, broken)
        self.chapter, self.text, self.pool, self.borrowed = chapter, text, pool, {}
        self.layers = self.trace.layers
        held = [(of["of"], of["dtype"], of["place"]) for of in self.trace.about["held"]]
        self.held = {ROWS[of]: [dtype, there] for of, dtype, there in held}
        self.held |= {PIECES[of]: [dtype, "host"] for of, dtype, there in held if there == "disk"}
        self.setup, self.events = ([*self.trace.moments(step)] for step in (0, 1))

    def line(self, event):
        """Returns the trainer's line. Where a scope ends, it is the last line of the block in which
        the memory was borrowed."""
        if event["args"]["at"]:
            return int(event["args"]["at"][0].partition(":")[2])
        at, depth, lines = self.borrowed[row(event["args"]["lent"][0])], 0, self.text.splitlines()
        while depth >= 0:
            depth += lines[at].count("{") - lines[at].count("}")
            at += 1
        return at

    def views(self, events, name):
        """Returns a list of [row, layer, each rank's part]. For "reads" a part is 1 if it is the
        whole layer, else 0. For "writes" it is the pool's place of [start, values...]."""
        return [[row(views[0]), views[0]["layer"], [
            place(self.pool, [view["start"], *view["values"]]) if name == "writes" else
            int(view["size"] == self.layers[view["layer"]]["size"]) for view in views]]
            for views in zip(*(event["args"].get(name, []) for event in events))]

    def start(self):
        """Returns what each rank holds before the step. None: others hold it, "": no value yet."""
        rows = {}
        for held in self.trace.about["held"]:
            value = 0 if held["of"] in ("momentum", "variance") else ""
            whole = held["elements"] == self.run.info["padded_parameters"]
            for layer, sizes in enumerate(self.layers):
                owners = [i // sizes["shard"] for i in range(sizes["size"])]
                for name, cell in ((ROWS[held["of"]], value), (PIECES.get(held["of"]), "")):
                    rows[name, layer] = [[cell if whole or owner == rank else None
                                          for owner in owners] for rank in range(self.run.ranks)]
        for rank, event in (pair for events in self.setup for pair in enumerate(events)):
            for view in event["args"].get("writes", []):  # pieces that set-up wrote are on the disk
                cells = rows[ROWS[view["of"]], view["layer"]][rank]
                cells[view["start"]:view["start"] + view["size"]] = view["values"]
        return [[name, layer, place(self.pool, cells)] for (name, layer), cells in rows.items()
                if name in self.held]

    def frame(self, kind, events, fields):
        """Returns a frame: a list with the place in the pool of each of FIELDS."""
        f = {"kind": kind, "layer": -1, "phase": "", "during": "", **fields, "bytes": [
            [event["args"]["in_use"][of] for of in KINDS[:5]] for event in events]}
        holds = {"ahead": f["phase"] != f["during"], "first_layer": f["layer"] == 0,
                 "last_layer": f["layer"] == len(self.layers) - 1, "again": f["micro"] > 1,
                 "accumulated": self.run.options["accumulate"] > 1}
        true = {self.chapter[:2], kind.replace(" ", "_"), f"in_{f['phase']}", self.run.dtype,
                f"during_{f['during']}", *(name for name in holds if holds[name])}
        for name in ("now", "why"):
            f[name] = say(
                name, true, who="Each rank" if self.chapter > "02" else "The process",
                layer=f["layer"], before=f["layer"] - 1, bytes=f["lend"][2] if "lend" in f else "",
                loss=f"{self.run.steps[0]['loss']:.4f}", digest=self.run.summary["digest"])
        return [place(self.pool, f.get(field)) for field in FIELDS]

    def frames(self):
        so_far = {"sent": [[0] * 3 for _ in range(self.run.ranks)], "micro": 0}
        yield self.frame("start", self.setup[-1], so_far)
        for events in self.events:
            args, work = events[0]["args"], events[0]["ph"] == "X"
            lent = args.get("lent")
            if not told_of(events[0]):
                continue
            kind = events[0]["task"].partition(" for ")[0]  # 01 has "sums for the host"
            if not work:
                kind += f" {args['kind']}"
            so_far["micro"] += kind == "load"
            for sent, event in zip(so_far["sent"], events):
                sent[:] = map(event["args"].get("sent", dict(zip(PHASES, sent))).get, PHASES)
            phase, during = (of.replace("setup", "")
                             for of in (args.get("phase", args["during"]), args["during"]))
            fields = {"layer": args.get("layer", -1), "phase": phase, "during": during,
                      "stream": events[0]["stream"] if work else "host",
                      "line": self.line(events[0]), "inside": inside(events[0]),
                      "read": self.views(events, "reads"), "write": self.views(events, "writes")}
            if lent:
                place, fields["layer"] = row(lent[0]), lent[0]["layer"]
                fields["lend" if kind.startswith("borrow") else "free"] = [
                    place, fields["layer"], abs(args["bytes"])]
                self.borrowed[place] = fields["line"]
            for name, views in (("lend", fields["write"]), ("free", fields["read"])):
                if views and views[0][0][0] == LANDING:
                    fields[name] = [*views[0][:2], args["bytes"]]
            yield self.frame(kind, events, so_far | fields)
        yield self.frame("end", self.events[-1], so_far)

    def told(self):
        run, rows = self.run, self.run.summary["traffic"]["phases"]
        away = {place: memory_of(run.summary, place) for place in PLACES[1:]}
        memory = run.memory | {
            f"{of} {kind}": rows for of, kinds in away.items() for kind, rows in kinds.items()}
        return {"ranks": run.ranks, "dtype": run.dtype,
                "layers": [[layer["size"], layer["shard"]] for layer in self.layers],
                "held": self.held, "away": {of: sum(row["resident"] for row in kinds.values())
                                            for of, kinds in away.items() if kinds},
                "start": self.start(), "frames": [*self.frames()],
                "sent": [[rows[phase]["formula"], rows[phase]["predicted"]] for phase in PHASES],
                "bytes": {kind: [of["formula"], of["predicted"]] for kind, of in memory.items()
                          if of.get("formula") and kind not in ("data", "workspace")}}


def against(old, new):
    """Returns all lines of `new` and the lines of `old` that are gone, each after its sign."""
    old, new = old.splitlines(), new.splitlines()
    return [*difflib.unified_diff(old, new, n=len(new), lineterm="")][3:] or [f" {x}" for x in new]


def broken(mpi, mpiexec):
    """Returns the page's data on runs of each chapter with one sabotage, built in a copy."""
    tree = sabotage.tree_for(ROOT / f"build/watch/{mpi}", "plain", f"-Dmpi={mpi}")
    pool, found = {}, {}
    for chapter, told in SENTENCES["broken"].items():
        title, _, micro = told.partition(", A = ")
        diff = next(diff for diff in sabotage.of_chapter(chapter) if diff.title == title)
        right = source(chapter)
        wrong, dtype = diff.apply(right), DTYPES[not CARDS[chapter]["mixed_precision"]]
        tree.put({diff.old: wrong})
        tree.program(chapter)
        found[chapter] = {
            "title": title, "changed": "what is broken", "micro": int(micro),
            "code": against(right, wrong), "run": Story(
                tree.build, mpiexec, chapter, wrong, dtype, int(micro), pool, True).told()}
    return {"pool": [*map(json.loads, pool)], "chapters": found}


def plan_of(card):
    """Returns the planner's terms of a chapter. The page evaluates them for the reader's model."""
    of = card_of(card)
    return {"name": of.name, "sent": [of.sent[phase] for phase in PHASES], "terms": {
        dtype: [term for term in own_terms(of, dtype) if term.size] for dtype in DTYPES}}


def data(build, mpiexec, broken_runs):
    pool, chapters, before = {}, [], source(CHAPTERS[0])
    for chapter in CHAPTERS:
        text, dtypes = source(chapter), DTYPES if CARDS[chapter]["mixed_precision"] else ["fp32"]
        code = against(before, text)
        changed = sum(line[0] != " " for line in code)
        chapters.append({
            "name": chapter, "title": text.splitlines()[1].lstrip("/ "), "code": code,
            "changed": changed and f"{changed} lines changed from {chapters[-1]['name']}",
            "asks": QUESTIONS[chapter[:2]], "runs": {
                f"{dtype} {micro}": Story(build, mpiexec, chapter, text, dtype, micro, pool).told()
                for dtype in dtypes for micro in MICRO_BATCHES}})
        before = text
    return {"kinds": KINDS[:5], "fields": FIELDS, "chapters": chapters, "broken": broken_runs,
            "cards": [plan_of(card) for card in CARDS.values() if card["mixed_precision"]],
            "pool": [*map(json.loads, pool)]}


def data_of(page):
    return json.loads(re.search(r"(?m)^const DATA = (.*);$", page)[1].replace("<\\/", "</"))


def page(found):
    told = json.dumps(found, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    text = (HERE / "page.html").read_text("utf-8").replace("null; // the data", told + ";")
    for mark, file in (("/* the styles */", "player.css"), ("/* the script */", "player.js")):
        text = text.replace(mark, (HERE / file).read_text("utf-8").rstrip())
    for name, of in SENTENCES["page"].items():
        text = text.replace(f"<!-- {name} -->", of)
    return text


def main():
    build, mpiexec, path, *renew = sys.argv[1:]
    runs = broken(renew[1], mpiexec) if renew else data_of(MADE.read_text("utf-8"))["broken"]
    Path(path).write_text(page(data(build, mpiexec, runs)), "utf-8")


if __name__ == "__main__":
    finish(main, "tutorial: watch: ")
