# SPDX-License-Identifier: MIT
"""A mistake that can be run: a function that trains rightly or wrongly, and its words."""
import inspect
import re
import textwrap
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from training import Run

EXAMPLES = {}  # by name, in the order of the page


def percent(of):
    return f"{100 * np.mean(of):.1f} %"


@dataclass
class CounterExample:
    """Decorates `train(run, wrong)`, which has a run before its first step and ends it rightly or
    wrongly; its docstring is a title, a blank line and what goes wrong."""
    program: str  # whose run the right one is, to the last bit
    ranks: int
    options: str
    caught: tuple  # (test, its case) that fails here when a program does this
    steps: tuple = (1, 2, 10, 20, 50)  # whose losses are shown
    sides: tuple = ("right", "wrong")
    decimals: int = 5  # of a loss

    def __call__(self, train):
        self.name, self.source = train.__name__, inspect.getsource(train)
        title, _, text = inspect.getdoc(train).partition("\n\n")
        self.title, self.text = title, " ".join(text.split())
        self.train = train
        EXAMPLES[self.name] = self
        return self

    @cached_property
    def runs(self):
        """Right and wrong."""
        right, wrong = (Run(self.ranks, self.options) for _ in self.sides)
        self.train(right, False)
        wrong.right = right
        self.train(wrong, True)
        return right, wrong

    def lines(self, side):
        """The lines of the function that are marked `right` or `wrong`, without the mark."""
        marked = [re.sub(rf"  # {side}(: (.*))?$", lambda m: m[2] and f"  # {m[2]}" or "", line)
                  for line in self.source.splitlines() if re.search(rf"  # {side}(:|$)", line)]
        return textwrap.dedent("\n".join(marked)).splitlines()

    def steps_table(self):
        """Rows: the step, both losses, and the distance, of the steps that are shown."""
        right, wrong = self.runs
        yield "step", *(f"loss, {side}" for side in self.sides), "farthest weight, learning rates"
        for t in self.steps:
            losses = (f"{run.losses[t - 1]:.{self.decimals}f}" for run in (right, wrong))
            farthest = wrong.distance(right, t).max()
            yield t, *losses, f"{farthest:.{'1e' if 0 < farthest < 0.01 else '2f'}}"

    def table(self):
        """Rows: what else tells the two apart, right, wrong."""
        right, wrong = self.runs
        yield "", *self.sides
        of_right = dict(right.shown)
        yield from ((what, of_right.get(what, ""), number) for what, number in wrong.shown)
        yield "elements that a rank sends in a step, at most", *(
            run.ranks.sent.max() // run.steps for run in (right, wrong))
        yield "weights with other bits at the end", "", percent(wrong.distance(right, -1) > 0)
