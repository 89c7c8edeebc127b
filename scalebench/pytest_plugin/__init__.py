"""The pytest door: ``pytest suites/ --gpus 1,2``, and the fixture ``scaling``.

pytest imports this module whenever it starts where scalebench is installed, so it imports nothing
but pytest; what measures is loaded when something is to be measured.

``--gpus`` is registered after the project's own conftest files, and only if none of them has an
option of that name; ``--scaling-gpus`` is the same and always there.
"""

import re
from collections.abc import Generator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from scalebench.pytest_plugin.fixture import Scaling, SuiteFile
    from scalebench.pytest_plugin.measuring import Measurements

EXPORTS_A_SUITE = re.compile(rb"^SUITE\b", re.MULTILINE)
MEASURED: "pytest.StashKey[Measurements]" = pytest.StashKey()
SIZES = "scaling_gpus"
"""Where the numbers of ranks are kept among pytest's options."""

NOT_SIDE_BY_SIDE = (
    "scalebench needs the machine to itself, but pytest-xdist runs other tests at the same time. "
    "Leave out -n, or give -n 0, for tests that measure."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that no other plugin has."""
    group = parser.getgroup("scalebench", "scaling of distributed training (scalebench)")
    group.addoption(
        "--scaling-gpus",
        dest=SIZES,
        metavar="N,N",
        help="Numbers of ranks, for example 1,2: collect suite files, one test per case and "
        "number. Also available as --gpus, unless another plugin has that option.",
    )
    group.addoption(
        "--scaling-quick",
        action="store_true",
        help="One short launch of each cell: no intervals, so no claim is certain.",
    )
    group.addoption(
        "--scaling-run", metavar="RUN", help="Measure nothing; use the rows of this run folder."
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
    """Refuse sizes that are none, and to measure several things at once."""
    if config.getoption(SIZES, default=None) is None:
        return
    from scalebench.errors import UsageError
    from scalebench.spec.suites import parse_world_sizes

    try:
        parse_world_sizes(config.getoption(SIZES))
    except UsageError as error:
        raise pytest.UsageError(f"--gpus: {error}") from error
    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError(NOT_SIDE_BY_SIDE)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "SuiteFile | None":
    """Collect a suite file, if numbers of ranks were given."""
    if _is_suite(file_path, parent) and not _made_by_pytest(file_path, parent):
        return _suite_file(file_path, parent)
    return None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> "SuiteFile | None":
    """Collect a suite file that the command line names, in place of a module without tests."""
    if _is_suite(module_path, parent) and _made_by_pytest(module_path, parent):
        return _suite_file(module_path, parent)
    return None


def _is_suite(path: Path, parent: pytest.Collector) -> bool:
    if path.suffix != ".py" or not parent.config.getoption(SIZES, default=None):
        return False
    try:
        return EXPORTS_A_SUITE.search(path.read_bytes()) is not None
    except OSError:
        return False


def _made_by_pytest(path: Path, parent: pytest.Collector) -> bool:
    """Tell whether pytest takes a file for a module of tests only because it was named."""
    patterns = parent.config.getini("python_files")
    return parent.session.isinitpath(path) and not any(fnmatch(path.name, p) for p in patterns)


def _suite_file(path: Path, parent: pytest.Collector) -> "SuiteFile":
    from scalebench.pytest_plugin.fixture import SuiteFile

    return SuiteFile.from_parent(parent, path=path)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say what became of a claim about a measured number, and where the time went."""
    import sys

    if "scalebench.pytest_plugin.claims" not in sys.modules:
        return None
    from scalebench.pytest_plugin.claims import Quantity, compare_either_way

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
    """Give tests a function that measures how a case scales; see `fixture.Scaling`."""
    from scalebench.pytest_plugin.fixture import Scaling

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


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what was kept running for further measurements."""
    measured = config.stash.get(MEASURED, None)
    if measured is not None:
        measured.close()
