# SPDX-License-Identifier: MIT
"""`./tutorial plan`: tells which chapter fits a model on your GPUs. It needs no build."""
from planner.question import main
from runs import finish

if __name__ == "__main__":
    finish(main, "plan: ")
