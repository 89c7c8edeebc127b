"""What the tests of a session have measured: each question once, the answers kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalebench.claims import Quantity
from scalebench.discover import load_suite
from scalebench.errors import UsageError, unknown_name
from scalebench.exporters.measures import caveats
from scalebench.exporters.pytest_benchmark import row_info, step_times_s
from scalebench.plan import Request
from scalebench.pytest_plugin import MEASURED, SIZES
from scalebench.recorded_clock import Benchmark, RecordedClock, replay
from scalebench.report import causes, wording
from scalebench.scaling import summarise
from scalebench.selection import parse_world_sizes
from scalebench.session import Interrupted, Run, Session, Silent
from scalebench.spec import Case, Strategy, Suite
from scalebench.store import load_run
from scalebench.summary import Estimate, Row

Sizes = tuple[int, ...]


class Measurements:
    """The runs of a pytest session, and the process with torch imported that starts their ranks.

    Attributes:
        folders: Where they are, in the order in which they were made.
    """

    def __init__(self, replayed: str | None, quick: bool) -> None:
        self.folders: list[Path] = []
        self._runs: dict[tuple[object, ...], Run] = {}
        self._replayed = replayed
        self._quick = quick
        self._session: Session | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> "Measurements":
        """Return those of the session that this configuration belongs to."""
        if MEASURED not in config.stash:
            options = (config.getoption("--scaling-run"), config.getoption("--scaling-quick"))
            config.stash[MEASURED] = cls(*options)
        return config.stash[MEASURED]

    def measure(self, suite: Suite, sizes: Sizes | None, request: dict[str, Any]) -> Run:
        """Return the run that answers a question; it is made when it is first asked for.

        Args:
            suite: With the cases that are asked for.
            sizes: Numbers of ranks; None: 1, 2, 4, … up to the devices.
            request: Fields of `scalebench.plan.Request`.
        """
        if self._replayed is not None:
            return self._stored(Path(self._replayed))
        wanted = _request(sizes, {"quick": self._quick, **request})
        key = (suite.model_dump_json(), wanted)
        if key not in self._runs:
            self._runs[key] = self._run(suite, wanted)
            self.folders.append(self._runs[key].paths.root)
        return self._runs[key]

    def close(self) -> None:
        """End the processes that were kept to start ranks."""
        if self._session is not None:
            self._session.launcher.close()
            self._session = None

    def _run(self, suite: Suite, request: Request) -> Run:
        if self._session is None:
            self._session = Session(Silent())
        command = ["scalebench", "run", suite.name]
        if request.world_sizes is not None:
            command += ["--gpus", ",".join(map(str, request.world_sizes))]
        try:
            return self._session.run(request, [suite], command)
        except Interrupted as interruption:
            raise KeyboardInterrupt from interruption
        finally:
            if request.virtual_hosts is not None:  # the next question is about this machine
                self.close()

    def _stored(self, root: Path) -> Run:
        if (root,) not in self._runs:
            stored = load_run(root)
            self._runs[root,] = Run(stored.paths, summarise(stored))
            self.folders.append(root)
        return self._runs[root,]


def _request(sizes: Sizes | None, fields: dict[str, Any]) -> Request:
    known = set(Request.__dataclass_fields__) - {"world_sizes", "selection"}
    for name in fields:
        if name not in known:
            raise unknown_name("setting of a measurement", name, known)
    return Request(world_sizes=sizes, **fields)


def sizes_asked_for(config: pytest.Config) -> Sizes | None:
    """Return the numbers of ranks of ``--gpus``; None: it was not given."""
    given = config.getoption(SIZES, default=None)
    return parse_world_sizes(given) if given is not None else None


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
        """Return a measured field of ``summary.json``, to be compared with a bound."""
        row = self.row(num_ranks)
        value = getattr(row, field, None)
        if value is None and field in Row.model_fields:
            why = wording.plain(row.unavailable.get(field, "no reason recorded"), 300)
            pytest.fail(f"{field} of {wording.place(row)} is null: {why}", pytrace=False)
        if not isinstance(value, Estimate):
            estimates = [name for name in Row.model_fields if _is_estimate(name)]
            raise unknown_name("measured quantity", field, estimates)
        return Quantity(field, wording.place(row), value, tuple(causes.causes(row)))

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
        """Return the step time of the slowest rank, seconds."""
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
                ``repeats``, ``steps``, …; see `scalebench.plan.Request`.
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


def as_wanted(case: Case) -> Case:
    """Return a case that is run without being named: whoever asked for it wants it."""
    return case.model_copy(update={"optional": False})


def check_row(row: Row, folder: Path) -> None:
    """Fail or skip the running test, unless the row went well; its reason is the message."""
    if row.status == "ok":
        return
    reason = wording.plain(row.reason or "no reason recorded", 2000)
    message = f"{wording.place(row)}: {row.status}: {reason} (run: {folder})"
    if row.status == "skipped":
        pytest.skip(message)
    pytest.fail(message, pytrace=False)


def hand_over(row: Row, run_id: str, benchmark: Benchmark, clock: RecordedClock) -> None:
    """Give pytest-benchmark the clean steps of all launches of a row, and the row.

    What keeps a row from being a plain measurement is part of the name of its group.
    """
    benchmark.extra_info.update(row_info(row, run_id))
    if caveats(row):
        benchmark.group = ", ".join([benchmark.group or row.suite, *caveats(row)])
    replay(benchmark, clock, step_times_s(row))


def _is_estimate(field: str) -> bool:
    return Estimate in getattr(Row.model_fields[field].annotation, "__args__", ())
