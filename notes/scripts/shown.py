# SPDX-License-Identifier: MIT
"""What the pages show as it is printed: each function answers a block of a program's own lines."""
import re
import sys
import textwrap

from cards import ROOT
from plans import Plans, on_too_small_device
from runs import Failure, output_of


def fenced(text):
    wide = [line for line in text.splitlines() if len(line) > 80]
    if wide:
        raise Failure(f"wider than 80 columns: {wide[0]}")
    return f"```text\n{text.strip()}\n```"


def output(programs):
    run = programs.run("05_zero2", 4, "--steps", 100, dtype="fp32")
    return fenced(f"$ {run.shown}\n{run.printed}") + "\n\n" + fenced(
        f"$ build/05_zero2/05_zero2 --dtype fp32 --plan --ranks 4\n...\n"
        + formulas(programs, "05_zero2", "--dtype", "fp32"))


def formulas(programs, chapter, *arguments):
    """Where the predicted figures of a chapter on 4 ranks come from."""
    planned = programs.plan(chapter, 4, *arguments)
    return planned[planned.index("peaks in bytes"):]


def check(programs, chapter):
    """What a chapter prints about bytes and traffic, the part that no clock enters, and where the
    predicted figures come from."""
    run = programs.run(chapter, 4, "--steps", 20)
    first = re.search("^bytes (of a rank|on a device) ", run.printed, re.MULTILINE)
    report = run.printed[first.start():run.printed.index("\nparameters ")]
    return fenced(f"$ {run.shown}\n\n{report}\n{formulas(programs, chapter)}")


def told(programs, chapter, phase, layer):
    """Of the step that --narrate tells one phase, up to the last that it says of that layer."""
    run = programs.run(chapter, 3, "--narrate")
    programs.used.remove(run)  # no clock enters
    story = run.printed[run.printed.index(f"\n{phase}\n") + 1:]
    lines = re.split(r"\n(?=\w|\n)", story)[0].splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith(f"  layer {layer} ")) + 1
    while last < len(lines) and lines[last].startswith(("  rank", "  all ", "  give back")):
        last += 1
    return fenced(f"$ {run.shown}\n...\n" + "\n".join([*lines[:last], "..."]))


def plan(programs):
    """Which chapter fits: the planner's own page."""
    words = ["--params", "30e9", "--card", "80GB"]
    return fenced(f"$ build/plan {' '.join(words)}\n\n"
                  + output_of([str(programs.build / "plan"), *words]))


def phases(programs, chapter):
    """What --memory prints, on the model of `ledger`."""
    run = programs.run(chapter, 4, "--task", "mlp", "--layers", 16, "--width", 512,
                       "--batch", 32, "--steps", 2, "--memory")
    report = run.printed[run.printed.index("bytes in use on rank"):]
    return f"{fenced(report[:report.index(chr(10) + 'parameters ')])}\n\n`{run.shown}`"


def too_large(programs):
    """One device: 06 is refused, 07 runs: there is what it takes there in all."""
    plans = Plans(programs.build).ask(task="text", ranks=4, device="cpu")["chapters"]
    reserved = {plan["name"]: plan["reserved"] for plan in plans}
    refused, sentence, fits = on_too_small_device(
        programs, 4, reserved["07_offload"], reserved["06_zero3"], "--steps", 20)
    sentence = re.sub(r"(?<=\d) (?=\d)", "\u00a0", sentence)  # a number is one word
    sentence = textwrap.fill(sentence, 80, break_on_hyphens=False).replace("\u00a0", " ")
    head, total = (re.search(f"^ *{row} .*$", fits.printed, re.MULTILINE)[0]
                   for row in ("bytes on a device", "all together"))
    return fenced(f"$ {refused.shown}\n{sentence}\n\n$ {fits.shown}\n...\n{head}\n{total}")


def one_card(programs):
    """The planner on what a source says of 13 billion parameters."""
    words = ["--params", "13e9", "--chapter", "07_offload", "--card", "80GB", "--host", "256GB"]
    planned = output_of([str(programs.build / "plan"), *words])
    row = r"(?m)^(?:held by|resident|reserved|on the host|copied by|  down|  up|Take)\b.*"
    kept = re.findall(row + r"(?:\n(?=\d).*)?", planned)
    return fenced(f"$ build/plan {' '.join(words)}\n...\n" + "\n".join(kept))


def counterexamples(_, name):
    """Lines of code and tables of one of them: without its words, which the page has."""
    printed = output_of([sys.executable, str(ROOT / "notes/counterexamples"), name])
    return fenced(textwrap.dedent("\n\n".join(printed.split("\n\n")[2:5])))
