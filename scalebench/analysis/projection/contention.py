"""How much longer a rank computes beside others, as a run measured it."""

from collections.abc import Sequence
from typing import NamedTuple

from scalebench.records.summary import Row
from scalebench.spec import Cell


class MeasuredContention(NamedTuple):
    """How much longer a rank computes where others do at the same time, and at how many ranks."""

    factor: float
    world_size: int


def contention_of_case(rows: Sequence[Row], cell: Cell) -> MeasuredContention | None:
    """Return the contention at the largest number of ranks that a case was measured at.

    More ranks are taken to share as much: they bring their own hosts. None: it was not measured.
    """
    known = [
        MeasuredContention(row.prediction.contention, row.world_size)
        for row in rows
        if (row.suite, row.case) == (cell.suite, cell.case)
        and row.prediction is not None
        and row.prediction.contention is not None
    ]
    return max(known, key=lambda one: one.world_size, default=None)


def told_contention(found: Sequence[MeasuredContention]) -> tuple[str, ...]:
    """Return what a projection assumes of waiting and contention, in words."""
    if not found:
        return ("no waiting, no stalls, no contention",)
    sizes = sorted({one.world_size for one in found})
    low, high = (100 * (f(one.factor for one in found) - 1) for f in (min, max))
    factors = f"{low:+.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:+.1f} to {high:+.1f} %"
    return (
        "no waiting, no stalls",
        f"contention as measured at N = {' and '.join(map(str, sizes))} ({factors})",
    )
