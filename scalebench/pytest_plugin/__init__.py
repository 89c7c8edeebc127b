"""The pytest door: ``pytest suites/ --gpus 1,2``, and the fixture ``scaling``.

pytest imports this module whenever it starts where scalebench is installed, so it imports nothing
but pytest; what measures is loaded when something is to be measured.

``--gpus`` is registered after the project's own conftest files, and only if none of them has an
option of that name; ``--scaling-gpus`` is the same and always there.
"""

import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from scalebench.pytest_plugin.collecting import SuiteFile
    from scalebench.pytest_plugin.measuring import Measurements, Scaling

EXPORTS_A_SUITE = re.compile(rb"^SUITE\b", re.MULTILINE)
MEASURED: "pytest.StashKey[Measurements]" = pytest.StashKey()
SIZES = "scaling_gpus"
"""Where the numbers of ranks are kept among pytest's options."""

NOT_SIDE_BY_SIDE = (
    "scalebench measures with the machine to itself, and pytest-xdist runs other tests beside it. "
    "Leave out -n, or give -n 0, for what measures."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that no other plugin has."""
    group = parser.getgroup("scalebench", "scaling of distributed training (scalebench)")
    group.addoption(
        "--scaling-gpus",
        dest=SIZES,
        metavar="N,N",
        help="Numbers of ranks, for example 1,2: collect suite files, a test for each case and "
        "number. Also --gpus, if nothing else here has that option.",
    )
    group.addoption(
        "--scaling-quick",
        action="store_true",
        help="One short launch of each cell: no intervals, so that no claim is certain.",
    )
    group.addoption(
        "--scaling-run",
        metavar="RUN",
        help="Measure nothing; take the rows of this run folder.",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None]:
    """Add ``--gpus`` after the project's conftest files, unless there is one."""
    yield
    absent = object()
    if early_config.getoption("--gpus", default=absent) is absent:
        group = parser.getgroup("scalebench")
        group.addoption("--gpus", dest=SIZES, metavar="N,N", help="The same.")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to measure several things at once."""
    if config.getoption(SIZES, default=None) and config.getoption("numprocesses", default=None):
        raise pytest.UsageError(NOT_SIDE_BY_SIDE)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "SuiteFile | None":
    """Collect a suite file, if numbers of ranks were given."""
    if file_path.suffix != ".py" or not parent.config.getoption(SIZES, default=None):
        return None
    try:
        if not EXPORTS_A_SUITE.search(file_path.read_bytes()):
            return None
    except OSError:
        return None
    from scalebench.pytest_plugin.collecting import SuiteFile

    return SuiteFile.from_parent(parent, path=file_path)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say what became of a claim about a measured number, and where the time went."""
    import sys

    if "scalebench.claims" not in sys.modules:
        return None
    from scalebench.claims import Quantity, compare_either_way

    if not isinstance(left, Quantity) and not isinstance(right, Quantity):
        return None
    comparison = compare_either_way(left, op, right)
    if comparison is not None:
        return comparison.lines()
    return [
        f"{left} {op} {right}",
        "a measured number has an interval: compare it by > or <, or take its .value",
    ]


@pytest.fixture
def scaling(request: pytest.FixtureRequest) -> "Iterator[Scaling]":
    """Measure how a case scales, as in ``assert scaling(case).efficiency(4) > 0.9``."""
    from scalebench.pytest_plugin.measuring import Scaling

    if hasattr(request.config, "workerinput"):
        pytest.fail(NOT_SIDE_BY_SIDE, pytrace=False)
    yield Scaling(request)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the run folders of what was measured."""
    measured = config.stash.get(MEASURED, None)
    if measured is None or not measured.folders:
        return
    terminalreporter.section("scalebench")
    for folder in measured.folders:
        terminalreporter.write_line(f"{folder}  (scalebench show {folder})")
