"""The curves of races, and of efficiency at sizes that were not measured, as a page draws them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalebench.analysis.projection.project import project
from scalebench.analysis.projection.rows import Projection
from scalebench.analysis.rows.launches import Table
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import ScalebenchError
from scalebench.records.measured.rank import RacePoint
from scalebench.records.summary import Summary


@dataclass(frozen=True)
class RaceCurve:
    """The losses of one launch of a race, from before its training to its end.

    Attributes:
        samples: That all ranks together had trained on.
        loss: Mean over the held-out samples; None: it was not finite.
        sent_bytes: That the rank which sends most had sent; None: each step sends as many.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    samples: tuple[int, ...]
    trained_s: tuple[float, ...]
    loss: tuple[float | None, ...]
    global_batch: int
    sent_bytes: tuple[float, ...] | None = None


def race_curves(table: Table) -> Iterator[RaceCurve]:
    """Yield the curve of every launch of a race."""
    for row in table.values():
        for repeat, result in row.good.items():
            points = result.ranks[0].race if result.ranks else None
            if points:
                yield RaceCurve(
                    suite=row.cell.suite,
                    case=row.cell.case,
                    world_size=row.cell.world_size,
                    repeat=repeat,
                    samples=tuple(point.samples for point in points),
                    trained_s=tuple(point.trained_s for point in points),
                    loss=tuple(point.loss for point in points),
                    global_batch=row.cell.global_batch,
                    sent_bytes=_sent(points),
                )


def _sent(points: Sequence[RacePoint]) -> tuple[float, ...] | None:
    known = tuple(point.sent_bytes for point in points if point.sent_bytes is not None)
    return known if len(known) == len(points) else None


DOUBLINGS = 5
"""Sizes beyond the largest measured one."""

WHAT_IFS = (WhatIf(times_bandwidth=2.0), WhatIf(times_bandwidth=10.0), WhatIf(gradient_bits=16))


@dataclass(frozen=True)
class Extrapolation:
    """A run projected.

    Attributes:
        changed: What was changed, in words → the projection with it.
    """

    as_measured: Projection | None
    changed: dict[str, Projection]
    reason: str | None = None


def extrapolate(run: StoredRun, summary: Summary) -> Extrapolation:
    """Project a run to the sizes that it measured and to `DOUBLINGS` beyond."""
    sizes = _sizes(summary)
    if not sizes:
        return Extrapolation(None, {}, "nothing was measured on more than one rank")
    try:
        base = project(run, sizes, summary=summary)
    except ScalebenchError as reason:
        before = f"{run.paths.root} supports no projection: "
        return Extrapolation(None, {}, str(reason).removeprefix(before))
    changed = {} if run.imported is not None else dict(_changed(run, summary, sizes))
    return Extrapolation(base, changed)


def _changed(
    run: StoredRun, summary: Summary, sizes: list[int]
) -> Iterator[tuple[str, Projection]]:
    for what_if in WHAT_IFS:
        assert what_if != AS_MEASURED
        yield ", ".join(what_if.described()), project(run, sizes, what_if=what_if, summary=summary)


def _sizes(summary: Summary) -> list[int]:
    """Return the measured sizes beyond 1 that did not share devices, and the doublings."""
    measured = {
        row.world_size
        for row in summary.rows
        if row.status == "ok" and row.world_size > 1 and not row.oversubscribed
    }
    if not measured:
        return []
    return sorted(measured | {max(measured) * 2**k for k in range(1, DOUBLINGS + 1)})
