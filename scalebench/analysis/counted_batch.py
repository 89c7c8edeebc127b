"""The batch of a user's script, which is known only when it has been run.

The plan has a batch of 1 for each rank where nothing says how large it is. What the ranks counted
takes its place before anything is worked out, so that throughput, speedup and the loss budget are
those of any other run. A script whose arguments are the same at every N may divide its batch by
itself: what was counted also says which kind of scaling it is.
"""

from collections.abc import Sequence

from scalebench.records.run import CellResult
from scalebench.spec import Cell, Script


def with_counted_batch(result: CellResult) -> CellResult:
    """Return a launch whose cell has the batch that its ranks counted, and their backend."""
    if not isinstance(result.cell.strategy, Script) or not result.ranks:
        return result
    changes = {"backend": result.ranks[0].facts.get("backend"), **_batch(result)}
    return result.model_copy(update={"cell": result.cell.model_copy(update=changes)})


def _batch(result: CellResult) -> dict[str, int]:
    counted = [rank.samples_per_step for rank in result.ranks]
    known = [samples for samples in counted if samples is not None]
    if len(known) < len(counted) or round(sum(known)) < 1:
        return {}
    total = round(sum(known))
    return {"global_batch": total, "rank_batch": round(total / len(known))}


def knows_samples(cell: Cell, result: CellResult | None) -> bool:
    """Tell whether a cell has a number of samples and not a stand-in.

    Args:
        cell: With the batch that was counted.
        result: A launch that was measured; None: there is none.
    """
    if not isinstance(cell.strategy, Script) or getattr(cell.workload, "takes_batch", False):
        return True
    return result is not None and bool(_batch(result))


def divides_its_batch(cells: Sequence[Cell]) -> bool:
    """Tell whether a script has the same global batch at every N, though it was planned as weak.

    Args:
        cells: One for each N, with the batch that was counted.
    """
    of_one = [cell.global_batch for cell in cells if cell.world_size == 1]
    others = [cell.global_batch for cell in cells if cell.world_size > 1]
    weak = all(isinstance(c.strategy, Script) and c.scaling == "weak" for c in cells)
    return weak and bool(others) and {*others} == {*of_one}
