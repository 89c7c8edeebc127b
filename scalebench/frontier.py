"""The frontier: the largest batch of a rank that fits, for each strategy and number of ranks.

Doubling until a batch does not fit, then bisection between the last that did and the first that
did not. What fits is found out by training: each probe is a launch of its own, so that nothing of
one is left in memory for the next.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from scalebench.errors import UsageError
from scalebench.plan import Plan, Request
from scalebench.spec import Cell, Ddp, Device

PRECISION = 16
"""The bisection ends when the gap is at most this part of the batch."""

Fits = Callable[[Cell], bool]
"""Tells whether a probe's batch fits. Raises CannotProbe where something else goes wrong."""


class CannotProbe(Exception):
    """A probe failed for another reason than memory; the text says why."""


@dataclass(frozen=True)
class Largest:
    """Where the frontier lies.

    Attributes:
        fits: The largest batch known to fit; 0: not even one.
        too_large: The smallest known not to.
    """

    fits: int
    too_large: int


def largest_fitting(fits: Callable[[int], bool], first: int) -> Largest:
    """Find the largest number that fits, to within one part in `PRECISION`.

    Args:
        fits: Must be true up to some number and false beyond.
        first: Where to begin, at least 1.
    """
    low, high = 0, first
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // PRECISION):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return Largest(low, high)


def for_frontier(request: Request, device: Device) -> Request:
    """Return the request under which the frontier is planned: every rank has a batch of its own.

    Raises:
        UsageError: Strong scaling was asked for, or there is no limit to find on a CPU.
    """
    if request.scaling == "strong":
        raise UsageError(
            "--max-batch gives every rank the largest batch that fits, which is weak scaling. "
            "Leave out --scaling strong."
        )
    if device == "cpu" and request.memory_limit_bytes is None:
        raise UsageError(
            "--max-batch needs a limit for ranks on CPU, which share the machine's memory: give "
            "--memory-limit, for example --memory-limit 200MB."
        )
    return replace(request, scaling="weak")


def at_the_frontier(plan: Plan, limit_bytes: int | None, fits: Fits) -> Plan:
    """Return the plan with each row's batch as large as fits, and notices that say how large.

    Rows that cannot be probed stay as they are: the run will say what is wrong with them. Where a
    GPU is full, results are compared at the planned batch: the reference has all ranks' samples.

    Args:
        plan: Under weak scaling.
        limit_bytes: Of a rank's peak; None: what the device has.
        fits: Launches a probe.
    """
    rows = {cell.row_key: cell for cell in plan.cells if cell.purpose == "measure"}
    found: dict[tuple[str, str, int], Largest] = {}
    notices = list(plan.notices)
    for key, row in rows.items():
        if row.skip_reason is None:
            try:
                found[key] = _search(row, limit_bytes, fits)
            except CannotProbe as reason:
                notices.append(f"{row.case}, N = {row.world_size}: no largest batch: {reason}")
                continue
            notices.append(_told(row, found[key]))
    cells = tuple(_with_batch(cell, found.get(cell.row_key)) for cell in plan.cells)
    return replace(plan, cells=cells, notices=tuple(notices))


def _unit(cell: Cell) -> int:
    """Return what a rank's batch has to be a multiple of."""
    return cell.strategy.accumulate if isinstance(cell.strategy, Ddp) else 1


def _search(row: Cell, limit_bytes: int | None, fits: Fits) -> Largest:
    unit = _unit(row)

    def probe(units: int) -> bool:
        changes = {"purpose": "fit", "memory_limit_bytes": limit_bytes}
        return fits(_of_batch(row, units * unit).model_copy(update=changes))

    largest = largest_fitting(probe, max(1, row.rank_batch // unit))
    return Largest(largest.fits * unit, largest.too_large * unit)


def _of_batch(cell: Cell, rank_batch: int) -> Cell:
    batches = {"rank_batch": rank_batch, "global_batch": rank_batch * cell.world_size}
    return cell.model_copy(update=batches)


def _with_batch(cell: Cell, largest: Largest | None) -> Cell:
    if largest is None:
        return cell
    if largest.fits == 0:
        reason = f"not even {largest.too_large} samples per rank fit"
        return cell.model_copy(update={"skip_reason": reason})
    if cell.purpose == "inspect" and cell.device == "cuda":
        return cell
    return _of_batch(cell, largest.fits)


@dataclass(frozen=True)
class Told:
    """What a notice says of one row's frontier."""

    case: str
    world_size: int
    fits: int
    too_large: int


_NOTICE = re.compile(r"(.+), N = (\d+): (\d+) samples per rank fit, (\d+) do not")


def told_by(notice: str) -> Told | None:
    """Return what a run's notice says of a frontier; None: it is about something else."""
    found = _NOTICE.fullmatch(notice)
    if found is None:
        return None
    case, *numbers = found.groups()
    return Told(case, *(int(number) for number in numbers))


def _told(row: Cell, largest: Largest) -> str:
    return (
        f"{row.case}, N = {row.world_size}: {largest.fits} samples per rank fit, "
        f"{largest.too_large} do not"
    )
