"""What got slower between two recordings of a job, by kind of operation and by operator."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from scalebench.errors import UsageError
from scalebench.trace.idle import idle_together
from scalebench.trace.job import JobFigures, work_of_all
from scalebench.trace.operations.gpu_work import summed

OTHER_SHAPES = "other shapes"
"""In place of shapes that only one of the two recordings has."""


@dataclass(frozen=True)
class Change:
    """One kind or operator in both recordings; seconds and counts of one rank, see `Comparison`.

    Attributes:
        operator: Empty: all of the kind.
        shape: Of the operator's tensors; empty: not recorded.
    """

    kind: str
    operator: str
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
        kinds: With the idle time, by cause.
        operators: By name and shape.
    """

    per: Literal["step", "recording"]
    window: Change
    kinds: tuple[Change, ...]
    operators: tuple[Change, ...]


_Key = tuple[str, str, str]
_Sums = dict[_Key, tuple[int, float]]


def compare(after: JobFigures, before: JobFigures) -> Comparison:
    """Compare a job with an earlier recording of it.

    Raises:
        UsageError: One of them shows no GPU.
    """
    jobs = (before, after)
    steps = [sum(len(rank.trace.timeline.steps) for rank in job.ranks) for job in jobs]
    over = steps if all(steps) else [len(job.ranks) for job in jobs]
    (window,) = _changes([{("window", "", ""): (0, job.total.window_s)} for job in jobs], over)
    return Comparison(
        per="step" if all(steps) else "recording",
        window=window,
        kinds=_changes([{**_work(job, by_kind=True), **_idle(job)} for job in jobs], over),
        operators=_changes(_matched([_work(job, by_kind=False) for job in jobs]), over),
    )


def _work(job: JobFigures, by_kind: bool) -> _Sums:
    work = work_of_all(job)
    if work is None:
        raise UsageError(
            f"{job.ranks[0].trace.file} has no GPU kernels, and --against compares kernels. "
            "Record both traces on a GPU with ProfilerActivity.CUDA."
        )
    rows = summed(work, by_kind)
    return {(row.kind, row.operator, row.shape): (row.count, row.total_s) for row in rows}


def _idle(job: JobFigures) -> _Sums:
    times = asdict(idle_together([rank.idle for rank in job.ranks]))
    return {
        (f"idle: {name.removesuffix('_s').replace('_', ' ')}", "", ""): (0, spent)
        for name, spent in times.items()
        if name != "ends_s"  # of what the profiler was told to record
    }


def _matched(both: Sequence[_Sums]) -> list[_Sums]:
    """Put together what an operator did with shapes that the other recording does not have."""
    found: list[_Sums] = []
    for mine, other in (both, both[::-1]):
        names = {key[:2] for key in other}
        sums: _Sums = {}
        for key, (count, total_s) in mine.items():
            alone = key not in other and key[:2] in names
            target = (*key[:2], OTHER_SHAPES) if alone else key
            before = sums.get(target, (0, 0.0))
            sums[target] = (before[0] + count, before[1] + total_s)
        found.append(sums)
    return found


def _changes(
    both: Sequence[Mapping[_Key, tuple[int, float]]], over: Sequence[int]
) -> tuple[Change, ...]:
    """Return what stands in one or the other, before and after, the largest slowdown first.

    ``both``: counts and seconds, before and after. ``over``: by how much to divide each: steps, or
    ranks.
    """
    found = []
    for key in {**both[0], **both[1]}:
        (count, total_s), (count_now, total_now_s) = (one.get(key, (0, 0.0)) for one in both)
        seconds = (total_s / over[0], total_now_s / over[1])
        found.append(Change(*key, *seconds, count / over[0], count_now / over[1]))
    real = [change for change in found if change.before_s or change.after_s]
    return tuple(sorted(real, key=lambda change: -change.slower_s))
