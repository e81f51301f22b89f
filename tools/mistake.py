# SPDX-License-Identifier: MIT
"""Mistakes that train: programs with a mistake, each beside the right one.

    ./tutorial mistake         lists them
    ./tutorial mistake NAME    runs one: what is wrong, by how much

The last two, families and ring, are no mistakes: they only add in another
order. All are told in notes/counterexamples.md, which has their diffs."""
import json
import re
import shlex
import shutil
import struct
import sys
from array import array
from dataclasses import replace

import page_reader
from runs import ROOT, Failure, finish, folded, ran
from sabotage import print_diff, tree_for
from trial import with_progress, of_ours

PAGE = ROOT / "notes/counterexamples.md"
SHOWN = (1, 2, 10, 19, 20, 30, 40, 50)  # steps whose losses are shown, as far as a run goes


class Ran:
    """A program's run with a checkpoint after every step. Whoever makes a Ran sets `right`, the run
    without the mistake, and `start`, a run of one step with --lr 0 and --beta1 0."""

    def __init__(self, program, mpiexec, ranks, options, folder):
        shutil.rmtree(folder, ignore_errors=True)  # never read what an earlier run has left
        folder.mkdir(parents=True)
        log = folder / "log.jsonl"
        command = [*shlex.split(mpiexec), "-n", ranks, str(program), *options.split(),
                   "--device", "cpu", "--log", str(log), "--save", str(folder),
                   "--save-every", "1", "--keep", "1000"]
        self.folder = folder
        self.code, printed = with_progress(f"running {program.name}", ran, command)
        self.says = of_ours(printed)[-1:] if self.code else []  # why it ended with this code
        lines = [json.loads(line) for line in log.read_bytes().splitlines()] if log.exists() else []
        self.steps = [line for line in lines if "loss" in line]
        if not lines or len(self.steps) < lines[0]["run"]["options"]["steps"]:
            raise Failure(f"{printed.rstrip()}\nthe command was: {shlex.join(command)}")
        self.info, self.lr = lines[0]["run"], lines[0]["run"]["options"]["lr"]
        self.summary = lines[-1].get("summary")  # none where ranks found that their state differs

    def numbers(self, step, kind=""):
        """Returns, by layer and without padding, a checkpoint's weights if `kind` is empty, else
        Adam's numbers of that kind, exp_avg or exp_avg_sq."""
        file = "optimizer" if kind else "model"
        data = (self.folder / f"step_{step}/{file}.safetensors").read_bytes()
        begin, layers = 8 + struct.unpack("<Q", data[:8])[0], {}
        for name, tensor in json.loads(data[8:begin]).items():
            if name.endswith(kind) and name != "__metadata__":
                first, end = (begin + at for at in tensor["data_offsets"])
                part = array("f", data[first:end])
                layers.setdefault(name.split(".")[1], []).append((name, part))
        # A layer's weight stands before its bias.
        return [[number for _, part in sorted(parts, reverse=True) for number in part]
                for _, parts in sorted(layers.items())]

    def weights(self, step):
        """Returns all weights after that step; step 0 is before the first."""
        layers = self.numbers(step) if step > 0 else self.start.numbers(1)
        return [weight for layer in layers for weight in layer]

    def moves(self, step):
        """Returns by how much a step moves each weight, in learning rates."""
        pairs = zip(self.weights(step), self.weights(step - 1))
        return [(after - before) / self.lr for after, before in pairs]

    def lengths(self, step):
        """Returns how far, in learning rates, a step moves each weight that it moves, sorted."""
        return sorted(abs(move) for move in self.moves(step) if move)

    def distances(self, step):
        """Returns how far each weight is from the right run's, in learning rates."""
        pairs = zip(self.weights(step), self.right.weights(step))
        return [abs(ours - theirs) / self.lr for ours, theirs in pairs]

    def gradients(self):
        """Returns step 1's gradients, by layer: with --beta1 0 they are the first moment."""
        return self.start.numbers(1, "exp_avg")


def mean(numbers):
    return sum(numbers) / len(numbers)


def percent(found):
    return f"{100 * mean(found):.1f} %"


# ---- What is shown of a run: words, and a function of the run ----------------------------------

def mean_length(step):
    return (f"mean length of step {step}, in learning rates",
            lambda run: f"{mean(run.lengths(step)):.3f}")


def spread(step):
    def found(run):
        lengths = run.lengths(step)
        low, high = (lengths[int(part * (len(lengths) - 1))] for part in (0.05, 0.95))
        return f"{low:.3f} to {high:.3f}"
    return f"5 % to 95 % of the lengths of step {step}", found


def turned(run):
    return percent([ours * theirs < 0 for ours, theirs in zip(run.moves(1), run.right.moves(1))])


def lost(run):
    """Returns the share of the right run's moves, of a weight in a step, that `run` lacks."""
    return percent([not ours for step in range(1, len(run.steps) + 1)
                    for ours, theirs in zip(run.moves(step), run.right.moves(step)) if theirs])


def norm(step):
    return f"gradient norm of step {step}", lambda run: f"{run.steps[step - 1]['grad_norm']:.5f}"


def scale(step):
    def found(run):
        line = run.steps[step - 1]
        return f"{line['loss_scale']:g}" + (", skipped" if line["skipped"] else "")
    return f"loss scale of step {step}", found


def elements(run):
    if run.summary is None:
        return ""
    counted = [row["counted"] for row in run.summary["traffic"]["phases"].values()]
    return sum(counted) // len(run.steps)


def different(layers, others):
    """Returns, for each number of `layers`, whether the one in its place in `others` is another."""
    return [ours != theirs for both in zip(layers, others) for ours, theirs in zip(*both)]


def weights_apart(step):
    return (f"weights with other bits after step {step}",
            lambda run: percent(different([run.weights(step)], [run.right.weights(step)])))


def part_apart(part):
    """Counts the gradients that differ in the part of each layer that rank `part` owns."""
    def found(run):
        ranks, align, parts = run.info["ranks"], run.info["options"]["align"], []
        for layers in (run.gradients(), run.right.gradients()):
            sizes = [-(-len(layer) // (align * ranks)) * align for layer in layers]
            parts.append([layer[part * size:(part + 1) * size]
                          for layer, size in zip(layers, sizes)])
        apart = different(*parts)
        return f"{sum(apart)} of {len(apart)}"
    return f"part {part}: gradients with other bits in step 1", found


WIDE = "--width 40 --layers 4 --steps"
PYTORCH = "adam: Adam and the reference give PyTorch's numbers after 1 and after 100 steps"
REPLAY = "the run equals the replay: "
# By name, in the order of the page's sections: ranks, program and options; the test and the case
# that catch the mistake; what is shown of a run, each time words and a function.
MISTAKES = {
    "updates": (
        f"3 02_distributed_adam {WIDE} 50",
        f"02_distributed_adam on 3 ranks: {REPLAY}odd sizes, clipping, weight decay",
        mean_length(1), ("weights that step 1 moves the other way", turned)),
    "moments": (
        f"3 02_distributed_adam {WIDE} 50", PYTORCH,
        ("largest m that is kept, after step 50",
         lambda run: f"{max(max(map(abs, layer)) for layer in run.numbers(50, 'exp_avg')):.4f}"),
        *map(spread, (2, 12, 50))),
    "master": (
        "3 03_mixed_precision --dtype bf16 --width 40 --layers 4 --lr 5e-05 --steps 40",
        "adam: Adam is within its rounding errors of the formulas, over 100 steps, in every dtype",
        ("updates that change nothing", lost)),
    "correction": (
        f"3 02_distributed_adam {WIDE} 50", PYTORCH, *map(mean_length, (1, 10, 50))),
    "overflow": (
        f"3 03_mixed_precision --dtype fp16 {WIDE} 30",
        "03_mixed_precision on 2 ranks: "
        "fp16's dynamic loss scale finds its way down from an overflow",
        ("steps skipped of 30", lambda run: sum(step["skipped"] for step in run.steps)),
        *map(scale, (18, 19, 20, 30))),
    "tensors": (
        "4 04_zero1 --dtype fp32 --width 40 --layers 3 --steps 20",
        "memory: layers are padded to equal shares and no further, and every element has one owner",
        ("bytes of optimizer state on a rank",
         lambda run: run.summary["memory"]["optimizer"]["resident"])),
    "padding": (
        "8 05_zero2 --dtype fp32 --width 8 --layers 4 --clip 0.3 --steps 50",
        f"05_zero2 on 3 ranks: {REPLAY}layers of different sizes",
        norm(1), norm(50), ("steps clipped", lambda run: sum(
            step["grad_norm"] > run.info["options"]["clip"] for step in run.steps))),
    "last": (
        f"3 05_zero2 --dtype fp32 {WIDE} 20 --accumulate 4",
        f"05_zero2 on 2 ranks: {REPLAY}several micro-batches", norm(1)),
    "allreduce": (
        f"3 04_zero1 --dtype fp32 {WIDE} 20",
        "04_zero1 on 2 ranks: bytes and traffic equal the chapter's formulas"),
    "families": (
        f"3 02_distributed_adam {WIDE} 20 --accumulate 4",
        f"05_zero2 on 3 ranks: {REPLAY}several micro-batches",
        ("gradients of step 1 that differ",
         lambda run: percent(different(run.gradients(), run.right.gradients()))),
        *map(weights_apart, (1, 2))),
    "ring": (
        "4 04_zero1 --dtype fp32 --width 40 --layers 3 --steps 20",
        "communicator on 4 ranks: the ranks are added in rank order, in fp32, and rounded once",
        *map(part_apart, range(4)))}
SIDES = {"families": ("02", "05"), "ring": ("direct", "ring")}  # names of two runs, both right


class Mistake:
    """A section of notes/counterexamples.md, its diffs, and the commands that are run."""

    def __init__(self, name, section):
        self.name = name
        self.title, _, text = section.partition("\n")
        command, self.caught, *self.shown = MISTAKES[name]
        test, _, case = self.caught.partition(": ")
        self.diffs = [replace(diff, test=test, case=case)
                      for diff in page_reader.changes(text, PAGE.name)]
        self.commands = [command.split(" ", 2)]
        if not self.diffs:  # `families` compares 02, its own command, with 05, that of `last`
            self.commands.append(MISTAKES["last"][0].split(" ", 2))
        text, _, _ = text.partition("\n```diff")
        self.text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)  # a link becomes its text
        self.sides = SIDES.get(name, ("right", "wrong"))

    def runs(self, build, mpiexec, work, mpi):
        """Returns the right run, by the build's program, and the wrong one, by the program of a
        copy that the diffs have changed. Without diffs the wrong one is the second command's."""
        runs, folder = [], work / "runs" / self.name
        for at, (ranks, chapter, options) in enumerate((self.commands * 2)[:2]):
            program = build / chapter / chapter
            if at == 1 and self.diffs:
                tree = tree_for(work, "plain", f"-Dmpi={mpi}")
                tree.put(page_reader.edited(self.diffs))
                program = tree.program(chapter)
            one_step = re.sub(r"--(steps|lr) \S+", "", options) + " --steps 1 --lr 0 --beta1 0"
            run = Ran(program, mpiexec, ranks, options, folder / str(at))
            run.start = Ran(program, mpiexec, ranks, one_step, folder / f"start_{at}")
            runs.append(run)
            run.right = runs[0]
        return runs

    def figures(self, right, wrong):
        """Returns rows (words, the right run's figure, the wrong run's)."""
        last = len(right.steps)
        return [(words, *map(str, map(found, (right, wrong)))) for words, found in (
            *self.shown, ("elements that a rank sends in a step, at most", elements),
            weights_apart(last))]

    def show(self, build, mpiexec, work, mpi):
        """Prints what is wrong, runs the right and the wrong program, and prints their figures."""
        print(*folded(f"{self.name}: {self.title}"), "", sep="\n")
        for paragraph in self.text.strip().split("\n\n"):
            print(*folded(paragraph, "  ", ""), "", sep="\n")
        for diff in self.diffs:
            print_diff(diff)
        print(flush=True)
        self.print_runs(*self.runs(build, mpiexec, work, mpi))

    def print_runs(self, right, wrong):
        steps = [step for step in SHOWN if step <= len(right.steps)]
        head = "".join(f"{'loss, ' + side:>18}" for side in self.sides)
        print(f"  step{head}{'farthest weight, learning rates':>34}")
        for step in steps:
            form = "18.8f" if self.name in SIDES else "18.5f"
            losses = "".join(f"{run.steps[step - 1]['loss']:{form}}" for run in (right, wrong))
            farthest = max(wrong.distances(step))
            form = "18.1e" if 0 < farthest < 0.01 else "18.2f"
            print(f"  {step:4}{losses}{farthest:{form}}")
        print(f"\n{'':50}{self.sides[0]:>15}{self.sides[1]:>15}")
        for words, *both in self.figures(right, wrong):
            print(f"  {words:48}{both[0]:>15}{both[1]:>15}".rstrip())
        for (ranks, chapter, options), side in zip(self.commands, self.sides):
            command = f"mpirun -n {ranks} build/{chapter}/{chapter} {options}"
            print("", f"  {side.capitalize()}:", *folded(command, "    ", "    "), sep="\n")
        for line in wrong.says:
            print("", f"  {self.sides[1].capitalize()} ends with code {wrong.code}:",
                  *folded(line, "    ", ""), sep="\n")
        caught = self.caught.replace(": ", ": \"", 1)
        print("", *folded(f"Caught by {caught}\".", "  ", ""), sep="\n")


def mistakes():
    """Returns {name: Mistake}, in the order of the page."""
    sections = PAGE.read_text("utf-8").split("\n## ")[1:]
    return {name: Mistake(name, text) for name, text in zip(MISTAKES, sections, strict=True)}


def main():
    found, (name, mpiexec, mpi, *_) = mistakes(), (*sys.argv[1:], "", "", "")
    if not name:
        print(__doc__ + "\n")
        print("\n".join(f"  {name:12}{mistake.title}" for name, mistake in found.items()))
    elif name not in found:
        raise Failure(f"'{name}' is not one of {', '.join(found)}", 2)
    elif mpiexec:
        found[name].show(ROOT / "build", mpiexec, ROOT / "build/break", mpi)


if __name__ == "__main__":
    finish(main, "tutorial: mistake: ")
