"""What the tests of a session have measured, and claims about it: ``efficiency > 0.9``.

What the tests of a session have measured: each question once, the answers kept.

Step times that the devices measured, handed to pytest-benchmark through its public options.

pytest-benchmark times what a function takes on the host's clock. Here the clock is the recording
itself: a `RecordedClock` is the ``timer`` of the benchmark's marker, and ``benchmark.pedantic``
calls a function that moves it on by one recorded step. Its table, storage, comparison and
histograms then work on the steps.

A comparison has three outcomes, by the 95 % interval [low, high] of the measured side:

===========  =======================  =======================  ==================
claim        certain                  refuted                  inconclusive
===========  =======================  =======================  ==================
``q > x``    ``low > x``              ``high <= x``            all else
``q >= x``   ``low >= x``             ``high < x``             all else
``q < x``    ``high < x``             ``low >= x``             all else
``q <= x``   ``high <= x``            ``low > x``              all else
===========  =======================  =======================  ==================

What is certain is true and what is refuted is false. What is inconclusive has no truth value:
asking for one raises `Inconclusive`, so that neither ``assert q > x`` nor ``assert not q > x``
passes. One launch has no interval, and every claim about it is inconclusive.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
from scipy.special import stdtrit

from scalebench import units
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
from scalebench.stats import CONFIDENCE, Estimate

Operator = Literal[">", ">=", "<", "<="]
Outcome = Literal["certain", "refuted", "inconclusive"]

MOST_LAUNCHES = 100
"""The most launches that are worth deciding one claim."""

_TURNED: dict[Operator, Operator] = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_NEGATED: dict[Operator, Operator] = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


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


class Inconclusive(AssertionError):
    """The interval of a measured number lies on both sides of a bound."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """A measured number that can be compared with a bound.

    Attributes:
        name: What it is, for example ``efficiency``.
        place: Of what, for example ``ddp, N=2``.
        explanation: What a failed claim says in addition to the number: where the time went.
    """

    name: str
    place: str
    estimate: Estimate
    explanation: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The point, without its interval."""
        return self.estimate.value

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval; None: one launch."""
        return self.estimate.low

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval; None: one launch."""
        return self.estimate.high

    def __gt__(self, bound: float) -> "Claim":
        return compare(self, ">", bound)

    def __ge__(self, bound: float) -> "Claim":
        return compare(self, ">=", bound)

    def __lt__(self, bound: float) -> "Claim":
        return compare(self, "<", bound)

    def __le__(self, bound: float) -> "Claim":
        return compare(self, "<=", bound)

    def __str__(self) -> str:
        n = self.estimate.n
        launches = f"{n} launch{'' if n == 1 else 'es'}"
        value = _written(self.estimate, self.value)
        if self.low is None or self.high is None:
            return f"{self.name} of {self.place}: {value} ({launches}, no interval)"
        ends = f"{_written(self.estimate, self.low)} to {_written(self.estimate, self.high)}"
        return f"{self.name} of {self.place}: {value} ({ends}, 95 %, {launches})"

    __repr__ = __str__


@dataclass(frozen=True)
class Claim:
    """A claim about a quantity and what became of it; see the module's table."""

    quantity: Quantity
    operator: Operator
    bound: float
    outcome: Outcome

    def __bool__(self) -> bool:
        """Return whether the claim is certain.

        Raises:
            Inconclusive: It is neither certain nor refuted.
        """
        __tracebackhide__ = True
        if self.outcome == "inconclusive":
            raise Inconclusive("\n".join(self.lines()))
        return self.outcome == "certain"

    def lines(self) -> list[str]:
        """Say what became of the claim, why, and what the loss budget has to say."""
        claim = f"{self.quantity.name} {self.operator} {self.bound:g} is {self.outcome}"
        return [claim, str(self.quantity), *self._advice(), *self.quantity.explanation]

    def _advice(self) -> list[str]:
        if self.outcome != "inconclusive":
            return []
        if self.quantity.low is None:
            return ["one launch has no interval: give repeats of at least 3"]
        needed = launches_to_decide(self.quantity.estimate, self.bound)
        if needed is None:
            return [
                f"the interval contains {self.bound:g}; {MOST_LAUNCHES} launches would not "
                f"decide it"
            ]
        return [f"the interval contains {self.bound:g}; about {needed} launches would decide it"]


def compare(quantity: Quantity, operator: Operator, bound: float) -> Claim:
    """Return what becomes of ``quantity operator bound``.

    Raises:
        TypeError: The bound is not a finite number.
    """
    is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if not is_number or not math.isfinite(bound):
        raise TypeError(
            f"{quantity.name} was compared with {bound!r}. Compare it with a finite number; two "
            "measured numbers compare by .value, .low and .high."
        )
    low, high = quantity.low, quantity.high
    if low is None or high is None:
        return Claim(quantity, operator, bound, "inconclusive")
    if _holds(operator, low, high, bound):
        return Claim(quantity, operator, bound, "certain")
    refuted = _holds(_NEGATED[operator], low, high, bound)
    return Claim(quantity, operator, bound, "refuted" if refuted else "inconclusive")


def compare_either_way(left: object, operator: str, right: object) -> Claim | None:
    """Return the comparison of an expression with a quantity on one side; None: it is none."""
    if operator not in _TURNED:
        return None
    known: Operator = operator
    if isinstance(left, Quantity) and isinstance(right, int | float):
        return compare(left, known, right)
    if isinstance(right, Quantity) and isinstance(left, int | float):
        return compare(right, _TURNED[known], left)
    return None


def launches_to_decide(estimate: Estimate, bound: float) -> int | None:
    """Return how many launches would have an interval that leaves out the bound.

    If value and spread stay what they are: the half-width of Student's interval is
    ``t(n − 1)·s/√n``.

    Returns:
        None: more than `MOST_LAUNCHES`, or there is no interval to judge by.
    """
    half, distance = estimate.half_width, abs(estimate.value - bound)
    if half is None or estimate.n < 2:
        return None
    spread = half * math.sqrt(estimate.n) / _t(estimate.n)
    for n in range(estimate.n + 1, MOST_LAUNCHES + 1):
        if _t(n) * spread / math.sqrt(n) < distance:
            return n
    return None


def _t(n: int) -> float:
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


def _holds(operator: Operator, low: float, high: float, bound: float) -> bool:
    """Tell whether every number of the interval is on the claimed side."""
    return {">": low > bound, ">=": low >= bound, "<": high < bound, "<=": high <= bound}[operator]


def _written(estimate: Estimate, value: float) -> str:
    half = estimate.half_width
    return units.significant(value, half or None)
