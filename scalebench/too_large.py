"""Cells that cannot fit because a smaller one of their case did not."""

from collections.abc import Iterable

from scalebench.records import CellResult
from scalebench.spec import Cell

REPLICATED = frozenset({"plain", "ddp", "compressed"})
"""Strategies of which every rank holds the whole model, however many ranks there are."""


def why_too_large(cell: Cell, results: Iterable[CellResult]) -> str | None:
    """Say why a cell need not be tried, or None: it may fit.

    A cell is larger than one that ran out of memory when it has more ranks and each of them holds
    no less: the same model whole, and at least as many samples. Strategies that divide the model
    hold less the more ranks there are, and so does every rank where a global batch is divided.

    Args:
        cell: What would be launched.
        results: What has been launched so far.
    """
    if cell.strategy.kind not in REPLICATED:
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
                f"not tried: N={smaller.world_size} ran out of memory, and a rank holds no less "
                "here (--keep-going tries it)"
            )
    return None
