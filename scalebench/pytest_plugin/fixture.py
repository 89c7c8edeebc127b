"""The fixture ``scaling``: what a test asks for, and what it may claim about the answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from scalebench.errors import UsageError, unknown_name
from scalebench.gate.metrics import COUNT_SUFFIX
from scalebench.gate.observation import collective_counts
from scalebench.pytest_plugin.claims import Quantity
from scalebench.pytest_plugin.measuring import (
    Measurements,
    RecordedClock,
    as_wanted,
    check_row,
    hand_over,
    sizes_asked_for,
)
from scalebench.records.summary import Estimate, Row
from scalebench.report.export.measures import caveats
from scalebench.report.words import causes, wording
from scalebench.session.storing.finish import Run
from scalebench.session.suites.files import load_suite
from scalebench.spec import Case, Strategy, Suite
from scalebench.spec.selection import parse_world_sizes


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
            estimates = [name for name in Row.model_fields if _is_estimate(name)]
            raise unknown_name("measured quantity", field, [*estimates, "wire_bytes", *counts])
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


def _is_estimate(field: str) -> bool:
    return Estimate in getattr(Row.model_fields[field].annotation, "__args__", ())
