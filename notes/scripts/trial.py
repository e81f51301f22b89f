# SPDX-License-Identifier: MIT
"""Tries changed sources by the project's own tests, in a quick build beside them."""
import json

from runs import Failure, output_of

# Bits depend on none of it, and who waits gets them in half the time.
QUICK = ["-Dcuda=disabled", "-Ddebug=false", "-Dwarning_level=0", "-Db_colorout=never",
         "-Dcpp_args=-O0 -fmax-errors=1"]


class Trial:
    """A tree of sources, and the folder of its build with Meson's options of its own."""

    def __init__(self, sources, build, *options):
        self.sources, self.build, self.options = sources, build, options

    def test(self, *choice, **variables):
        """Builds what the chosen tests need and runs them. Returns Meson's notes of each, by name,
        with what it `said`; where something does not compile, none, and what was printed."""
        if not (self.build / "build.ninja").exists():
            output_of(["meson", "setup", str(self.build), str(self.sources), *QUICK, *self.options])
        log = self.build / "meson-logs/tried.json"
        log.unlink(missing_ok=True)  # never read the results of an earlier run
        environment = [f"{name}={value}" for name, value in variables.items()]
        try:
            printed = output_of(["env", "LC_ALL=C.UTF-8", *environment, "meson", "test", "-C",
                                 str(self.build), "--logbase", "tried", *choice])
        except Failure as failure:  # of a test, or of what it needs
            printed = str(failure)
        lines = log.read_text().splitlines() if log.exists() else []
        results = [json.loads(line) for line in lines]
        for result in results:
            result["name"] = result["name"].rpartition(" / ")[2]  # before it are the suites
            result["said"] = result.get("stdout", "") + result.get("stderr", "")
        return sorted(results, key=lambda result: result["name"]), printed
