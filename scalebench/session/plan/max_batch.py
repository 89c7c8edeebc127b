"""The largest batch of a rank that fits, for each case and number of ranks.

Doubling until a batch does not fit, then bisection between the last that did and the first that
did not. What fits is found out by training: each probe is a separate launch, so that nothing of
one is left in memory for the next. Probes run eagerly: `torch.compile` would take minutes for every
batch, and what is compiled needs no more memory as a rule.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from scalebench.errors import UsageError
from scalebench.records.largest_batch import LargestBatch
from scalebench.records.run import CellResult
from scalebench.session.plan import Plan, Request
from scalebench.spec import Cell, Ddp, Device

PRECISION = 16
"""The bisection ends when the gap is at most this part of the batch."""

Fits = Callable[[Cell], bool]
"""Tells whether a probe's batch fits. Raises CannotProbe where something else goes wrong."""


class CannotProbe(Exception):
    """A probe failed for another reason than memory; the text says why."""


@dataclass(frozen=True)
class Bracket:
    """What a bisection ends with.

    Attributes:
        fits: The largest number known to fit; 0: not even one.
        too_large: The smallest known not to.
    """

    fits: int
    too_large: int


def largest_fitting(fits: Callable[[int], bool], first: int) -> Bracket:
    """Find the largest number that fits, to within one part in `PRECISION`.

    ``fits`` must be true up to some number and false beyond; ``first`` is at least 1.
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
    return Bracket(low, high)


def for_max_batch(request: Request, device: Device) -> Request:
    """Return the request that the search starts from: every rank has its own batch.

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


def with_largest_batches(plan: Plan, limit_bytes: int | None, fits: Fits) -> Plan:
    """Return the plan with each row's batch as large as fits, and with what was found.

    Rows that cannot be probed stay as they are: the run will say what is wrong with them. Where a
    GPU is full, results are compared at the planned batch: the reference has all ranks' samples.

    The plan is under weak scaling. ``limit_bytes``: of a rank's peak; None: what the device has.
    """
    rows = {cell.row_key: cell for cell in plan.cells if cell.purpose == "measure"}
    found: dict[tuple[str, str, int], LargestBatch] = {}
    several_suites = len(plan.spec.suites) > 1
    notices = list(plan.notices)
    for key, row in rows.items():
        if row.skip_reason is None:
            try:
                found[key] = _search(row, limit_bytes, fits)
            except CannotProbe as reason:
                notices.append(f"{row.case}, N = {row.world_size}: no largest batch: {reason}")
                continue
            notices.append(found[key].notice(with_suite=several_suites))
    whole = [
        cell for cell in plan.cells if cell.purpose not in ("independent", "shard")
    ]  # at other batches
    cells = tuple(_with_batch(cell, found.get(cell.row_key)) for cell in whole)
    return replace(plan, cells=cells, notices=tuple(notices), largest_batches=tuple(found.values()))


def _unit(cell: Cell) -> int:
    """Return what a rank's batch has to be a multiple of."""
    return cell.strategy.accumulate if isinstance(cell.strategy, Ddp) else 1


def _search(row: Cell, limit_bytes: int | None, fits: Fits) -> LargestBatch:
    unit = _unit(row)

    def probe(units: int) -> bool:
        eager = row.strategy.model_copy(update={"compile": False})
        changes = {"purpose": "fit", "memory_limit_bytes": limit_bytes, "strategy": eager}
        return fits(_of_batch(row, units * unit).model_copy(update=changes))

    units = largest_fitting(probe, max(1, row.rank_batch // unit))
    return LargestBatch(
        suite=row.suite,
        case=row.case,
        world_size=row.world_size,
        fits=units.fits * unit,
        too_large=units.too_large * unit,
    )


def _of_batch(cell: Cell, rank_batch: int) -> Cell:
    batches = {"rank_batch": rank_batch, "global_batch": rank_batch * cell.world_size}
    return cell.model_copy(update=batches)


def _with_batch(cell: Cell, largest: LargestBatch | None) -> Cell:
    if largest is None:
        return cell
    if largest.fits == 0:
        reason = f"not even {largest.too_large} samples per rank fit"
        return cell.model_copy(update={"skip_reason": reason})
    if cell.purpose == "inspect" and cell.device == "cuda":
        return cell
    return _of_batch(cell, largest.fits)


def why_too_large(cell: Cell, results: Iterable[CellResult]) -> str | None:
    """Say why a cell need not be tried, or None: it may fit.

    A cell is larger than one that ran out of memory when it has more ranks and each of them holds
    no less: the same model whole, and at least as many samples. Strategies that divide the model
    hold less the more ranks there are, and so does every rank where a global batch is divided.
    """
    if not cell.strategy.keeps_whole_model:
        return None
    for result in results:
        smaller = result.cell
        if (
            result.status == "oom"
            and (smaller.suite, smaller.case) == (cell.suite, cell.case)
            and smaller.world_size < cell.world_size
            and smaller.rank_batch <= cell.rank_batch
        ):
            return (
                f"not tried: N={smaller.world_size} ran out of memory, and a rank needs no less "
                "memory here (--keep-going tries it)"
            )
    return None
