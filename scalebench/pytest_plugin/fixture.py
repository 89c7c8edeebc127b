"""What is tested: the fixture ``scaling``, and suite files, a test for each case and N."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scalebench.errors import ScalebenchError, UsageError, unknown_name
from scalebench.gate.metrics import COUNT_SUFFIX
from scalebench.gate.observation import collective_counts
from scalebench.pytest_plugin.claims import Quantity
from scalebench.pytest_plugin.measuring import (
    Benchmark,
    Measurements,
    RecordedClock,
    as_wanted,
    check_row,
    hand_over,
    sizes_asked_for,
)
from scalebench.records.summary import Estimate, Row
from scalebench.report.export.measures import caveats, numbers
from scalebench.report.words import causes, wording
from scalebench.report.words.terms import plain
from scalebench.session.storing.finish import Run
from scalebench.session.suites import load_suite
from scalebench.spec import Case, Strategy, Suite
from scalebench.spec.suites import parse_world_sizes, words


class Measured:
    """How one case scales, for tests to make claims about.

    Attributes:
        folder: The run folder.
        rows: The case's rows of ``summary.json``, by number of ranks.
    """

    def __init__(self, run: Run, rows: Sequence[Row], request: pytest.FixtureRequest) -> None:
        self.folder = run.paths.root
        self.rows = sorted(rows, key=lambda row: row.world_size)
        self._run_id = run.summary.run_id
        self._request = request

    def row(self, num_ranks: int) -> Row:
        """Return the row at a number of ranks; fail or skip the test if there is none.

        What failed fails the test with the row's reason, what was skipped skips it.
        """
        found = next((row for row in self.rows if row.world_size == num_ranks), None)
        if found is None:
            sizes = ", ".join(str(row.world_size) for row in self.rows)
            pytest.fail(
                f"N={num_ranks} was not measured; measured: N={sizes}. Give more with "
                "scaling(case, gpus=(…)) or --gpus.",
                pytrace=False,
            )
        check_row(found, self.folder)
        return found

    def quantity(self, field: str, num_ranks: int) -> Quantity:
        """Return a measured field of ``summary.json``, to be compared with a bound.

        ``all_reduce_count`` and the like are the collectives of a kind that a rank takes part in.
        """
        row = self.row(num_ranks)
        counts = {f"{kind}{COUNT_SUFFIX}": n for kind, n in collective_counts(row).items()}
        value = getattr(row, field, counts.get(field))
        if isinstance(value, int | float) and not isinstance(value, bool):  # the same each time
            value = Estimate(value=value, low=value, high=value, n=1)
        if value is None and field in Row.model_fields:
            why = wording.plain(row.unavailable.get(field, "no reason recorded"), 300)
            pytest.fail(f"{field} of {wording.place(row)} is null: {why}", pytrace=False)
        if not isinstance(value, Estimate):
            from scalebench.report.export.frames import ESTIMATES

            raise unknown_name("measured quantity", field, [*ESTIMATES, "wire_bytes", *counts])
        place = ", ".join([wording.place(row), *caveats(row)])
        return Quantity(field, place, value, tuple(causes.causes(row)))

    def efficiency(self, num_ranks: int) -> Quantity:
        """Return speedup over the number of ranks, against the bare model in one process."""
        return self.quantity("efficiency", num_ranks)

    def speedup(self, num_ranks: int) -> Quantity:
        """Return throughput over that of the bare model in one process."""
        return self.quantity("speedup", num_ranks)

    def throughput(self, num_ranks: int) -> Quantity:
        """Return samples per second of the whole job."""
        return self.quantity("throughput", num_ranks)

    def step_s(self, num_ranks: int) -> Quantity:
        """Return the step time of the job, seconds."""
        return self.quantity("step_s", num_ranks)

    def exposed_comm_s(self, num_ranks: int) -> Quantity:
        """Return the communication that no computation hides, seconds per step."""
        return self.quantity("exposed_comm_s", num_ranks)

    def record(self, num_ranks: int) -> None:
        """Hand the steps at a number of ranks to pytest-benchmark, once per test.

        Nothing happens where pytest-benchmark is not loaded.
        """
        row, node = self.row(num_ranks), self._request.node
        if not self._request.config.pluginmanager.hasplugin("benchmark"):
            return
        clock = RecordedClock()
        given = node.get_closest_marker("benchmark")
        options = {"group": row.suite, **(given.kwargs if given else {}), "timer": clock}
        node.add_marker(pytest.mark.benchmark(**options), append=False)
        hand_over(row, self._run_id, self._request.getfixturevalue("benchmark"), clock)


class Scaling:
    """The fixture ``scaling``: measures a case, once per session for the same question."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __call__(
        self, case: Case | Strategy | str, gpus: Sequence[int] | None = None, **request: Any
    ) -> Measured:
        """Measure a case and return what tests make claims about.

        Args:
            case: A case, a strategy, or ``suite/case`` for a case of a suite.
            gpus: Numbers of ranks; None: those of ``--gpus``, or 1, 2, 4, … up to the devices.
            request: What else differs from the suite: ``workload``, ``batch_size``, ``scaling``,
                ``repeats``, ``steps``, …; see `scalebench.session.plan.Request`.
        """
        config = self._request.config
        suite = suite_of(case)
        sizes = sizes_asked_for(config)
        if gpus is not None:
            sizes = parse_world_sizes(",".join(map(str, gpus)))
        run = Measurements.of(config).measure(suite, sizes, request)
        name = suite.cases[0].name
        rows = [row for row in run.summary.rows if row.case == name]
        if isinstance(case, str):
            rows = [row for row in rows if row.suite == suite.name]
        if not rows:
            raise UsageError(f"{run.paths.root} has no row of case {name}.")
        _check_settings(suite.cases[0].strategy, rows[0])
        return Measured(run, rows, self._request)


def suite_of(case: Case | Strategy | str) -> Suite:
    """Return a suite of one case.

    Raises:
        UsageError: There is no such case.
    """
    if isinstance(case, str):
        name, _, wanted = case.partition("/")
        suite = load_suite(name)
        cases = {known.name: known for known in suite.cases}
        if wanted not in cases:
            raise unknown_name(f"case of suite {suite.name}:", wanted, cases)
        return suite.model_copy(update={"cases": (as_wanted(cases[wanted]),)})
    if not isinstance(case, Case):
        case = Case(name=case.kind, strategy=case)
    return Suite(name="pytest", question=f"How does {case.name} scale?", cases=(as_wanted(case),))


def _check_settings(wanted: Strategy, found: Row) -> None:
    """Refuse a stored row of another strategy; how ranks do arithmetic depends on the device.

    Raises:
        UsageError: The row has other settings than those asked for.
    """
    asked = wanted.model_dump(mode="json", exclude={"autocast", "compile"})
    stored = {"kind": found.strategy, **found.strategy_settings}
    for name, value in asked.items():
        if stored.get(name) != value:
            raise UsageError(
                f"The row of case {wording.plain(found.case, 64)} has {name}={stored.get(name)!r}, "
                f"but {value!r} was requested. Measure it, or name another --scaling-run."
            )


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
