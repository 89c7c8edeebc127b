"""How a balanced row's global batch was shared, and what its prediction starts from."""

from collections.abc import Mapping
from typing import Any

from scalebench.analysis.rows.fields import NO_LAUNCH, Context, Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.costmodel.balance import computing_s, divided, ideal_s
from scalebench.records.rows.balance import BalanceFigures
from scalebench.spec import Cell, Ddp


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
        num_changes=len(each) - 1,
        sample_s=pace_s,
        equal_s=computing_s([equal] * len(pace_s), pace_s),
        ideal_s=ideal_s([equal * pace for pace in pace_s]),
        balanced_s=computing_s(each[-1][1], pace_s),
    )
    return {"balance": figures}


def as_shared(cell: Cell) -> Cell:
    """Return a cell with the share that rank 0 should come to have.

    Ranks of virtual hosts are as fast as their share of a processor; all others are taken to be
    alike. So a prediction knows nothing of the row that it is compared with.
    """
    hosts = cell.virtual_hosts
    shares = hosts.shares(cell.world_size) if hosts is not None else None
    if not _is_balanced(cell) or shares is None:
        return cell
    samples = divided(cell.global_batch, [1 / min(share, cell.threads) for share in shares])
    return cell.model_copy(update={"rank_batch": samples[0]})


def _is_balanced(cell: Cell) -> bool:
    strategy = cell.strategy
    return isinstance(strategy, Ddp) and strategy.balance is not None and cell.world_size > 1
