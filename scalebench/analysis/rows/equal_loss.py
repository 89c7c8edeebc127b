"""The loss of each row after as many steps as all rows beside it trained.

Launches fill a window of time, so a faster row trains more steps, and its last loss is lower for
that reason alone. Losses of one suite can be compared after the same number of steps only.
"""

from collections.abc import Sequence

from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import Fields, null
from scalebench.analysis.steps import mean_losses
from scalebench.records.summary import Row


def equal_loss_of_row(row: Row, rows: Sequence[Row], run: Context) -> Fields:
    """Return a row's loss after as many steps as those beside it trained.

    Beside it are those of the same suite, workload and global batch. The losses are those of a
    row's first launch.
    """
    if row.loss_last is None:
        why = row.unavailable.get("loss_last", "not recorded")
        return null(["loss_equal", "loss_equal_steps"], why)
    beside = [other for other in rows if other.loss_last is not None and _kind(other) == _kind(row)]
    num_steps = min(other.loss_last_steps or 0 for other in beside)
    losses = mean_losses(next(iter(run.launches(row).good.values())))
    return {"loss_equal": losses[num_steps - 1], "loss_equal_steps": num_steps}


def _kind(row: Row) -> tuple[str, str, int]:
    return row.suite, row.workload, row.global_batch
