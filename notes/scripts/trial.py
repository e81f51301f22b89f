# SPDX-License-Identifier: MIT
"""Tries changed sources by the project's own tests, in a quick build beside them."""
import json
import os
import subprocess

from runs import Failure

# Bits depend on none of it, and who waits gets them in half the time.
QUICK = ["-Dcuda=disabled", "-Ddebug=false", "-Dwarning_level=0", "-Db_colorout=never",
         "-Dcpp_args=-O0 -fmax-errors=1"]


def printed_by(command, **variables):
    """(exit code, all that it prints). If this script is stopped meanwhile, the command is told to
    stop, so that no rank outlives its launcher."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=os.environ | {"LC_ALL": "C.UTF-8"} | variables) as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    return process.returncode, printed


class Trial:
    """A tree of sources, and the folder of its build with Meson's options of its own."""

    def __init__(self, sources, build, *options):
        self.sources, self.build, self.options = sources, build, options

    def set_up(self):
        if (self.build / "build.ninja").exists():
            return
        code, printed = printed_by(["meson", "setup", self.build, self.sources, *QUICK,
                                    *self.options])
        if code != 0:
            raise Failure(f"meson setup failed:\n{printed[-3000:]}")

    def test(self, *choice, **variables):
        """Builds what the chosen tests need and runs them. Returns Meson's notes of each, with what
        it `said`; where something does not compile, none, and what was printed instead."""
        self.set_up()
        log = self.build / "meson-logs/tried.json"
        log.unlink(missing_ok=True)  # never read the results of an earlier run
        _, printed = printed_by(["meson", "test", "-C", self.build, "--logbase", "tried", *choice],
                                **variables)
        lines = log.read_text().splitlines() if log.exists() else []
        results = [json.loads(line) for line in lines]
        for result in results:
            result["name"] = result["name"].rpartition(" / ")[2]  # before it are the suites
            result["said"] = result.get("stdout", "") + result.get("stderr", "")
        return results, printed
