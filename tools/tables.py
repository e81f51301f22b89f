# SPDX-License-Identifier: MIT
"""Writes the measured blocks of the pages, as Markdown. Each table is a function of `of`, the
results of its block, a Block of render.py. It asks `of` for each number by a name and by a function
that measures it. In render.py `of` answers with the number in notes/measured; in measure.py it
calls that function and keeps what it returns."""
import itertools
import json
import math
import re
import sys

import memory
import narrate
from page_reader import changes
from planner import plan
from planner.question import question
from planner.times import step as play
from runs import (BYTES, CHAPTERS, KINDS, PLACES, ROOT, STATE, Failure, elements_sent, memory_of,
                  on, output_of, spaced)
from trainers import state_formula
from trial import copied, follow

COUNTED = KINDS[:4]  # state and communication: the kinds that summed() adds up
SUMMED = f"Peak: the sum of the peaks of {', '.join(COUNTED[:-1])} and {COUNTED[-1]}."


def held(run):
    """Returns the bytes of a run that the tables use, in JSON's types."""
    memory = {place: {kind: [held["resident"], held["peak"], held["reserved"]]
                      for kind, held in kinds.items() if held["reserved"] or kind == "total"}
              for place, kinds in run.places.items()}
    return {"dtype": run.dtype, "parameters": run.info["parameters"], "memory": memory}


def timed(run):
    """Returns a run's median step, and how long messages were exposed and hidden in it, in ms; and
    `copied`, {direction: [bytes in a step, ms exposed, GB/s]}."""
    phases = run.summary["traffic"]["phases"].values()
    exposed, hidden = (round(sum(phase[what] for phase in phases), 3)
                       for what in ("exposed_ms", "hidden_ms"))
    copied = {}
    for way, row in run.bus.items():
        count, ms = row["counted"] // len(run.steps), row["exposed_ms"] + row["hidden_ms"]
        copied[way] = [count, row["exposed_ms"], round(count / ms / 1e6, 3) if ms else None]
    return {"ms": run.summary["median_ms"], "exposed": exposed, "hidden": hidden, "copied": copied}


def trained(run):
    """Returns a run's bytes, its times, and what it learned."""
    return held(run) | timed(run) | {"loss": run.losses[-1], "weights": run.summary["digest"],
                                     "sent": elements_sent(run)[1]}


RESIDENT, PEAK, RESERVED = range(3)  # indices of the lists that held() returns
NOTHING = [0, 0, 0]


def table(head, rows, left=1):
    """Returns a Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [head, rule, *rows])


def fenced(text):
    """Returns a block of output; raises a Failure if a line is wider than a terminal."""
    if wide := [line for line in text.splitlines() if len(line) > 80]:
        raise Failure(f"wider than 80 columns: {wide[0]}")
    return f"```text\n{text.strip()}\n```"


def mb(*counts):
    return " / ".join(f"{count / 1e6:.2f}" for count in counts)


def there(run, place):
    """Returns the peak of a place in MB; a dash if the run has no bytes there."""
    return mb(run.memory[place]["total"][PEAK]) if place in run.memory else "–"


def results(of):
    steps, ranks = 200, 4
    runs = [of.run(trained, chapter, ranks, "--steps", steps, dtype=dtype)
            for dtype, chapters in (("fp32", CHAPTERS), ("bf16", CHAPTERS[2:]))
            for chapter in chapters]
    for dtype in BYTES:
        if len({(run.loss, run.weights) for run in runs if run.dtype == dtype}) > 1:
            raise Failure(f"results: not all runs in {dtype} end with the same weights")
    rows = [[run.chapter, run.dtype, f"{run.loss:.4f}", mb(run.memory["device"]["total"][RESIDENT]),
             mb(run.memory["device"]["total"][PEAK]), *(there(run, place) for place in PLACES[1:]),
             run.sent, f"{run.ms:.0f}"] for run in runs]
    head = ["chapter", "dtype", "final loss", "resident, MB", "peak, MB",
            *(f"on the {place}, MB" for place in PLACES[1:]), "sent per parameter", "ms per step"]
    return table(head, rows, left=2) + (
        f"\n\n{steps} steps of the default task on {ranks} ranks (01: one process, the same "
        "samples). Bytes: the fullest rank's. Sent: elements, by a rank in a step. Time: the "
        "median, of the slowest rank.")


CURVE_RANKS = 4
# (layers, width). Each model has layers x width x (width + 1) parameters, about 3.15 million.
CURVE = ((3, 1024), (4, 887), (6, 724), (8, 627), (12, 512), (16, 443), (24, 362), (32, 313),
         (48, 256))


def curve_formula(layers, dtype, n=CURVE_RANKS):
    """Returns the share of 16 bytes per parameter that a rank of 06 saves at its peak, with equal
    layers. A rank borrows two layers' parameters, two's gradients, other ranks' shards of one."""
    return 1 - 1 / n - BYTES[dtype] * (4 + (n - 1) / n) / (16 * layers)


def curve(of):
    """Returns (layers, width, run in fp32, run in bf16) for each point."""
    return [(layers, width, *(of.run(
        held, "06_zero3", CURVE_RANKS, "--task", "mlp", "--layers", layers, "--width", width,
        "--batch", 2, "--steps", 2, dtype=dtype) for dtype in ("fp32", "bf16")))
        for layers, width in CURVE]


def summed(run, what):  # bytes; what: RESIDENT or PEAK
    return sum(run.memory["device"].get(kind, NOTHING)[what] for kind in COUNTED)


def saved(run, what):  # the share of 16 bytes per parameter that summed() does not have
    return 1 - summed(run, what) / (16 * run.parameters)


def layers(of):
    """Writes every fourth point of curve(); the figure `layers` shows all points."""
    head, rows = ["layers x width", "16 bytes per parameter"], []
    for count, width, *runs in curve(of)[::4]:
        rows.append([f"{count} x {width}", mb(16 * runs[0].parameters)])
        for run in runs:
            rows[-1] += [mb(summed(run, RESIDENT), summed(run, PEAK)),
                         f"{100 * saved(run, PEAK):.1f} %",
                         f"{100 * curve_formula(count, run.dtype):.1f} %"]
    for run in runs:
        head += [f"{run.dtype}: resident / peak", "saved", "formula"]
    return f"{table(head, rows)}\n\nDecimal MB on each rank. {SUMMED}"


EQUAL_LAYERS = ("--task", "mlp", "--layers", 16, "--width", 512, "--batch", 32)


def ledger(of):
    """Writes the bytes of every kind in 03 to 08, on a model of many equal layers."""
    runs = [of.run(held, chapter, 4, *EQUAL_LAYERS, "--steps", 2) for chapter in CHAPTERS[2:]]
    device = [run.memory["device"] for run in runs]
    used = [kind for kind in KINDS if any(kind in kinds for kinds in device)]
    rows = [[kind if kind in KINDS else "all together",
             *(mb(*kinds.get(kind, NOTHING)[:2]) for kinds in device)] for kind in [*used, "total"]]
    rows += [*([f"on the {place}", *(there(run, place) for run in runs)] for place in PLACES[1:]),
             ["reserved", *(mb(kinds["total"][RESERVED]) for kinds in device)],
             ["state, bytes per parameter", *(state_formula(run.chapter, "bf16") for run in runs)]]
    head = ["MB: resident / peak", *(run.chapter for run in runs)]
    count = runs[0].parameters
    return (table(head, rows) + f"\n\n`{runs[-1].shown}`: {spaced(count)} parameters in bf16, "
            f"16 bytes each are {mb(16 * count)} MB.")


NOTEBOOK = ("--task", "mlp", "--layers", 3, "--width", 2048, "--batch", 32, "--steps", 2)


def notebook(of):
    """Writes resident and peak bytes of a notebook's model (where_sources_go_wrong.md, 57.4 %)."""
    rows = []
    for chapter in ("02_distributed_adam", "04_zero1", "05_zero2", "06_zero3"):
        run = of.run(held, chapter, 4, *NOTEBOOK, dtype="fp32")
        rows.append([chapter, *(mb(summed(run, what)) for what in (RESIDENT, PEAK)),
                     *(f"{100 * saved(run, what):.2f} %" for what in (RESIDENT, PEAK))])
    head = ["fp32, 4 ranks", "resident, MB", "peak, MB", "saved, resident", "saved, peak"]
    return f"{table(head, rows)}\n\n`{run.shown}`\n\n{SUMMED}"


def simulated(of):
    """Writes the rows of the notebook on one GPU, which shards nothing, beside runs of its MLP."""
    rows = []
    for row, code, printed, chapter, ranks in (
            ("baseline", "all on one GPU; 0.39 lacks m and v, and has 0.14 too much", "0.39",
             "02_distributed_adam", 4),
            ("ZeRO-1", "one Adam per four tensors, all stepped on one GPU", "0.39: 0.0 %",
             "04_zero1", 4),
            ("ZeRO-2", "`.contiguous()` on gradients: nothing", "0.31: 20.5 %", "05_zero2", 4),
            ("ZeRO-3", "a quarter of the layers: a smaller network", "0.11: 71.8 %",
             "06_zero3", 4),
            ("offload", "Adam on the CPU: 0.25 is right", "0.25: 35.9 %", "07_offload", 1)):
        run = of.run(held, chapter, ranks, "--task", "mlp", "--layers", 8, "--width", 2048,
                     "--batch", 32, "--steps", 2, dtype="fp32")
        state = sum(run.memory["device"].get(kind, NOTHING)[RESIDENT] for kind in STATE)
        less = 1 - state / (16 * run.parameters)
        rows.append([row, code, printed, f"{state / 2**30:.3f}: {100 * less:.2f} %"])
    head = ["row", "what its code does", "printed, GB", "here, GiB"]
    return f"{table(head, rows, left=2)}\n\n`{run.shown}`"


def speed(of):
    """Writes the table that the benchmark ends with: steps beside PyTorch's of the same work."""
    def compared(programs):
        printed = output_of([sys.executable, str(ROOT / "tests/benchmarks/step_benchmark.py"),
                             "--build", str(programs.build), "--mpiexec", programs.mpiexec[0],
                             "--torch", programs.torch, "--no-judge"])
        if "| – " in printed:
            raise Failure(f"{programs.torch} has no PyTorch with FSDP2, 2.6 or later")
        return printed[printed.index("| work |"):]

    return of.text(compared)


SIXTEEN = ("--task", "mlp", "--layers", 16, "--width", 512, "--batch", 256, "--steps", 12)


def link(of):
    """Writes a step's ms on a slow network, and those of its messages, exposed and hidden."""
    rows = []
    for chapter, *prefetch in (("02_distributed_adam",), ("04_zero1",), ("05_zero2",),
                               ("06_zero3", 0), ("06_zero3", 1), ("06_zero3", 2)):
        options = ["--prefetch", *prefetch] if prefetch else []
        run = of.run(timed, chapter, 2, *SIXTEEN, "--link", 1, *options, dtype="fp32")
        rows.append([", prefetch ".join([chapter, *map(str, prefetch)]),
                     *(f"{ms:.0f}" for ms in (run.ms, run.exposed, run.hidden))])
    head = ["ms per step, at 1 Gbit/s", "step", "exposed", "hidden"]
    return table(head, rows) + f"\n\n`{run.shown}`"


EIGHT = ("--task", "mlp", "--layers", 8, "--width", 512, "--batch", 1024, "--steps", 12,
         "--link", 0.5, "--latency", 50)
OVERLAPPED = (CHAPTERS[1], *CHAPTERS[3:5])


def with_two_streams(programs):
    """Returns the programs of a copy of the repository that overlap.md's diffs have changed."""
    folder, build = ROOT / "build/overlap", programs.build
    follow(changes((ROOT / "notes/changing/overlap.md").read_text("utf-8")),
           copied(folder / "tree"))
    if not (folder / "build/build.ninja").exists():
        options = json.loads((build / "meson-info/intro-buildoptions.json").read_text("utf-8"))
        mpi = next(option["value"] for option in options if option["name"] == "mpi")
        output_of(["meson", "setup", f"{folder}/build", f"{folder}/tree", f"-Dmpi={mpi}"])
    output_of(["ninja", "-C", f"{folder}/build", *(f"{name}/{name}" for name in OVERLAPPED)])
    return programs.of_build(folder / "build")


def overlap(of):
    """Writes a step of 02, 04 and 05, and of what notes/changing/overlap.md makes of them. Each is
    the fastest of five, because the fastest was disturbed least."""
    def fastest(programs):
        beside, times = with_two_streams(programs), {}
        for chapter in OVERLAPPED:
            runs = [[some.run(chapter, 2, *EIGHT, "--seed", seed, dtype="fp32")
                     for some in (programs, beside)] for seed in range(5)]
            one, two = (min(map(timed, same), key=lambda run: run["ms"]) for same in zip(*runs))
            times[chapter] = [one["ms"], two["ms"], two["exposed"], two["hidden"]]
        return times

    rows = [[chapter, *(f"{ms:.0f}" for ms in times)]
            for chapter, times in of.get("ms", fastest).items()]
    head = ["ms per step", "one stream", "two streams", "exposed", "hidden"]
    shown = of.command(OVERLAPPED[-1], 2, *EIGHT, "--seed", 0, dtype="fp32").shown
    command = shown.replace(" --width", " \\\n      --width")
    return (f"{table(head, rows)}\n\n    {command}\n\nThe fastest of five runs; "
            "`tools/measure.py --only overlap` makes copy and table.")


def buckets(_):
    """Writes the latency of an all-reduce's buckets, and how long the last one is exposed."""
    words = "--params 7B --layers 32 --ranks 64 --chapter ddp --link 100 --latency 5"
    rows = []
    for size in ("1MiB", "25MiB", "1GB"):
        q = question(f"{words} --bucket {size}".split())
        hops, (bucket, _) = 2 * (q.ranks - 1), plan.bucket(q, q.cards[0])
        count = math.ceil(BYTES[q.dtype] * sum(q.parts) / bucket)
        rows.append([size, count, f"{count * hops * q.latency / 1e3:.0f}",
                     f"{hops * (q.latency / 1e3 + bucket * 8e-6 / q.ranks / q.link):.1f}"])
    return table(["a bucket", "buckets", "latency, ms", "the last one, ms"], rows) + (
        f"\n\n`./tutorial plan {words} --bucket 25MiB`")


def disk(of):
    """Writes a step of 06, 07 and 08, on bus and disk at their own speed, and on slower ones."""
    slow_bus, slow_disk = ("--bus", 0.25), ("--disk", 0.1)
    rows = []
    for chapter, *options in (
            ("06_zero3",), ("07_offload",), ("08_infinity", "--state", "host"), ("08_infinity",),
            ("07_offload", *slow_bus), ("08_infinity", "--state", "host", *slow_bus),
            ("08_infinity", *slow_disk), ("08_infinity", *slow_bus, *slow_disk)):
        run = of.run(timed, chapter, 2, *SIXTEEN, *options, dtype="bf16")
        rows.append([" ".join(map(str, [chapter, *options])), f"{run.ms:.0f}",
                     *(f"{run.copied[way][1]:.0f}" if way in run.copied else "–"
                       for way in ("to_device", "to_host", "read", "write")),
                     *(f"{run.copied[way][2]:.2f}" if way in run.copied else "–"
                       for way in ("read", "write"))])
    head = ["ms per step", "step", "exposed: up", "down", "read", "write", "read at", "written at"]
    return (table(head, rows) + f"\n\n`{run.shown}`: {mb(run.copied['read'][0])} MB of state are "
            "read, and written, per rank and step. *Read at*, *written at*: GB/s of one rank while "
            "the disk is at work.")


def fits(_):
    """Writes the first chapter that fits, for two models on GPUs of three sizes."""
    models = {"7B": 32, "70B": 80}  # {parameters: layers}
    ranks, rows = (1, 4, 8, 64), []
    for model, gpu in itertools.product(models, ("24GB", "40GB", "80GB")):
        words = f"--params {model} --layers {models[model]} --gpu {gpu}"
        q = question(words.split())
        rows.append([f"`{words}`", *(next((card.name[:2] for card in q.cards
                                           if plan.Rank(q, card, n).fits), "–") for n in ranks)])
    return table(["first that fits", *(f"N = {n}" for n in ranks)], rows)


def published(_):
    """Writes how far 06's steps, as played, are from those that others measured, in tokens per
    second. torchtitan sends gradients in fp32; selective recomputation is about half a forward."""
    file = json.loads((ROOT / "notes/published.json").read_text("utf-8"))
    by_source = {}
    for source, words, tokens, *more in file["steps"]:
        q = question([*words.split(), "--chapter", "06"])
        q.sends = 4 * source.startswith("torchtitan")  # bytes of a gradient; 0: of the dtype
        forward, backward = q.operations
        again = sum("selective" in note for note in more) / 2
        q.operations = forward, [b + again * f for f, b in zip(forward, backward)]
        error = play(q, q.cards[0], q.ranks)["tokens/s per rank"] / tokens - 1
        by_source.setdefault((source, words.split()[3]), []).append((q.ranks, error))
    rows = []
    for (source, gpu), steps in by_source.items():
        ranks, errors = zip(*steps)
        rows.append([source, f"up to {max(ranks)} {gpu}", len(steps), f"{min(errors):+.0%}",
                     f"{max(errors):+.0%}"])
    sizes = sorted(abs(error) for steps in by_source.values() for _, error in steps)
    return (f"{table(['published by', 'GPUs', 'steps', 'error: from', 'to'], rows, 2)}\n\n"
            f"{sum(size < 0.1 for size in sizes)} of {len(sizes)} within 10 %, "
            f"{sum(size < 0.2 for size in sizes)} within 20 %; the median is "
            f"{100 * sizes[len(sizes) // 2]:.0f} %. More: [published.json](published.json).")


def hybrid(_):
    """Writes a step's ms, and a rank's GB, of 06's Llama-3-8B cut among all ranks, 8 or 64."""
    rows = []
    for link, cut in itertools.product((368, 23), ("", "--shards 8", "--shards 64")):  # 23 = 368/16
        words = f"--config llama3_8b --machine h100 --link {link} {cut}".rstrip()
        q = question([*words.split(), *"--ranks 1024 --sequence 8192 --batch 1 --recompute full "
                      "--chapter 06".split()])
        steps = [play(q, q.cards[0], n)["step"] for n in (64, 512, 1024)]
        rows.append([f"`{words.partition('h100 ')[2]}`", *(f"{ms:.0f}" for ms in steps),
                     f"{plan.Rank(q, q.cards[0], 512).reserved / 1e9:.1f}"])
    return table(["", "N = 64", "N = 512", "N = 1024", "GB at 512"], rows)


def systems(_):
    """Writes the systems on which tests/portability.py --record has run README's two commands."""
    rows = json.loads((ROOT / "notes/systems.json").read_text("utf-8"))
    return table(("Debian", "MPI", "compiler", "Meson", "demo, test", "tests", "day, commit"), [
        (row["system"].partition("-")[0], row["mpi"], row["compiler"], row["meson"],
         f"{row['demo']}, {row['test']}", row["counts"], f"{row['date']}, commit {row['commit']}")
        for row in rows], 7)


def part(text, begin, end=r"\Z"):
    """Returns a text from the first line that matches `begin` up to the next that matches `end`."""
    return re.search(rf"(?ms)^(?:{begin}).*?(?=^(?:{end})|\Z)", text)[0]


def output(of):  # a whole run of 05, without most of its steps
    def printed(programs):
        run = programs.run("05_zero2", 4, "--steps", 100, dtype="fp32")
        said = re.sub(r"(?m)^ +20  .*\n(?: +[3-9]0  .*\n)+", "     ...\n", run.printed)
        return f"$ {run.shown}\n{said}"

    return fenced(of.text(printed))


def figures_of(run):
    """Returns a run's {name of a row: (its figures, the formula that predicts them)}."""
    rows = {}
    for place in PLACES:
        for kind, held in memory_of(run.summary, place).items():
            both = sorted({held["peak"], held["resident"]}, reverse=True)
            name = f"{place}: {kind}" if on(place) else kind
            if kind == "total":
                name = "all together"
            rows[name] = " / ".join(map(spaced, both)), held.get("formula", "")
    traffic = run.summary["traffic"]
    sent = {f"sent in {phase}": row for phase, row in traffic["phases"].items()}
    words = {"read": "read from disk", "write": "written to disk"}
    copied = {words.get(way, f"copied {way.replace('_', ' ')}"): row
              for way, row in run.bus.items()}
    for name, row in (sent | {"sent as scalars": traffic["scalars"]} | copied).items():
        rows[name] = spaced(row["predicted"] // len(run.steps)), row.get("formula", "")
    return rows


def check(of, chapter):
    """Writes the rows that differ from the chapter before, with formulas; of 01 all, as printed."""
    def counted(programs):
        return figures_of(programs.run(chapter, 4, "--steps", 20))

    def printed(programs):
        run = programs.run(chapter, 4, "--steps", 20)
        rows = part(run.printed, "bytes of a rank ", "replicas|parameters [0-9a-f]{16}")
        return f"$ {run.shown}\n...\n{rows}"

    at, now = CHAPTERS.index(chapter), of.get("rows", counted)
    if at == 0:
        return fenced(of.text(printed))
    was = of.block(f"check {CHAPTERS[at - 1]}").get("rows", None)
    old, new = CHAPTERS[at - 1][:2], chapter[:2]
    rows = [[name, was.get(name, ("–",))[0], *now.get(name, ("–", ""))]
            for name in {**now, **was} if was.get(name, ("0",))[0] != now.get(name, ("0",))[0]]
    notes = ""
    if any(row[0].startswith("sent") for row in rows):
        notes += " Sent: elements per step."
    if "read from disk" in now:
        notes += " Copied, read, written: bytes per step."
    elif "copied to host" in now:
        notes += " Copied: bytes per step."
    return (f"{table(['', f'in {old}', f'in {new}', f'formula in {new}'], rows)}\n\nBytes per "
            "rank: peak / resident, or one number where they are equal."
            f"{notes} All other rows are as in {old}.")


def told_step(programs, chapter):
    """Returns the trace and the run of the small model that `./tutorial narrate` tells."""
    model = itertools.chain(*narrate.TINY.items())
    return programs.traced(chapter, narrate.RANKS, *model)


def element(of, chapter):
    """Writes what happens in a step to element 2 of layer 1, as `./tutorial narrate` says it."""
    return fenced(of.text(lambda programs: "\n".join([
        f"$ ./tutorial narrate {chapter[:2]} --follow 1.2",
        *narrate.followed(*told_step(programs, chapter), 1, 2)])))


def told(of, chapter, phase, layer):
    """Writes a phase of a step that `./tutorial narrate` tells, up to its last line on `layer`."""
    def said(programs):
        story = "\n".join(narrate.story(*told_step(programs, chapter)))
        lines = part(story, f"{phase}\n", r"\w").splitlines()
        last = max(i for i, line in enumerate(lines) if line.startswith(f"  layer {layer} ")) + 1
        while last < len(lines) and lines[last].startswith(("  rank", "  all ", "  give back")):
            last += 1
        return "\n".join([f"$ ./tutorial narrate {chapter[:2]}", "...", *lines[:last], "..."])

    return fenced(of.text(said))


def phases(of, chapter):
    """Writes the first step's bytes by phase, on ledger()'s model. The second step repeats them."""
    def said(programs):
        trace, run = programs.traced(chapter, memory.RANKS, *EQUAL_LAYERS, "--steps", 2)
        shown = " ".join(map(str, ["./tutorial memory", chapter[:2], *EQUAL_LAYERS]))
        lines = "\n".join(memory.table(trace, run))
        return f"$ {shown}\n" + re.sub(r"(?m)^step 2(.+\n)+", "...\n", lines)

    return fenced(of.text(said))


# How a benchmark prints a figure: in one line with its bar, or as two times and their ratio.
JUDGED = re.compile(r"(?:yes: |NO: )?(.+?):? +([\d.]+)(?: of [^,]+)?, ((?:bar|at [ml]\S+) .+)")
RATIO = re.compile(r"(0\d\S*)  +([\d.]+)   (\S.*?)  +([\d.]+) +([\d.]+)(?: (bar [\d.]+))?")


def gpu_results(text):
    """Returns (the GPU, when, {steps, figures that they printed}) of the text that
    tests/gpu/fifteen_minutes.sh has written."""
    texts = re.split(r"(?m)^== (.+) \| (.+) \| (\d+) s\n", text)
    steps, figures = [], []
    for said, name, code, seconds in zip(*(texts[at:-1:4] for at in range(4)), strict=True):
        words = {"0": "passed", "77": "skipped", "124": "not done by then", "not begun": code}
        steps.append([name, words.get(code, f"failed, code {code}"), seconds])
        work = name
        for line in said.splitlines():
            if line.startswith("step: "):
                work = line[6:].partition(";")[0]
            if found := RATIO.match(line):
                ours, ms, other, theirs, ratio, bar = found.groups()
                figures.append([work, f"{ours} over {other}: {ms} / {theirs} ms", ratio, bar or ""])
            elif found := JUDGED.match(line):
                figures.append([work, *found.groups()])
    if not figures:
        raise Failure("no benchmark found a GPU: there is no figure")
    name, *_, day, commit = texts[0].strip().splitlines()  # printed by the first step, machine
    return name, f"{day}; {commit}", {"steps": steps, "figures": figures}


def gpu(of):
    """Writes the two tables of gpu_results()."""
    return (f"{table(['step', 'result', 'seconds'], of.get('steps', None), left=2)}\n\n"
            f"{table(['work', 'what', 'measured', 'bar'], of.get('figures', None), left=2)}")


# The function for a block's first word. The other words are its arguments.
TABLES = {function.__name__: function for function in (
    results, output, check, element, told, layers, ledger, notebook, simulated, phases,
    speed, link, overlap, buckets, disk, fits, published, hybrid, systems, gpu)}
# Blocks that do not say where and when they were made: they have counts, the same on any machine.
TIMELESS = {"check", "element", "told", "notebook", "simulated"}
