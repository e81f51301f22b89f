# SPDX-License-Identifier: MIT
"""What tests of the programs from outside share: where the build and its launcher are."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from programs import Programs  # noqa: E402

SKIPPED = 77  # the exit code by which Meson knows it


def pytest_addoption(parser):
    parser.addoption("--build", help="the folder with the seven programs")
    parser.addoption("--mpiexec", help="the launcher of their MPI")
    parser.addoption("--prefix", default="", help="of the programs' names: simulated_gpu_")


@pytest.fixture(scope="session")
def programs(request):
    """The programs of the build, and the launcher they need."""
    option = request.config.getoption
    return Programs(option("--build"), option("--mpiexec"), prefix=option("--prefix"))


def pytest_sessionfinish(session, exitstatus):
    """Where every test was skipped, Meson is to know it."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and "passed" not in reporter.stats:
        session.exitstatus = SKIPPED
