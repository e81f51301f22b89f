# SPDX-License-Identifier: MIT
"""Gives the tests in Python their options and fixtures, and exit code 77 if all are skipped."""
import sys
import tempfile
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("programs", "tools")]
from programs import SKIPPED, Programs


def pytest_addoption(parser):
    parser.addoption("--build", help="the folder with the eight programs")
    parser.addoption("--mpiexec", help="the launcher of their MPI")
    parser.addoption("--prefix", default="", help="of the programs' names: simulated_gpu_")
    parser.addoption("--failing", nargs="+", help="chapters' tests on ranks, of which one fails")
    parser.addoption("--emulator", default="", help="what starts the programs of another machine")


@pytest.fixture(scope="session")
def programs(request):
    """The programs of the build, and the launcher that they need."""
    option = request.config.getoption
    return Programs(Path(option("--build")).resolve(), option("--mpiexec"), option("--prefix"),
                    option("--emulator"))


@pytest.fixture(scope="session")
def gpu(programs):
    """The programs. Without a GPU, true or simulated, the test is skipped."""
    if why := programs.why_no_gpu():
        pytest.skip(why)
    return programs


@pytest.fixture
def folder():
    """A temporary folder, which is removed. pytest's own tmp_path would stay."""
    with tempfile.TemporaryDirectory(prefix="zero_") as made:
        yield Path(made)


def pytest_sessionfinish(session, exitstatus):
    """If all tests were skipped, exits with 77 and prints a reason last, for test_results.py."""
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if exitstatus == 0 and "skipped" in stats and "passed" not in stats:
        session.exitstatus = SKIPPED
        reason = stats["skipped"][-1].longrepr[2].removeprefix("Skipped: ")
        session.config.add_cleanup(lambda: print(reason))
