"""What rows of single strategies say besides: frameworks, experts, ranks without lockstep."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from scalebench.analysis.rows.launches import NO_LAUNCH, Context, Fields, Launches, known, null
from scalebench.analysis.steps import mean_losses
from scalebench.costmodel.sharding import computing_s, divided, ideal_s
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import Trace
from scalebench.records.rows.budget import Budget
from scalebench.records.rows.race import LockstepFigures, RankShares, StageFigures
from scalebench.records.rows.strategies import (
    AgainstFastest,
    BalanceFigures,
    BusiestExpert,
    ExpertFigures,
    ExpertRank,
    FrameworkFacts,
)
from scalebench.records.run import CellResult
from scalebench.records.summary import Row, key_of
from scalebench.spec import Cell, Ddp, FromFramework, PipeDream, Pipeline, expert_groups
from scalebench.trace.events import intervals, length_s, union

UNTESTED = "version not tested"
NO_EXPERTS = "the strategy divides no experts"
NOT_RECORDED = "no launch of this row recorded how many tokens the experts had"

Tokens = NDArray[np.float64]
NO_RACE = "the suite is no race"
ONE_RANK = "one rank waits for no other"
NOT_TOLD = "neither the strategy nor traced steps tell where the ranks' time went"


def framework_of_row(row: Launches, _: Context) -> Fields:
    """Return the framework's facts, and the mark of a version that is not tested."""
    if not isinstance(row.cell.strategy, FromFramework):
        return null(["framework"], "no other framework trains it")
    ranks = [rank for result in row.good.values() for rank in result.ranks]
    if not ranks:
        return null(["framework"], NO_LAUNCH)
    try:
        found = FrameworkFacts.model_validate(ranks[0].facts.get("framework"))
    except ValidationError:  # of a version that knows others
        return null(["framework"], "the launch did not record it")
    told = ", ".join(_untested(found, name) for name in found.untested)
    return {"framework": found, "stamps": [f"{UNTESTED}: {told}"] if told else []}


def _untested(found: FrameworkFacts, name: str) -> str:
    """Write the version that was found, and the one that is tested where the launch says it."""
    tested = found.tested.get(name)
    return f"{name} {found.versions.get(name)}" + (f" (tested: {tested})" if tested else "")


FIELD = "against_fastest"
NO_FRAMEWORK = "no other framework was measured at this N"
NOT_COMPARED = "the plain model, or a row with wrong results or without a step time"
NO_ROUND = "no round in which both this row and the fastest succeeded"


def against_fastest(row: Row, rows: Sequence[Row], run: Context) -> Fields:
    """Compare a row with the fastest that did the same work, in a suite with other frameworks."""
    group = [
        other for other in rows if _counts(other) and _framework_kind(other) == _framework_kind(row)
    ]
    if all(other.framework is None for other in group):
        return null([FIELD], NO_FRAMEWORK)
    if not _counts(row):
        return null([FIELD], NOT_COMPARED)
    fastest = min(group, key=lambda row: row.step_s.value if row.step_s is not None else 0.0)
    pair = run.launches(row), run.launches(fastest)
    found = run.ratios.step_ratio(*pair, max(1, len(group) - 1))
    if found is None:
        return null([FIELD], NO_ROUND)
    return {FIELD: AgainstFastest(fastest=key_of(fastest), step_ratio=found)}


def _counts(row: Row) -> bool:
    return row.step_s is not None and row.strategy != "plain" and not row.deviates


def _framework_kind(row: Row) -> tuple[str, int, str, int]:
    """What rows have in common that did the same work."""
    return row.suite, row.world_size, row.workload, row.global_batch


def experts_of_row(row: Launches, _: Context) -> Fields:
    """Return how a row's tokens spread over its experts."""
    if expert_groups(row.cell.strategy) is None:
        return null(["experts"], NO_EXPERTS)
    return {"experts": known(expert_figures(list(row.good.values())), NOT_RECORDED)}


def expert_figures(results: Sequence[CellResult]) -> ExpertFigures | None:
    """Return the figures of a row; None: no launch recorded any.

    Args:
        results: Its measuring launches that succeeded.
    """
    found = [result for result in results if load_of(result.ranks[0])]
    if not found:
        return None
    kept = np.concatenate([tokens_of(result, "kept") for result in found])
    chosen = np.concatenate([tokens_of(result, "chosen") for result in found])
    here = np.concatenate([_of_ranks(result) for result in found])
    mean = kept.mean(axis=0)  # [layers, experts]
    times = mean / np.maximum(mean.mean(axis=1, keepdims=True), 1e-12)
    layer, expert = (int(place) for place in np.unravel_index(times.argmax(), times.shape))
    shares = [_all_to_all_share(rank.trace) for result in found for rank in result.ranks]
    known = [share for share in shares if share is not None]
    return ExpertFigures(
        num_experts=kept.shape[2],
        ranks_per_group=int(load_of(found[0].ranks[0])["ranks"]),
        tokens=mean.tolist(),
        imbalance=_imbalance(kept),
        rank_imbalance=_imbalance(here),
        dropped_share=float((chosen.sum() - kept.sum()) / max(chosen.sum(), 1.0)),
        busiest=BusiestExpert(layer=layer, expert=expert, times_mean=float(times[layer, expert])),
        all_to_all_share=float(np.mean(known)) if known and len(known) == len(shares) else None,
        ranks=_ranks(found, here.mean(axis=0)),
    )


def load_of(rank: RankRecord) -> Mapping[str, Any]:
    """Return what a rank recorded of the experts' load; empty: nothing."""
    load: Mapping[str, Any] | None = rank.facts.get("expert_load")
    return load if load and load["steps"] else {}


def tokens_of(result: CellResult, which: str, clean: bool = True) -> Tokens:
    """Return tokens by step, layer and expert, of all ranks together.

    ``which``: ``kept``, or ``chosen``: with those that were dropped. ``clean``: of the clean window
    only, where a step of it was kept.
    """
    steps = counted_steps(result, clean)
    each = [np.array(load_of(rank)[which], dtype=np.float64)[steps] for rank in result.ranks]
    total: Tokens = np.sum(each, axis=0)
    return total


def counted_steps(result: CellResult, clean: bool) -> list[int]:
    """Return the indices of the recorded steps that count."""
    first = result.ranks[0]
    numbers = load_of(first)["steps"]
    inside = [
        index
        for index, step in enumerate(numbers)
        for block in first.blocks
        if block.phase == "clean" and block.first <= step < block.first + block.count
    ]
    return inside if clean and inside else list(range(len(numbers)))


def _of_ranks(result: CellResult) -> Tokens:
    """Return tokens by step and rank, all layers together."""
    steps = counted_steps(result, clean=True)
    ranks = sorted(result.ranks, key=lambda rank: rank.rank)
    each = [np.array(load_of(rank)["here"], dtype=np.float64)[steps] for rank in ranks]
    return np.stack([one.sum(axis=(1, 2)) for one in each], axis=1)


def _imbalance(tokens: Tokens) -> float:
    """Return the largest over the mean along the last dimension, mean over the others."""
    even = np.maximum(tokens.mean(axis=-1), 1e-12)
    return float((tokens.max(axis=-1) / even).mean())


def _all_to_all_share(trace: Trace | None) -> float | None:
    if trace is None or not trace.steps:
        return None
    sent = [(op.start_ns, op.end_ns) for op in trace.operations if op.kind == "all_to_all"]
    steps_s = sum(end - start for start, end in trace.steps) / 1e9
    return length_s(union(intervals(sent))) / steps_s if sent else 0.0


def _ranks(results: Sequence[CellResult], tokens: Tokens) -> list[ExpertRank]:
    found = []
    load = load_of(results[0].ranks[0])
    here = len(load["here"][0][0])
    for rank in sorted(rank.rank for rank in results[0].ranks):
        records = [one for result in results for one in result.ranks if one.rank == rank]
        each = [_experts_s(record.trace) for record in records]
        known = [seconds for seconds in each if seconds is not None]
        experts_s = float(np.median(known)) if known and len(known) == len(each) else None
        came = float(tokens[rank])
        found.append(
            ExpertRank(
                rank=rank,
                first_expert=rank % int(load["ranks"]) * here,
                num_experts=here,
                tokens=came,
                experts_s=experts_s,
                token_s=experts_s / came if experts_s is not None and came else None,
            )
        )
    return found


def _experts_s(trace: Trace | None) -> float | None:
    """Return what a rank's experts took in forward, seconds per step; None: not noted."""
    if trace is None or not trace.experts:
        return None
    return length_s(intervals(trace.experts)) / len(trace.steps)


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
    beside = [
        other
        for other in rows
        if other.loss_last is not None and _race_kind(other) == _race_kind(row)
    ]
    num_steps = min(other.loss_last_steps or 0 for other in beside)
    losses = mean_losses(next(iter(run.launches(row).good.values())))
    return {"loss_equal": losses[num_steps - 1], "loss_equal_steps": num_steps}


def _race_kind(row: Row) -> tuple[str, str, int]:
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
