#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: MIT
"""Makes the page on which a step of each chapter is walked through: of runs, trainers and the files
beside this one, and of nothing else, so that equal ones make an equal page.

`./tutorial watch` calls it; by hand: watch.py BUILD MPIEXEC PAGE. It takes the broken runs, for
which programs have to be built, from notes/step.html; with --renew MPI it makes them anew."""
import difflib
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import sabotage
from narrate import what
from page_reader import ROOT
from recording import recording
from runs import CHAPTERS, KINDS, QUICK, Failure, finish, output_of
from trainers import CARDS, source

WORDS = "sentences.txt"
MADE = ROOT / "notes/step.html"
RANKS, DTYPES, MICRO_BATCHES = 3, ("bf16", "fp32"), (1, 2)
MODEL = {"--task": "tiny", "--align": 1, "--layers": 3, "--steps": 1, "--device": "cpu"}
# The rows of the grid, by what they hold; of what is lent, the slot's number follows.
ROWS = {"parameters": "P", "gradients": "G", "master": "M", "momentum": "m", "variance": "v",
        "staged": "S"}
PHASES = ("forward", "backward", "update")
# Of each chapter: which of its sabotages, and with how many micro-batches it is seen.
BROKEN = {"01_adam": (3, 1), "02_distributed_adam": (2, 2), "03_mixed_precision": (1, 1),
          "04_zero1": (2, 1), "05_zero2": (1, 2), "06_zero3": (1, 1), "07_offload": (5, 2)}
FIELDS = ("kind layer phase during micro stream line inside bytes sent copied read write lend free "
          "now why").split()


class Pool:
    """Values that occur often: each once, and then its place."""

    def __init__(self):
        self.values, self.places = [], {}

    def place(self, value):
        key = json.dumps(value)
        if key not in self.places:
            self.places[key] = len(self.values)
            self.values.append(value)
        return self.places[key]


def row(view):
    return ROWS[view["of"]] + str(view.get("slot", ""))


def rounded(values):
    """To six digits: the page shows three decimals."""
    return [value if value is None else float(f"{value:.6g}") for value in values]


def end_of_scope(lines, number):
    """The line that closes the block in which line `number` stands."""
    depth = 0
    for at, line in enumerate(lines[number:], number + 1):
        depth += line.count("{") - line.count("}")
        if depth < 0:
            return at
    raise Failure(f"line {number} is in no block", 1)


class Sentences:
    """Of sentences.txt: what is said of an event, and the questions."""

    def __init__(self):
        self.said, self.questions = [], {}
        for head, body in re.findall(r"(?m)^\[(.*)\]\n((?:.+\n)+)", (HERE / WORDS).read_text()):
            now = " ".join(re.findall(r"(?m)^([^ +-].*)", body))
            why = " ".join(re.findall(r"(?m)^  (.*)", body))
            number, _, event = head.partition(" question ")
            if event:
                answers = re.findall(r"(?m)^([+-]) (.*)", body)
                right = [sign for sign, _ in answers].index("+")
                self.questions[number] = [*event.split(), now, [a for _, a in answers], right, why]
            else:
                self.said.append(([word.split("|") for word in head.split()], now, why))

    def say(self, true, **words):
        """The first pair of which all words are true."""
        for needed, *pair in self.said:
            if all(true.intersection(words) for words in needed):
                return [sentence.format(**words) for sentence in pair]
        raise Failure(f"{WORDS} says nothing of {sorted(true)}", 1)


SENTENCES = Sentences()


class Story:
    """A recorded step as frames: what all ranks do, each with its own numbers."""

    def __init__(self, chapter, text, trace, run, pool):
        self.chapter, self.lines, self.trace = chapter, text.splitlines(), trace
        self.run, self.pool, self.borrowed = run, pool, {}
        self.setup, self.events = ([*zip(*(trace.program(rank, step) for rank in
                                           range(run.ranks)), strict=True)] for step in (0, 1))

    def line(self, event):
        """Of the trainer; where a scope ends, its last line."""
        if event["args"]["at"]:
            return int(event["args"]["at"][0].rpartition(":")[2])
        return end_of_scope(self.lines, self.borrowed[row(event["args"]["lent"][0])])

    def inside(self, event):
        """What the trainer's line calls, in a file beside it: its path, line and text."""
        for at in event["args"]["at"]:
            path, _, number = at.rpartition(":")
            if not path.endswith("trainer.hpp"):
                path = path if path[0] == "0" else f"common/{path}"
                text = (ROOT / path).read_text().splitlines()[int(number) - 1]
                return [path, int(number), text.strip()]
        return None

    def views(self, events, name):
        """[row, layer, each rank's part]: of what is read 1 where it is the whole layer's, of what
        is written the place of [start, values...]."""
        shown = []
        for views in zip(*(event["args"].get(name, []) for event in events)):
            size = self.trace.layers[views[0]["layer"]]["size"]
            shown.append([row(views[0]), views[0]["layer"], [
                int(view["size"] == size) if name == "reads" else
                self.pool.place([view["start"], *rounded(view["values"])]) for view in views]])
        return shown

    def start(self):
        """What each rank holds before the step: null is elsewhere, "" has no value yet."""
        layers, rows = self.trace.layers, {}
        whole = sum(layer["size"] for layer in layers)
        for held in self.trace.about["held"]:
            value = 0 if held["of"] in ("momentum", "variance") else ""
            for layer, sizes in enumerate(layers):
                shard = range(sizes["size"]) if held["elements"] == whole else None
                rows[ROWS[held["of"]], layer] = [[
                    value if i in (shard or range(rank * sizes["shard"],
                                                  (rank + 1) * sizes["shard"])) else None
                    for i in range(sizes["size"])] for rank in range(self.run.ranks)]
        for events in self.setup:
            for rank, event in enumerate(events):
                for view in event["args"].get("writes", []):
                    cells = rows[row(view), view["layer"]][rank]
                    cells[view["start"]:view["start"] + view["size"]] = rounded(view["values"])
        return [[name, layer, self.pool.place(cells)] for (name, layer), cells in rows.items()]

    def say(self, f):
        last, number = len(self.trace.layers) - 1, self.chapter[:2]
        conditions = {"ahead": f["phase"] != f["during"], "first_layer": f["layer"] == 0,
                      "last_layer": f["layer"] == last, "again": f["micro"] > 1,
                      "accumulated": self.run.options["accumulate"] > 1}
        true = {number, f["kind"].replace(" ", "_"), "in_" + f["phase"], "during_" + f["during"],
                self.run.dtype, *(name for name, holds in conditions.items() if holds)}
        return SENTENCES.say(true, who="The process" if number == "01" else "Each rank",
                             layer=f["layer"], before=f["layer"] - 1, bytes=f.get("lend", "000")[2],
                             loss=f"{self.run.steps[0]['loss']:.4f}",
                             digest=self.run.summary["digest"])

    def frames(self):
        sent, copied, micro = [[0] * 3 for _ in range(self.run.ranks)], [0, 0], 0
        in_use = self.setup[-1]

        def frame(kind, **fields):
            found = {"kind": kind, "layer": -1, "phase": "", "during": "", "micro": micro,
                     "sent": [[*of] for of in sent], "copied": [*copied], "bytes": [
                         [event["args"]["in_use"][of] for of in KINDS[:5]] for event in in_use],
                     **fields}
            found["now"], found["why"] = self.say(found)
            return [self.pool.place(found.get(field)) for field in FIELDS]

        yield frame("start")
        for events in self.events:
            args, in_use = events[0]["args"], events
            lent, work = args.get("lent"), events[0]["ph"] == "X"
            if args["during"] == "setup" or not (work or lent):
                continue  # of activations and room to receive the bytes are told
            kind = what(events[0]).partition(" for ")[0] + ("" if work else f" {args['kind']}")
            micro += kind == "load"
            for counts, event in zip(sent, events):
                counts[:] = [event["args"].get("sent", dict(zip(PHASES, counts)))[phase]
                             for phase in PHASES]
            if kind in ("to_host", "to_device"):
                copied[kind == "to_device"] += args["bytes"]
            fields = {"layer": args.get("layer", -1), "phase": args.get("phase", args["during"])}
            if lent:
                key = "lend" if kind.startswith("borrow") else "free"
                fields["layer"] = lent[0]["layer"]
                fields[key] = [row(lent[0]), lent[0]["layer"], abs(args["bytes"])]
                if args["at"]:
                    self.borrowed[row(lent[0])] = self.line(events[0])
            yield frame(kind, during=args["during"], stream=events[0]["stream"] if work else "host",
                        line=self.line(events[0]), inside=self.inside(events[0]),
                        read=self.views(events, "reads"), write=self.views(events, "writes"),
                        **fields)
        yield frame("end")

    def told(self):
        run, traffic = self.run, self.run.summary["traffic"]["phases"]
        memory = run.memory | {f"host {kind}": row for kind, row in
                               run.summary.get("host_memory", {}).items()}
        return {"ranks": run.ranks, "dtype": run.dtype,
                "layers": [[layer["size"], layer["shard"]] for layer in self.trace.layers],
                "held": {ROWS[held["of"]]: [held["dtype"], held["bytes"], held["place"] == "host"]
                         for held in self.trace.about["held"]},
                "start": self.start(), "frames": [*self.frames()],
                "sent": [[traffic[phase]["formula"], traffic[phase]["predicted"]]
                         for phase in PHASES],
                "bytes": {kind: [row["formula"], row["predicted"]] for kind, row in memory.items()
                          if row.get("formula") and kind not in ("data", "workspace")},
                "digest": run.summary["digest"], "loss": run.steps[0]["loss"]}


def story(build, mpiexec, chapter, text, dtype, micro_batches, pool, broken=False):
    options = ["--accumulate", str(micro_batches * (RANKS if chapter == "01_adam" else 1))]
    options += ["--dtype", dtype] if CARDS[chapter]["mixed_precision"] else []
    trace, run = recording(["--run", str(build), mpiexec, chapter, *options], RANKS, MODEL,
                           broken)
    return Story(chapter, text, trace, run, pool).told()


def against(old, new):
    """The lines of both, each behind its sign."""
    code, old, new = [], old.splitlines(), new.splitlines()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        code += [" " + line for line in new[c:d]] if tag == "equal" else \
            ["-" + line for line in old[a:b]] + ["+" + line for line in new[c:d]]
    return code


def broken(mpi, mpiexec):
    """A run of each chapter with one of its sabotages, built in a copy."""
    tree, pool, found = sabotage.trial(ROOT / "build/watch", "plain", f"-Dmpi={mpi}"), Pool(), {}
    for chapter, (number, micro_batches) in BROKEN.items():
        diff = sabotage.of_chapter(chapter)[number - 1]
        file, right = tree.sources / diff.old, source(chapter)
        try:
            file.write_text(diff.apply(right))
            if not (tree.build / "build.ninja").exists():
                output_of(["meson", "setup", str(tree.build), str(tree.sources),
                           *QUICK, *tree.options])
            output_of(["ninja", "-C", str(tree.build), f"{chapter}/{chapter}"])
            dtype = "bf16" if CARDS[chapter]["mixed_precision"] else "fp32"
            run = story(tree.build, mpiexec, chapter, file.read_text(), dtype, micro_batches, pool,
                        True)
            found[chapter] = {"title": diff.title, "number": number, "case": diff.case,
                              "code": against(right, file.read_text()), "dtype": dtype,
                              "micro": micro_batches, "run": run}
        finally:
            file.write_text(right)
    return {"pool": pool.values, "chapters": found}


def data_of(page):
    return json.loads(re.search(r"(?m)^const DATA = (.*);$", page)[1].replace("<\\/", "</"))


def data(build, mpiexec, broken_runs):
    pool, chapters, before = Pool(), [], None
    for chapter in CHAPTERS:
        text = source(chapter)
        dtypes = DTYPES if CARDS[chapter]["mixed_precision"] else ("fp32",)
        code = against(before or text, text)
        chapters.append({
            "name": chapter, "title": text.splitlines()[1].lstrip("/ "), "code": code,
            "changed": sum(line[0] != " " for line in code),
            "asks": SENTENCES.questions[chapter[:2]],
            "runs": {f"{dtype} {micro}": story(build, mpiexec, chapter, text, dtype, micro, pool)
                     for dtype in dtypes for micro in MICRO_BATCHES}})
        before = text
    return {"kinds": KINDS[:5], "fields": FIELDS, "chapters": chapters, "broken": broken_runs,
            "cards": [card for card in CARDS.values() if card["mixed_precision"]],
            "pool": pool.values}


def page(found):
    text = (HERE / "page.html").read_text()
    for mark, file in (("/* the styles */", "player.css"), ("/* the script */", "player.js")):
        text = text.replace(mark, (HERE / file).read_text().rstrip())
    told = json.dumps(found, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    return text.replace("null; // the data", told + ";")


def main():
    build, mpiexec, path, *renew = sys.argv[1:]
    runs = broken(renew[1], mpiexec) if renew else data_of(MADE.read_text())["broken"]
    Path(path).write_text(page(data(build, mpiexec, runs)))


if __name__ == "__main__":
    finish(main, "tutorial: watch: ")
