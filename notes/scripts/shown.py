# SPDX-License-Identifier: MIT
"""What the pages show as it is printed: each function answers a block of a program's own lines."""
import re
import textwrap

from plans import Plans, device_between, too_small
from runs import Failure, output_of


def fenced(text):
    wide = [line for line in text.splitlines() if len(line) > 80]
    if wide:
        raise Failure(f"wider than 80 columns: {wide[0]}")
    return f"```text\n{text.strip()}\n```"


def output(programs):
    run = programs.run("05_zero2", 4, "--steps", 100, dtype="fp32")
    return fenced(f"$ {run.shown}\n{run.printed}")


def check(programs, chapter):
    """What a chapter prints about bytes and traffic, the part that no clock enters, and where the
    predicted figures come from."""
    run = programs.run(chapter, 4, "--steps", 20)
    first = re.search("^bytes (of a rank|on a device) ", run.printed, re.MULTILINE)
    report = run.printed[first.start():run.printed.index("\nparameters ")]
    planned = programs.plan(chapter, 4)
    return fenced(f"$ {run.shown}\n\n{report}\n{planned[planned.index('peaks in bytes'):]}")


def told(programs, chapter, phase, layer):
    """Of the step that --narrate tells, one phase, and of the layers one."""
    run = programs.run(chapter, 3, "--narrate")
    story = run.printed[run.printed.index(f"\n{phase}\n"):]
    lines = story[1:re.search(r"\n(?=\w|\n)", story[len(phase) + 1:]).start() + len(phase) + 1]
    kept, wanted = [], True
    for line in lines.splitlines():
        if not line.startswith(("  rank", "  all ")):
            wanted = re.match(r"  layer (\d+)", line) is None or line.startswith(f"  layer {layer} ")
        kept += [line] if wanted else []
    return fenced(f"$ {run.shown}\n...\n" + "\n".join(kept) + "\n...")


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
    chapters = ("06_zero3", "07_offload")
    plans = Plans(programs.build).ask(task="text", ranks=4, device="cpu")["chapters"]
    reserved = {plan["name"]: plan["reserved"] for plan in plans}
    size = device_between(*(reserved[chapter] for chapter in reversed(chapters)))
    refused, fits = (programs.prepare(f"{chapter}_device.jsonl", chapter, 4, "--device-memory",
                                      size, "--steps", 20) for chapter in chapters)
    sentence = re.sub(r"(?<=\d) (?=\d)", "\u00a0", too_small(refused))  # a number is one word
    sentence = textwrap.fill(sentence, 80, break_on_hyphens=False).replace("\u00a0", " ")
    fits.execute()
    head, total = (re.search(f"^ *{row} .*$", fits.printed, re.MULTILINE)[0]
                   for row in ("bytes on a device", "all together"))
    return fenced(f"$ {refused.shown}\n{sentence}\n\n$ {fits.shown}\n...\n{head}\n{total}")


def one_card(programs):
    """The planner on what a source says of 13 billion parameters."""
    words = ["--params", "13e9", "--chapter", "07_offload", "--card", "80GB", "--host", "256GB"]
    planned = output_of([str(programs.build / "plan"), *words])
    held, sent, copied = map(planned.index, ("held by", "sent by", "copied by"))
    fits, says = planned.index("\non a card"), planned.index("\nTake ")
    return fenced(f"$ build/plan {' '.join(words)}\n...\n{planned[held:sent]}{planned[copied:fits]}"
                  f"...{planned[says:]}")
