"""Suite files as tests: one for each case and number of ranks."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scalebench.errors import ScalebenchError
from scalebench.pytest_plugin.measuring import (
    Benchmark,
    Measurements,
    RecordedClock,
    as_wanted,
    check_row,
    hand_over,
    sizes_asked_for,
)
from scalebench.records.summary import Row
from scalebench.report.export.measures import numbers
from scalebench.report.words.plain_text import plain
from scalebench.session.storing.finish import Run
from scalebench.session.suites.files import load_suite
from scalebench.spec import Case, Suite
from scalebench.spec.selection import words

LONGEST = 2000
"""A longer text of an error is cut."""

NOT_USED = "Benchmark fixture was not used"
"""pytest-benchmark's warning where a row failed and has no steps to hand over."""


class SuiteFile(pytest.Module):
    """A file that exports ``SUITE``.

    Its tests are measured together, when the first of them is run: launches are interleaved over
    cases and sizes as in ``scalebench run``.
    """

    suite: Suite

    def collect(self) -> Iterator["ScalingItem | CollectivesItem"]:
        """Yield a test for each case and number of ranks, and one for timed collectives.

        Optional cases are collected only if ``-k`` or a test's full name has a word for them.
        """
        self.obj = ModuleType(self.path.stem)  # nothing of the file is a test by its name
        try:
            self.suite = load_suite(str(self.path))
        except ScalebenchError as error:
            raise self.CollectError(plain(error, LONGEST)) from error
        if self.suite.collectives is not None:
            yield CollectivesItem.from_parent(self, name="collectives")
        for case in self.suite.cases:
            if case.optional and not self._named(case):
                continue
            for size in sizes_asked_for(self.config) or ():
                if case.strategy.kind != "plain" or size == 1:
                    yield ScalingItem.of(self, case, size)

    def _named(self, case: Case) -> bool:
        """Tell whether an optional case was asked for by name."""
        default_names = [known.name for known in self.suite.cases if not known.optional]
        asked = words(self.config.getoption("keyword") or "")
        asked += [arg.partition("::")[2].partition("[")[0] for arg in self.config.args]
        special = [w for w in asked if w and not any(w in name for name in default_names)]
        return any(word in case.name for word in special)

    def measured(self) -> Run:
        """Return the run of everything in this file that was not deselected."""
        items = [
            item
            for item in self.session.items
            if isinstance(item, ScalingItem) and item.path == self.path
        ]
        cases = {item.case.name: as_wanted(item.case) for item in items}
        sizes = tuple(sorted({item.num_ranks for item in items})) or sizes_asked_for(self.config)
        suite = self.suite.model_copy(update={"cases": tuple(cases.values())})
        return Measurements.of(self.config).measure(suite, sizes, {})


class ScalingItem(pytest.Function):
    """A case at a number of ranks; fails with the row's reason."""

    case: Case
    num_ranks: int
    clock: RecordedClock

    @classmethod
    def of(cls, parent: SuiteFile, case: Case, num_ranks: int) -> "ScalingItem":
        """Return the test of a case at a number of ranks."""
        timed = parent.config.pluginmanager.hasplugin("benchmark")
        item: ScalingItem = cls.from_parent(
            parent,
            name=f"{case.name}[n{num_ranks}]",
            callobj=_measured_and_timed if timed else _measured,
        )
        item.case, item.num_ranks, item.clock = case, num_ranks, RecordedClock()
        if timed:
            item.add_marker(pytest.mark.benchmark(group=parent.suite.name, timer=item.clock))
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{NOT_USED}"))
        return item

    def check(self, benchmark: Benchmark | None) -> None:
        """Measure, fail or skip as the row says, and hand its steps to pytest-benchmark."""
        assert isinstance(self.parent, SuiteFile)
        try:
            run = self.parent.measured()
        except ScalebenchError as error:
            pytest.fail(plain(error, LONGEST), pytrace=False)
        row = self._row(run)
        for measure, number in numbers(row):
            self.user_properties.append((measure.field, number.value))
        check_row(row, run.paths.root)
        if benchmark is not None:
            hand_over(row, run.summary.run_id, benchmark, self.clock)

    def _row(self, run: Run) -> Row:
        assert isinstance(self.parent, SuiteFile)
        wanted = (self.parent.suite.name, self.case.name, self.num_ranks)
        for row in run.summary.rows:
            if (row.suite, row.case, row.world_size) == wanted:
                return row
        pytest.fail(
            f"{run.paths.root} has no row of {self.case.name} at N={self.num_ranks}.", pytrace=False
        )

    def reportinfo(self) -> tuple[Path, int, str]:
        """Say that the test stands in the suite's file."""
        return self.path, 0, self.name


class CollectivesItem(pytest.Item):
    """Collectives that a suite times by themselves; fails if a result is not what it should be."""

    def runtest(self) -> None:
        """Time them, together with what else of the suite is measured."""
        assert isinstance(self.parent, SuiteFile)
        try:
            found = self.parent.measured().summary.collectives
        except ScalebenchError as error:
            pytest.fail(plain(error, LONGEST), pytrace=False)
        if found is None:
            pytest.fail(f"The run has no collectives of {self.parent.suite.name}.", pytrace=False)
        if found.failure is not None:
            pytest.fail(plain(found.failure, LONGEST), pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Say that the test stands in the suite's file."""
        return self.path, 0, self.name


def _measured(request: Any) -> None:
    request.node.check(None)


def _measured_and_timed(request: Any, benchmark: Benchmark) -> None:
    request.node.check(benchmark)
