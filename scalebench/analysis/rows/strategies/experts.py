"""How a row's tokens spread over the experts, from what its ranks recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.rows.fields import Context, Fields, known, null
from scalebench.analysis.rows.launches import Launches
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import Trace
from scalebench.records.rows.strategies import BusiestExpert, ExpertFigures, ExpertRank
from scalebench.records.run import CellResult
from scalebench.spec import expert_groups
from scalebench.trace.intervals import intervals, length_s, union

NO_EXPERTS = "the strategy divides no experts"
NOT_RECORDED = "no launch of this row recorded how many tokens the experts had"

Tokens = NDArray[np.float64]


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
