#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The planner from outside: on models that the programs run it says what they say and what they
count, to the byte and the element; it fits the page, and what is wrong it refuses in a sentence.
"""
import json
import re
import sys

sys.dont_write_bytecode = True
from expected import MIXED, WINDOW, expect  # noqa: E402
from programs import KINDS, ON_RANKS, Programs, options_of  # noqa: E402

PHASES = ("forward", "backward", "update")
MODELS = ("--task text --width 16 --layers 2 --batch 5", "--task mlp --width 7 --layers 3",
          "--task toy --batch 3")
DIRECTIONS = {"down": "down, gradients", "up": "up, parameters"}  # as they are printed
ANY = "--params 7.5e9 --ranks 64"
# What is asked, the exit code and the words of the sentence.
BAD = [("", 2, "--params, --task"), ("--params 7B", 2, "--ranks, --card"),
       ("--params 7B --task mlp --ranks 2", 2, "--params, --task"),
       ("--params 7.5 --ranks 2", 2, "7.5, whole number"),
       *((f"--params {text} --ranks 2", 2, f"--params, {text}, 1e13")
         for text in ("7x", "0", "-1", "nan", "inf", "2e13", "1e999")),
       ("--params 7B --ranks 4097", 2, "--ranks, 4097, 4096"),
       ("--params 30 --ranks 2", 2, "30 parameters, 32 layers"),
       ("--params 7B --ranks 2 --largest-layer 100M", 2, "7 000 000 000, 32 layers, 100 000 000"),
       ("--params 7B --card 80", 2, "--card, 80, 80GB"),
       ("--params 7B --card 80gb", 2, "--card, 80gb, 80GB"),
       (f"{ANY} --convention theirs", 2, "theirs, paper, deepspeed"),
       (f"{ANY} --convention megatron --dtype fp32", 2, "megatron, fp32"),
       *((f"{ANY} --bytes {text}", 2, f"--bytes, {text}, P,G,K")
         for text in ("2", "3,2,8", "2,2,17", "2,2,8,1", "2,-2,8", "2,2,-8")),
       (f"{ANY} --bytes 2,2,8 --dtype bf16", 2, "--bytes, --dtype"),
       (f"{ANY} --batch 4", 2, "--batch, --task"),
       ("--task mlp --ranks 2 --bytes 2,2,8", 2, "--bytes, --params"),
       (f"{ANY} --host 80GB", 2, "--host, --card"),
       ("--params 7B --card 80GB --host 80", 2, "--host, 80, 80GB"),
       (f"{ANY} --bus 0", 2, "--bus, 0"), (f"{ANY} --bus fast", 2, "--bus, fast"),
       (f"{ANY} --latency 5", 2, "--latency, --link"), (f"{ANY} --link 0", 2, "--link, 0"),
       (f"{ANY} --chapter 01_adam", 2, "01_adam, 02_distributed_adam, 06_zero3"),
       (f"{ANY} --chapter 02_distributed_adam", 2, "02_distributed_adam, bf16, fp32"),
       (f"{ANY} --prefetch 3", 2, "--prefetch, 3"), (f"{ANY} --foo", 2, "--foo"),
       ("--task text --width 12 --ranks 2", 2, "--width 12, 8"),
       ("--task text --data nowhere --ranks 2", 3, "nowhere, No such file")]


class Test:
    def __init__(self, build, mpiexec):
        self.programs = Programs(build, mpiexec)

    def start(self, text):
        return self.programs.start([str(self.programs.build / "plan"), *text.split()])

    def plan(self, text):
        """As (what is printed, JSON)."""
        printed, exact = self.start(text), self.start(f"{text} --json")
        for outcome in (printed, exact):
            expect((outcome.code, outcome.err) == (0, ""), f"plan {text}: {outcome}")
        expect(all(len(line) <= 80 for line in printed.out.splitlines()), f"narrow: {printed.out}")
        return printed.out, json.loads(exact.out)

    def like_the_programs(self, chapter, model, ranks, more):
        """What `PROGRAM --plan` prints."""
        _, plan = self.plan(f"{model} --device cpu --ranks {ranks} {more} --chapter {chapter}")
        (mine,) = plan["chapters"]
        only = more if chapter in MIXED else re.sub(r"--dtype \w+", "", more)
        only = only if chapter in WINDOW else re.sub(r"--prefetch \d", "", only)
        outcome = self.programs.run(0, chapter, "--plan", "--device", "cpu", "--ranks", ranks,
                                    *model.split(), *only.split())
        rows, place = {}, ""  # two columns of 24 characters beside the names
        for line in outcome.out.partition("\npeaks in bytes")[0].splitlines():
            cells = [cell.replace(" ", "") for cell in (line[26:50], line[50:])]
            place = "host " if line == "on its host" else place if line else ""
            rows[place + line[:26].strip()] = [int(cell) for cell in cells if cell.isdecimal()]
        for kind in KINDS:
            figures = mine["kinds"][kind]
            expect(rows.get(kind, [0, 0]) == [figures["resident"], figures["peak"]],
                   f"{chapter} {model} {more}: {kind}: {figures}\n{outcome.out}")
        on_host = mine.get("host_kinds", {})
        expect({row.split()[1]: cells[1] for row, cells in rows.items()
                if row.startswith("host ") and cells} == on_host and
               sum(on_host.values()) == mine["on_host"], f"{on_host}: {outcome.out}")
        for direction, row in DIRECTIONS.items():
            expect(rows.get(row, [0]) == [mine["copied"][direction]], f"{row}: {outcome.out}")
        for phase in PHASES:
            expect(rows[phase][0] == mine["phases"][phase]["elements"], f"{phase}: {outcome.out}")
        for row, key in (("padding, all ranks", "padding_sent_by_all_ranks"),
                         ("scalars", "scalars_sent")):
            expect(rows[row] == [mine[key]], f"{row}: {outcome.out}")

    def like_a_run(self, chapter, model, more):
        """What the ledger and the communicator have counted."""
        ranks, steps = 3, 2
        _, plan = self.plan(f"{model} --device cpu --ranks {ranks} {more} --chapter {chapter}")
        (mine,) = plan["chapters"]
        only = more if chapter in MIXED else ""
        only = only if chapter in WINDOW else re.sub(r"--prefetch \d", "", only)
        run, _, summary = self.programs.logged(ranks, chapter, *model.split(), *only.split(),
                                               "--steps", steps, "--device", "cpu")
        said = f"{chapter} {model} {more}: {mine}\n{summary}"
        expect((run["parameters"], run["padded_parameters"], run["layers"]) ==
               (plan["parameters"], plan["padded_parameters"], plan["layers"]), said)
        memory, traffic = summary["memory"], summary["traffic"]
        for kind in KINDS:
            expect({**mine["kinds"][kind], "reserved": mine["kinds"][kind]["peak"]} ==
                   {figure: memory[kind][figure] for figure in ("resident", "peak", "reserved")},
                   said)
        expect((mine["resident"], mine["reserved"]) ==
               (memory["total"]["resident"], memory["total"]["reserved"]), said)
        expect(mine.get("host_kinds", {}) == {kind: figures["reserved"] for kind, figures
                                              in summary.get("host_memory", {}).items()}, said)
        for direction, copied in summary.get("bus", {}).items():
            expect(steps * mine["copied"][direction] == copied["counted"] > 0, said)
        for phase in PHASES:
            expect(steps * mine["phases"][phase]["elements"] ==
                   traffic["phases"][phase]["counted"], said)
        expect(steps * mine["scalars_sent"] == traffic["scalars"]["counted"] and
               steps * mine["padding_sent_by_all_ranks"] == traffic["padding"]["counted"], said)

    def printed(self):
        """The chapters side by side, once each; the figures of the JSON."""
        out, plan = self.plan("--params 30e9 --card 80GB --host 120GB --accumulate 16 --link 100 "
                              "--latency 5 --bus 20 --compute 900")
        expect([chapter["name"] for chapter in plan["chapters"]] == MIXED, f"chapters: {plan}")
        expect((plan["ranks"], plan["ranks_found"]) == (4, True), f"4 ranks: {plan}")
        expect((plan["card"], plan["host"], plan["bus_gb_per_s"]) == (80e9, 120e9, 20), f"{plan}")
        expect(" ".join(out.split()).endswith(plan["advice"]), f"the advice: {out}")
        cells = [(line[:24].strip(), line[24:].split()) for line in out.splitlines()]
        rows, last = dict(cells), plan["chapters"][-1]
        used = {kind for name in plan["chapters"] for kind, figures in name["kinds"].items()
                if figures["resident"]}
        for kind, figures in last["kinds"].items():
            held, peak = figures["resident"], figures["peak"]
            sizes = [held] * (kind in used) + [peak - held] * (peak > held)
            sizes += [size for name, size in last["host_kinds"].items() if name == kind]
            expect([row[-1] for name, row in cells if name == kind] ==
                   [f"{size / 1e9:.2f}" for size in sizes], f"{kind}: {out}")
        counts = [last["phases"][phase]["collectives"] for phase in PHASES]
        expect(counts == [16 * 32, 2 * 16 * 32, 0], f"a layer, 16 micro-batches: {last}")
        expect(rows["collectives"] == "64 64 544 1536 1536".split(), out)
        # 2 bytes of each of 30e9 / 4 parameters, and what a rank fills up.
        copied = 2 * plan["padded_parameters"] // 4
        expect(last["copied"] == {"down": copied, "up": copied} and
               abs(last["copies_ms"] - 2 * copied / 20e6) < 1e-6, f"copies: {last}")
        expect(last["host_formula"] == rows["bytes a param."][-1] == "14/N", out)
        expect((last["on_host"], last["on_host_by_all_ranks"]) == (7 * copied, 28 * copied),
               f"14 bytes a parameter: {last}")
        expect([row[-1] for name, row in cells if name == "by 4 ranks, GB"] ==
               [f"{size / 1e9:.2f}" for size in (4 * last["reserved"], 28 * copied)], out)
        expect(plan["link"] == {"gbit_per_s": 100, "latency_us": 5}, f"the link: {plan}")
        expect(rows["of it saved"][-2:] == [f"{100 * last['state_saved']:.1f}", "%"], out)
        for row, figure in (("resident", last["resident"] / 1e9),
                            ("reserved", last["reserved"] / 1e9),
                            *((row, copied / 1e9) for row in DIRECTIONS.values()),
                            ("copies, ms", last["copies_ms"]),
                            ("on the host", last["on_host"] / 1e9),
                            ("on the host then, GB", last["on_host_then"] / 1e9),
                            ("elements", last["sent_elements"] / 1e9),
                            ("bytes, GB", last["sent_bytes"] / 1e9),
                            ("reserved then, GB", last["reserved_then"] / 1e9),
                            ("on one rank less, GB", last["reserved_on_one_less"] / 1e9),
                            ("as N grows, GB", last["on_every_rank"] / 1e9),
                            ("communication, ms", last["communication_ms"]),
                            ("step at most, ms",
                             last["communication_ms"] + last["copies_ms"] + 900),
                            ("at best, ms", last["step_ms"]["at_best"])):
            expect(rows[row][-1] == f"{figure:.2f}", f"{row} {figure}: {out}")
        expect(rows["fewest ranks"] == ["none", "none", "26", "7", "4"], out)
        expect(rows["by formula alone"] == ["-", "-", "21", "6", "4"], out)
        expect(rows["fits on 4 ranks"] == ["no"] * 4 + ["yes"], out)
        for more, dtype, costs in (("--dtype fp32", "fp32", [4, 4, 8]), ("", "bf16", [2, 2, 12]),
                                   ("--bytes 4,4,16", "fp32", [4, 4, 16]),
                                   ("--convention megatron", "bf16", [2, 2, 16]),
                                   ("--convention deepspeed", "bf16", [2, 2, 16])):
            _, plan = self.plan(f"--params 1e9 --card 80GiB {more}")
            expect((plan["card"], plan["dtype"]) == (80 << 30, dtype), f"{more}: {plan}")
            zero2, zero3, offload = (chapter["bytes_a_parameter"]
                                     for chapter in plan["chapters"][-3:])
            gathering = [2, 4, 12] if "deepspeed" in more else costs
            # In fp32 master weights of its own, unless one says otherwise.
            apart = [4, 4, 12] if "fp32" in more else gathering
            expect((zero2, zero3, offload) == (costs, gathering, apart), f"{more}: {plan}")
        out, plan = self.plan("--params 1e9 --ranks 8 --dtype fp32")
        expect([chapter["name"] for chapter in plan["chapters"]] == ON_RANKS, f"{plan}")
        expect(re.search(r"(?m)^ +02/03 +04 +05 +06 +07$", out), f"equal columns once: {out}")
        expect("where it is offloaded: optimizer state 12, with master" in out, f"a master: {out}")
        out, plan = self.plan("--params 13e9 --card 32GB --chapter 07")
        expect("Take 07_offload on 2 ranks of 32.00 GB: 29.66 GB a rank and 91.00 GB on its host."
               in " ".join(out.split()) and plan["host"] is None, f"13 B on one card: {out}")
        out, _ = self.plan("--params 13e9 --ranks 8 --chapter 06")
        expect("host" not in out and "bus" not in out, f"06 has neither: {out}")
        out, _ = self.plan("--params 1e13 --layers 4096 --ranks 4096 --accumulate 65536")
        expect("-" not in out.replace("(N - 1)", ""), f"no count is below 0: {out}")
        for row in re.findall(r"(?m)^(?:elements|  collectives|  forward) .*", out):
            expect(len(row.split()) == 6, f"columns apart: {row}")

    def refused(self, text, code, words):
        outcome = self.start(text)
        expect((outcome.code, outcome.out) == (code, ""), f"code {code}: {text}: {outcome}")
        expect(re.fullmatch(r"plan: .{1,190}\n", outcome.err), f"one sentence: {text}: {outcome}")
        for word in words.split(", "):
            expect(re.search(word, outcome.err), f"{word}: {text}: {outcome}")


def main():
    options = options_of(__doc__)
    test = Test(options.build, options.mpiexec)
    compared = 0
    for number, model in enumerate(MODELS):
        for chapter in ON_RANKS:
            for dtype in ("fp32", "bf16", "fp16") if chapter in MIXED else ("fp32",):
                for ranks, micro_batches in ((1, 2), (3, 1), (64, 3)):
                    prefetch = (ranks + number) % 3
                    test.like_the_programs(chapter, model, ranks, f"--dtype {dtype} --prefetch "
                                           f"{prefetch} --accumulate {micro_batches}")
                    compared += 1
    for number, chapter in enumerate(ON_RANKS):
        for dtype, prefetch in (("fp32", 0), ("bf16", 2)):
            if chapter in MIXED or dtype == "fp32":
                test.like_a_run(chapter, MODELS[number % 3], f"--dtype {dtype} --prefetch "
                                f"{prefetch}" + " --accumulate 2" * (chapter in MIXED))
                compared += 1
    test.printed()
    helped = test.start("--help")
    expect(helped.code == 0 and all(len(line) <= 80 for line in helped.out.splitlines()),
           f"help in 80 columns: {helped}")
    for row in BAD:
        test.refused(*row)
    print(f"{compared} plans are those of the programs, {len(BAD)} bad ones refused")


if __name__ == "__main__":
    main()
