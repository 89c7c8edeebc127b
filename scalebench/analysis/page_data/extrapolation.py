"""Larger numbers of ranks than were measured: every case projected, as measured and what if."""

from collections.abc import Iterator
from dataclasses import dataclass

from scalebench.analysis.projection.project import project
from scalebench.analysis.projection.rows import Projection
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import ScalebenchError
from scalebench.records.summary import Summary

DOUBLINGS = 5
"""Sizes beyond the largest measured one."""

WHAT_IFS = (WhatIf(times_bandwidth=2.0), WhatIf(times_bandwidth=10.0), WhatIf(gradient_bits=16))


@dataclass(frozen=True)
class Extrapolation:
    """A run projected.

    Attributes:
        as_measured: None: see ``reason``.
        changed: What was changed, in words → the projection with it.
        reason: Why nothing is projected.
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
        return Extrapolation(None, {}, _after_the_folder(str(reason), run))
    return Extrapolation(base, dict(_changed(run, summary, sizes)))


def _changed(
    run: StoredRun, summary: Summary, sizes: list[int]
) -> Iterator[tuple[str, Projection]]:
    for what_if in WHAT_IFS:
        assert what_if != AS_MEASURED
        yield ", ".join(what_if.told()), project(run, sizes, what_if=what_if, summary=summary)


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


def _after_the_folder(reason: str, run: StoredRun) -> str:
    """Return a reason without the run's path in front of it."""
    return reason.removeprefix(f"{run.paths.root} supports no projection: ")
