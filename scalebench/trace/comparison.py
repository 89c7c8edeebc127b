"""What got slower between two recordings of a job, by kind of operation and by operator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scalebench.errors import UsageError
from scalebench.trace.gpu_work import GpuWork, OperatorTime
from scalebench.trace.idle import idle_together
from scalebench.trace.job import JobFigures, work_of_all

OTHER_SHAPES = "other shapes"
"""In place of shapes that only one of the two recordings has."""


@dataclass(frozen=True)
class Change:
    """One kind or operator in both recordings; seconds and counts of one rank, see `Comparison`.

    Attributes:
        operator: None: all of the kind.
        shape: Of the operator's tensors; empty: not recorded.
    """

    kind: str
    operator: str | None
    shape: str
    before_s: float
    after_s: float
    before_count: float = 0.0
    after_count: float = 0.0

    @property
    def slower_s(self) -> float:
        """After minus before; below zero: it got faster."""
        return self.after_s - self.before_s


@dataclass(frozen=True)
class Comparison:
    """Two recordings, means over the ranks; the largest slowdown first.

    Attributes:
        per: A profiler step where both have some, else the whole recording.
        whole: The window.
        kinds: With the idle time, by cause.
        operators: By name and shape.
    """

    per: Literal["step", "recording"]
    whole: Change
    kinds: tuple[Change, ...]
    operators: tuple[Change, ...]


def compare(after: JobFigures, before: JobFigures) -> Comparison:
    """Compare a job with an earlier recording of it.

    Raises:
        UsageError: One of them shows no GPU.
    """
    works = [_work(job) for job in (before, after)]
    steps = [sum(len(rank.trace.timeline.steps) for rank in job.ranks) for job in (before, after)]
    by_step = all(steps)
    over = steps if by_step else [len(job.ranks) for job in (before, after)]

    def change(kind: str, operator: str | None, shape: str, both: Sequence[_Sum]) -> Change:
        (b_count, b_s), (a_count, a_s) = both
        b_over, a_over = over
        return Change(
            kind, operator, shape, b_s / b_over, a_s / a_over, b_count / b_over, a_count / a_over
        )

    kinds = _paired([{kind.kind: (kind.count, kind.total_s) for kind in w.kinds} for w in works])
    idle = [_idle(job) for job in (before, after)]
    by_operator = _paired(_matched([_operators(work.operators) for work in works]))
    return Comparison(
        per="step" if by_step else "recording",
        whole=change("window", None, "", [(0, work.window_s) for work in works]),
        kinds=_slowest_first(
            change(kind, None, "", both) for kind, both in {**kinds, **_paired(idle)}.items()
        ),
        operators=_slowest_first(change(*key, both) for key, both in by_operator.items()),
    )


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return it as ``--json`` prints it."""
    return {
        "per": comparison.per,
        "window": asdict(comparison.whole),
        "kinds": [asdict(change) for change in comparison.kinds],
        "operators": [asdict(change) for change in comparison.operators],
    }


_Sum = tuple[int, float]
_Key = tuple[str, str, str]


def _work(job: JobFigures) -> GpuWork:
    work = work_of_all(job)
    if work is None:
        raise UsageError(
            f"{job.ranks[0].trace.file} has no GPU kernels, and --against compares kernels. "
            "Record both traces on a GPU with ProfilerActivity.CUDA."
        )
    return work


def _idle(job: JobFigures) -> dict[str, _Sum]:
    idle = idle_together([rank.idle for rank in job.ranks])
    times = asdict(idle) if idle is not None else {}
    return {
        f"idle: {name.removesuffix('_s').replace('_', ' ')}": (0, s) for name, s in times.items()
    }


def _operators(operators: Iterable[OperatorTime]) -> dict[_Key, _Sum]:
    return {(op.kind, op.operator, op.shape): (op.count, op.total_s) for op in operators}


def _matched(both: Sequence[Mapping[_Key, _Sum]]) -> list[dict[_Key, _Sum]]:
    """Put together what an operator did with shapes that the other recording does not have."""
    found: list[dict[_Key, _Sum]] = []
    for mine, other in (both, both[::-1]):
        names = {key[:2] for key in other}
        sums: dict[_Key, _Sum] = {}
        for key, (count, total_s) in mine.items():
            target = key if key in other or key[:2] not in names else (*key[:2], OTHER_SHAPES)
            before = sums.get(target, (0, 0.0))
            sums[target] = (before[0] + count, before[1] + total_s)
        found.append(sums)
    return found


def _paired(both: Sequence[Mapping[Any, _Sum]]) -> dict[Any, list[_Sum]]:
    return {key: [one.get(key, (0, 0.0)) for one in both] for key in {**both[0], **both[1]}}


def _slowest_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    real = [change for change in changes if change.before_s or change.after_s]
    return tuple(sorted(real, key=lambda change: -change.slower_s))
