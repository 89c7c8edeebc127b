"""Which unit tests call which function: a pytest plugin that records it, and what it recorded.

``pytest -p benchmarks.called_functions tests/unit`` with a folder in ``SCALEBENCH_CALLS`` writes
one file there for each test file, as soon as its tests have passed. A file that is there already
and whose tests did not change since is not run again.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import pytest

PACKAGES = ("gate", "analysis", "costmodel", "trace")
"""Packages of scalebench whose functions are recorded."""
FOLDER = "SCALEBENCH_CALLS"


@dataclass(frozen=True)
class Called:
    """One test: the processor time it took, and the functions ``path::qualified name`` it calls."""

    cpu_s: float
    functions: frozenset[str]


class _Recorder:
    """Notes each function of the packages once a test."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.sources = tuple(f"{root}/scalebench/{package}/" for package in PACKAGES)
        self.seen: set[CodeType] = set()
        self.tests: dict[str, dict[str, object]] = {}
        self.failed = False

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace function of the interpreter: called for each call, for no line."""
        self.seen.add(frame.f_code)

    def functions(self) -> list[str]:
        """Return the functions of the packages that were called since the last test."""
        names = {
            f"{code.co_filename.removeprefix(f'{self.root}/')}::{code.co_qualname}"
            for code in self.seen
            if code.co_filename.startswith(self.sources)
        }
        self.seen.clear()
        return sorted(names)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the files that are known."""
        items[:] = [item for item in items if not file_of(self.folder, item.path).exists()]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Record one test, and write the file after its last."""
        self.seen.clear()
        begin = time.process_time()
        threading.settrace(self.note)
        sys.settrace(self.note)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        cpu_s = time.process_time() - begin
        self.tests[item.nodeid] = {"cpu_s": round(cpu_s, 3), "functions": self.functions()}
        if nextitem is None or nextitem.path != item.path:
            if not self.failed:
                known = file_of(self.folder, item.path)
                known.write_text(json.dumps(self.tests), encoding="utf-8")
            self.tests, self.failed = {}, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure: a file with one is run again by the next call."""
        self.failed = self.failed or report.failed


def pytest_configure(config: pytest.Config) -> None:
    """Start the recorder."""
    config.pluginmanager.register(_Recorder(Path.cwd(), Path(os.environ[FOLDER])))


def load_calls(root: Path, folder: Path) -> dict[str, Called]:
    """Return what was recorded of the tests as they are now: test → what it calls."""
    found = {}
    for path in sorted((root / "tests" / "unit").rglob("test_*.py")):
        file = file_of(folder, path)
        if file.exists():
            for test, called in json.loads(file.read_text(encoding="utf-8")).items():
                found[test] = Called(called["cpu_s"], frozenset(called["functions"]))
    return found


def file_of(folder: Path, tests: Path) -> Path:
    """Return where the calls of a test file are kept, as long as it stays as it is."""
    digest = hashlib.sha256(f"{tests.parent.name}/{tests.name}".encode() + tests.read_bytes())
    return folder / f"{tests.stem}-{digest.hexdigest()[:16]}.json"
