# SPDX-License-Identifier: MIT
"""A mistake that can be run: a function that trains rightly or wrongly, and its words."""
import inspect
import re
import textwrap
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from runs import folded
from numpy_model import Adam
from training import Run

EXAMPLES = {}  # by name, in the order of the page


def percent(of):
    return f"{100 * np.mean(of):.1f} %"


def filled(text, indent="  "):
    """In lines of a terminal; an option stays in one with its value."""
    bound = re.sub(r"(--\S+) (?!-)", "\\1\u00a0", text)
    return "\n".join(folded(bound, indent)).replace("\u00a0", " ")


@dataclass
class CounterExample:
    """Decorates `train(run, adam, wrong)`, which has a run before its first step and ends it
    rightly or wrongly; its docstring is a title, a blank line and what goes wrong."""
    program: str  # whose run the right one is, to the last bit
    ranks: int
    options: str
    caught: tuple  # (test, its case) that fails here when a program does this
    steps: tuple = (1, 2, 10, 20, 50)  # whose losses are shown
    sides: tuple = ("right", "wrong")
    decimals: int = 5  # of a loss

    def __call__(self, train):
        self.train, self.name, self.source = train, train.__name__, inspect.getsource(train)
        self.title, _, self.text = inspect.getdoc(train).partition("\n\n")
        EXAMPLES[self.name] = self
        return self

    @cached_property
    def runs(self):
        """Right and wrong."""
        runs = right, wrong = [Run(self.ranks, self.options) for _ in self.sides]
        wrong.right = right
        for run in runs:
            self.train(run, Adam(run.w.size, run.case), run is wrong)
        return runs

    def lines(self, side):
        """The lines of the function that are marked `right` or `wrong`, without the mark."""
        marked = [re.sub(rf"  # {side}(: (.*))?$", lambda m: m[2] and f"  # {m[2]}" or "", line)
                  for line in self.source.splitlines() if re.search(rf"  # {side}(:|$)", line)]
        return textwrap.dedent("\n".join(marked)).splitlines()

    def paragraphs(self):
        """What is printed of it."""
        right, wrong = self.runs
        yield f"{self.name}: {self.title}"
        yield filled(" ".join(self.text.split()))
        yield "\n".join(f"  {label + ':' if at == 0 else '':10}{line}"
                        for side, label in zip(("right", "wrong"), self.sides)
                        for at, line in enumerate(self.lines(side)))
        head = "".join(f"{'loss, ' + side:>18}" for side in self.sides)
        rows = [f"  step{head}{'farthest weight, learning rates':>34}"]
        for t in self.steps:
            losses = "".join(f"{run.losses[t - 1]:18.{self.decimals}f}" for run in self.runs)
            farthest = wrong.distance(right, t).max()
            rows.append(f"  {t:4}{losses}{farthest:18.{'1e' if 0 < farthest < 0.01 else '2f'}}")
        yield "\n".join(rows)
        of_right = dict(right.shown)
        yield "\n".join(f"  {what:<48}{ours:>15}{theirs:>15}".rstrip() for what, ours, theirs in (
            ("", *self.sides),
            *((what, of_right.get(what, ""), number) for what, number in wrong.shown),
            ("elements that a rank sends in a step, at most",
             *(run.ranks.sent.max() // run.steps for run in self.runs)),
            ("weights with other bits at the end", "", percent(wrong.distance(right, -1) > 0))))
        command = f"mpirun -n {self.ranks} build/{self.program}/{self.program} {self.options}"
        yield f"  {self.sides[0].capitalize()} has the bits of\n{filled(command, '    ')}"
        yield filled('Caught here by {}: "{}".'.format(*self.caught))
