"""How a balanced row's global batch was shared, and what its prediction starts from."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.analysis.rows.fields import NO_LAUNCH, Context, Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.costmodel.balance import computing_s, divided, ideal_s
from scalebench.records.rows.strategies.balance import BalanceFigures
from scalebench.spec import Cell, Ddp, Pipeline


def balance_of_row(row: Launches, _: Context) -> Fields:
    """Return the shares of a row's first launch, and the law for them."""
    if not _is_balanced(row.cell):
        return null(["balance"], "the ranks have equal shares")
    if not row.good:
        return null(["balance"], NO_LAUNCH)
    facts: Mapping[str, Any] = next(iter(row.good.values())).ranks[0].facts
    if "pace_s" not in facts:
        return null(["balance"], "the launch ended before shares were set again")
    each, pace_s = facts["shares"], facts["pace_s"]
    equal = row.cell.global_batch / row.cell.world_size
    figures = BalanceFigures(
        shares=each[-1][1],
        history=each,
        num_changes=len(each) - 1,
        sample_s=pace_s,
        equal_s=computing_s([equal] * len(pace_s), pace_s),
        ideal_s=ideal_s([equal * pace for pace in pace_s]),
        balanced_s=computing_s(each[-1][1], pace_s),
    )
    return {"balance": figures}


def slowest_rank(cell: Cell, slowdowns: Sequence[float] | None) -> tuple[Cell, float] | None:
    """Return a cell with the batch of the rank that is ready last, and how slow that rank is.

    None: the ranks are not unequal by nature, or are stages. A balanced cell's shares are those
    that the ranks' speeds ask for: a prediction knows nothing of the row that it is compared with.

    Args:
        cell: Of the row.
        slowdowns: How much longer a plain step takes each rank of this size than the one of N=1;
            None: not measured, and then the ranks' shares of a processor tell.
    """
    hosts = cell.virtual_hosts
    quotas = hosts.shares(cell.world_size) if hosts is not None else None
    if quotas is None or len(set(quotas)) == 1 or isinstance(cell.strategy, Pipeline):
        return None
    speeds = [min(quota, cell.threads) for quota in quotas]
    slow = slowdowns or [speeds[0] / speed for speed in speeds]
    batches = [cell.rank_batch] * cell.world_size
    if _is_balanced(cell):
        batches = list(divided(cell.global_batch, slow))
    last = max(range(cell.world_size), key=lambda rank: batches[rank] * slow[rank])
    return cell.model_copy(update={"rank_batch": batches[last]}), slow[last]


def _is_balanced(cell: Cell) -> bool:
    strategy = cell.strategy
    return isinstance(strategy, Ddp) and strategy.balance is not None and cell.world_size > 1
