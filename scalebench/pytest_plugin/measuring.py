"""What the tests of a session have measured: each question once, the answers kept.

Step times that the devices measured, handed to pytest-benchmark through its public options.

pytest-benchmark times what a function takes on the host's clock. Here the clock is the recording
itself: a `RecordedClock` is the ``timer`` of the benchmark's marker, and ``benchmark.pedantic``
calls a function that moves it on by one recorded step. Its table, storage, comparison and
histograms then work on the steps.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.errors import unknown_name
from scalebench.pytest_plugin import MEASURED, SIZES
from scalebench.records.summary import Row
from scalebench.report.export.frames import row_info, step_times_s
from scalebench.report.export.measures import caveats
from scalebench.report.words import wording
from scalebench.session.cell_runner import ProgressListener
from scalebench.session.plan import Request
from scalebench.session.session import Interrupted, Session
from scalebench.session.storing.finish import Run
from scalebench.spec import Case, Suite
from scalebench.spec.suites import parse_world_sizes


class Benchmark(Protocol):
    """The part of pytest-benchmark's fixture that is used."""

    extra_info: dict[str, Any]
    group: str | None

    def pedantic(self, target: Any, *, setup: Any, rounds: int, iterations: int) -> Any:
        """Call ``setup`` and ``target`` once for each round, and time the latter."""
        ...


class RecordedClock:
    """A clock that shows what was recorded; seconds."""

    __name__ = "steps_recorded_on_the_devices"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time; pytest-benchmark asks before and after each round."""
        return self.now_s


def replay(benchmark: Benchmark, clock: RecordedClock, steps_s: Sequence[float]) -> None:
    """Give a benchmark one round for each recorded step.

    Args:
        benchmark: The fixture; ``clock`` has to be its timer.
        clock: Starts at 0 in each round, so that no step is rounded by the sum of those before.
        steps_s: At least one.
    """
    recorded: Iterator[float] = iter(steps_s)

    def rewind() -> None:
        clock.now_s = 0.0

    def step() -> None:
        clock.now_s = next(recorded, 0.0)  # a profiler calls once more than there are rounds

    benchmark.pedantic(step, setup=rewind, rounds=len(steps_s), iterations=1)


Sizes = tuple[int, ...]


class Measurements:
    """The runs of a pytest session, and the process with torch imported that starts their ranks."""

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

        ``sizes`` None: 1, 2, 4, … up to the devices. ``request``: fields of
        `scalebench.session.plan.Request`.
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
            self._session.close()
            self._session = None

    def _run(self, suite: Suite, request: Request) -> Run:
        if self._session is None:
            self._session = Session(ProgressListener())
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


def as_wanted(case: Case) -> Case:
    """Return a case that is run without being named: the test that asks for it wants it."""
    return case.model_copy(update={"optional": False})


def check_row(row: Row, folder: Path) -> None:
    """Fail or skip the running test, unless the row succeeded; its reason is the message."""
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
