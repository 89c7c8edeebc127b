"""The loss of each row after as many steps as all rows beside it trained.

Launches fill a window of time, so a faster row trains more steps, and its last loss is lower for
that reason alone. Losses of one suite can be compared after the same number of steps only.
"""

from collections.abc import Sequence

from scalebench.analysis.rows.launches import Table
from scalebench.analysis.steps import mean_losses
from scalebench.records.summary import Row

FIELDS = ("loss_equal", "loss_equal_steps")


def with_equal_losses(rows: Sequence[Row], table: Table) -> list[Row]:
    """Return the rows with their losses after equal steps.

    Rows are held against those of the same suite, workload and global batch. The losses are those
    of a row's first launch.
    """
    curves = [_losses(row, table) for row in rows]
    least: dict[tuple[str, str, int], int] = {}
    for row, losses in zip(rows, curves, strict=True):
        if losses:
            kind = _kind(row)
            least[kind] = min(len(losses), least.get(kind, len(losses)))
    return [
        _with_loss(row, losses, least.get(_kind(row), 0))
        for row, losses in zip(rows, curves, strict=True)
    ]


def _kind(row: Row) -> tuple[str, str, int]:
    return row.suite, row.workload, row.global_batch


def _losses(row: Row, table: Table) -> list[float]:
    good = list(table[row.suite, row.case, row.world_size].good.values())
    return mean_losses(good[0]) if good and row.loss_last is not None else []


def _with_loss(row: Row, losses: Sequence[float], num_steps: int) -> Row:
    if not losses:
        why = row.unavailable.get("loss_last", "not recorded")
        return row.model_copy(
            update={"unavailable": {**row.unavailable, **dict.fromkeys(FIELDS, why)}}
        )
    found = {"loss_equal": losses[num_steps - 1], "loss_equal_steps": num_steps}
    return row.model_copy(update=found)
