"""Where the ranks' time went in lockstep: waiting and staleness in a race, shares of the batch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalebench.analysis.rows.fields import NO_LAUNCH, Context, Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.timing.steps import mean_losses
from scalebench.costmodel.balance import computing_s, divided, ideal_s
from scalebench.records.measured.rank import RankRecord
from scalebench.records.rows.budget import Budget
from scalebench.records.rows.race import LockstepFigures, RankShares, StageFigures
from scalebench.records.rows.strategies import BalanceFigures
from scalebench.records.run import CellResult
from scalebench.records.summary import Row
from scalebench.spec import Cell, Ddp, PipeDream, Pipeline

NO_RACE = "the suite is no race"
ONE_RANK = "one rank waits for no other"
NOT_TOLD = "neither the strategy nor traced steps tell where the ranks' time went"


def lockstep_of_row(row: Row, _: Sequence[Row], run: Context) -> Fields:
    """Return where the time of a race's ranks went."""
    launches = run.launches(row)
    if launches.cell.race is None:
        return null(["lockstep"], NO_RACE)
    figures = lockstep_of(list(launches.good.values()), row.budget, row.world_size)
    return null(["lockstep"], figures) if isinstance(figures, str) else {"lockstep": figures}


def lockstep_of(
    good: Sequence[CellResult], budget: Budget | None, world_size: int
) -> LockstepFigures | str:
    """Return the figures of a row, or why there are none."""
    if world_size == 1:
        return ONE_RANK
    counted = [one for one in good if all("exchange_s" in rank.facts for rank in one.ranks)]
    if counted:
        ranks = [shares for result in counted for shares in shares_of(result)]
        stale, dropped = staleness_of(rank for result in counted for rank in result.ranks)
        return LockstepFigures(
            ranks=_means(ranks),
            traced=False,
            staleness=stale or None,
            stages=stages_of(counted),
            num_dropped=dropped,
        )
    if budget is None or not budget.ranks:
        return NOT_TOLD
    traced = [
        RankShares(
            rank=one.rank,
            compute=1 - one.exposed_comm_s / one.step_s,
            exchange=(one.exposed_comm_s - one.wait_s) / one.step_s,
            wait=one.wait_s / one.step_s,
        )
        for one in budget.ranks
    ]
    return LockstepFigures(ranks=traced, traced=True)


def shares_of(result: CellResult) -> list[RankShares]:
    """Return where the time of each rank went in a launch; at a block's end all wait for the last.

    Args:
        result: Of a strategy that counts the time of its exchanges.
    """
    own_s = {
        rank.rank: np.array([sum(rank.step_s[b.first : b.first + b.count]) for b in rank.blocks])
        for rank in result.ranks
    }
    job_s = float(np.max(list(own_s.values()), axis=0).sum())
    found = []
    for rank in result.ranks:
        busy_s, exchange_s = float(own_s[rank.rank].sum()), float(rank.facts["exchange_s"])
        found.append(
            RankShares(
                rank=rank.rank,
                compute=max(busy_s - exchange_s, 0.0) / job_s,
                exchange=min(exchange_s, busy_s) / job_s,
                wait=(job_s - busy_s) / job_s,
                num_batches=rank.facts["num_batches"],
            )
        )
    return found


def staleness_of(ranks: Iterable[RankRecord]) -> tuple[dict[int, int], int]:
    """Return staleness → gradients of the servers among ranks, and how many were dropped."""
    counts: Counter[int] = Counter()
    dropped = 0
    for rank in ranks:
        found = rank.facts.get("staleness") or {}
        counts.update({int(steps): int(count) for steps, count in found.items()})
        dropped += int(rank.facts.get("dropped") or 0)
    return dict(sorted(counts.items())), dropped


def stages_of(results: Sequence[CellResult]) -> list[StageFigures] | None:
    """Return what stages of a pipeline that is never flushed kept; None: it is another strategy."""
    strategy = results[0].cell.strategy
    if not isinstance(strategy, PipeDream):
        return None
    found, num_stages = [], len(results[0].ranks)
    for stage in range(num_stages):
        facts = [
            rank.facts for one in results for rank in one.ranks if rank.facts["stage"] == stage
        ]
        versions = strategy.weight_versions(stage, num_stages)
        found.append(
            StageFigures(
                stage=stage,
                staleness=max(int(steps) for one in facts for steps in one["staleness"]),
                staleness_law=strategy.staleness(stage, num_stages),
                weight_versions=max(one["weight_versions"] for one in facts),
                weight_versions_law=versions,
                stash_bytes=max(one["stash_bytes"] for one in facts),
                stash_law_bytes=(versions - 1) * facts[0]["stage_bytes"],
            )
        )
    return found


def _means(shares: Sequence[RankShares]) -> list[RankShares]:
    found = []
    for rank in sorted({one.rank for one in shares}):
        own = [one for one in shares if one.rank == rank]
        names = ("compute", "exchange", "wait", "num_batches")
        means = {name: float(np.mean([getattr(one, name) for one in own])) for name in names}
        found.append(RankShares(rank=rank, **means))
    return found


def equal_loss_of_row(row: Row, rows: Sequence[Row], run: Context) -> Fields:
    """Return a row's loss after as many steps as its neighbours trained.

    Its neighbours are those of the same suite, workload and global batch. The losses are those of
    a row's first launch.
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
