# SPDX-License-Identifier: MIT
"""What the chapters' own formulas say, asked of build/plan: no formula of a chapter stands here."""
import json
from pathlib import Path

from runs import CHAPTERS, Failure, output_of

MODEL = {"text": ("data", "width", "layers", "batch"), "toy": ("batch",),
         "mlp": ("width", "layers", "batch")}  # options of a run on which bytes depend


class Plans:
    """The planner of a build, asked once for each answer."""

    def __init__(self, build):
        self.planner = build / "plan"
        self.answers = {}

    def ask(self, **options):
        """Its whole answer. Throws Failure where it is not built, or refuses."""
        if not self.planner.is_file():
            raise Failure(f"{self.planner} is missing; build first: ninja -C {self.planner.parent}")
        words = tuple(f"--{name}={value}" for name, value in options.items())
        if words not in self.answers:
            self.answers[words] = json.loads(output_of([str(self.planner), "--json", *words]))
        return self.answers[words]

    def like(self, run, **options):
        """Of a run's model on its ranks, with other options where given: its chapters by name.
        The first of them is data parallelism."""
        own = run.info["options"]
        task = own.get("task", "text")
        model = {name: own[name] for name in MODEL[task] if name in own}
        if not Path(model.get("data", "")).is_file():
            model.pop("data", None)  # its bytes are not asked for
        answer = self.ask(**{"task": task, **model, "ranks": run.info["ranks"],
                             "dtype": run.dtype, "device": run.info["device"], **options})
        return {chapter["name"]: chapter for chapter in answer["chapters"]}


def device_between(low, high):
    """The roundest size in MB of at least so many bytes, but fewer than `high`."""
    for digits in range(1, 16):
        size = f"{(low + high) / 2e6:.{digits}g}"
        if low <= float(size) * 1e6 < high:
            return f"{float(size):g}MB"
    raise Failure(f"there is no device between {low} and {high} bytes")


def on_too_small_device(programs, ranks, low, high, *words):
    """06 and 07 on a device of fewer than `high` bytes, on which 07, which needs `low`, runs alone:
    the refused run, the sentence that says so, and the other run. Throws Failure where it is not
    so."""
    refused, fits = (programs.prepare(f"more/{chapter}_device.jsonl", chapter, ranks,
                                      "--device-memory", device_between(low, high), *words)
                     for chapter in CHAPTERS[-2:])
    try:
        refused.execute()
    except Failure as refusal:
        told = [line for line in str(refusal).splitlines() if "--device-memory" in line]
        if refusal.code != 6 or not told:
            raise
        fits.execute()
        return refused, told[0], fits
    raise Failure(f"this should not have fitted: {refused.shown}")
