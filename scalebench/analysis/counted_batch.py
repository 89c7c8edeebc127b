"""The batch of a user's script, which is known only when it has been run.

The plan has a batch of 1 for each rank where nothing says how large it is. What the ranks counted
takes its place before anything is worked out, so that throughput, speedup and the loss budget are
those of any other run. It also says how the work grows with N, which the arguments of a script do
not: many divide their batch, or their accumulation, by themselves.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalebench.records.measured.rank import RankRecord
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Script
from scalebench.spec.script import ScriptTarget

ALIKE = 0.05
"""Work that differs by less is the same: the mean of batches that vary."""

SHARDED = {"FSDPModule", "FullyShardedDataParallel"}

CHANGES = (
    "keep the batch, its accumulation and the length of texts constant, without a warm-up: the "
    "work of a step changes while it is measured"
)

Grows = Literal["strong", "weak", "unknown"]


@dataclass(frozen=True)
class Growth:
    """How the work of a script grows with the number of ranks.

    Attributes:
        scaling: Unknown: no ratio between numbers of ranks means anything.
        rank_work: N → what a rank does in a step, in any unit, where samples are not known.
        why_unknown: What is missing, and what to do.
    """

    scaling: Grows
    rank_work: Mapping[int, int] = field(default_factory=dict)
    why_unknown: str | None = None


def with_counted_batch(result: CellResult) -> CellResult:
    """Return a launch whose cell has the batch that its ranks counted, and their backend."""
    if not isinstance(result.cell.strategy, Script) or not result.ranks:
        return result
    changes = {"backend": result.ranks[0].facts.get("backend"), **_batch(result)}
    return result.model_copy(update={"cell": result.cell.model_copy(update=changes)})


def _batch(result: CellResult) -> dict[str, int]:
    total = _samples(result)
    if total is None or round(total) < 1:
        return {}
    return {"global_batch": round(total), "rank_batch": round(total / len(result.ranks))}


def work_of_step(result: CellResult) -> float:
    """Return the samples of the whole job in a step, exactly where batches vary.

    What stands for them, in the cell, where they are not known.
    """
    known = isinstance(result.cell.strategy, Script) and _batch(result)
    counted = _samples(result) if known else None
    return float(result.cell.global_batch) if counted is None else counted


def knows_samples(cell: Cell, result: CellResult | None) -> bool:
    """Tell whether a cell has a number of samples and not a stand-in."""
    if not isinstance(cell.strategy, Script):
        return True
    if getattr(cell.workload, "takes_batch", False) and not (result and _changes(result)):
        return True
    return result is not None and bool(_batch(result))


def growth_of(cell: Cell, results: Sequence[CellResult]) -> Growth:
    """Tell how a script's work grows: by its samples, else by `--scaling`, else by what was seen.

    Where no samples are known, ranks that divide data or layers show their work by the elements
    that modules are given in a step, or by backward passes that are divided among them. As many
    backward passes at every N say nothing, because each may be on a smaller batch.

    Args:
        cell: As it was planned.
        results: A launch that succeeded for each number of ranks.
    """
    cells = {result.cell.world_size: result.cell for result in results}
    planned, target = cell.scaling, cell.workload
    takes_batch = isinstance(target, ScriptTarget) and target.takes_batch
    said = target.scaling if isinstance(target, ScriptTarget) else None
    if any(map(_changes, results)):
        return Growth("unknown", why_unknown=CHANGES)
    if len(cells) < 2:
        return Growth(planned if takes_batch else said or "unknown")
    samples = {r.cell.world_size: _samples(r) for r in results}
    missing = [n for n, known in samples.items() if not known]
    if not missing:
        known = {n: float(total or 0) for n, total in samples.items()}
        return Growth(_alike_over(known, cells) or planned)
    if takes_batch:
        return Growth(planned)
    if said is not None:
        common = math.lcm(*cells)
        return Growth(said, {n: common // n if said == "strong" else 1 for n in cells})
    if len(missing) < len(cells):
        counted = " and ".join(f"N={n}" for n in samples if n not in missing)
        others = " and ".join(f"N={n}" for n in missing)
        why = f"give --samples-per-step: samples are known at {counted} and not at {others}"
        return Growth("unknown", why_unknown=why)
    for measure in (_elements, _backwards):
        work = {r.cell.world_size: _sum_over_ranks(r, measure) for r in results}
        whole = {n: total for n, total in work.items() if total}
        grows = _alike_over(whole, cells) if len(whole) == len(cells) else None
        if grows == "strong" or (grows == "weak" and measure is _elements):
            return Growth(grows, {n: round(total / n) for n, total in whole.items()})
    return Growth(
        "unknown",
        why_unknown="give --scaling or --samples-per-step: nothing tells whether a rank's work in "
        "a step is the same at every N (weak scaling) or divided by N (strong scaling)",
    )


def _alike_over(work: Mapping[int, float], cells: Mapping[int, Cell]) -> Grows | None:
    """Return how the work of the whole job grows; None: in neither way."""
    per_rank = {n: total / n for n, total in work.items()}
    found: tuple[tuple[Grows, Mapping[int, float]], ...] = (("strong", work), ("weak", per_rank))
    for scaling, values in found:
        if len(cells) > 1 and max(values.values()) <= (1 + ALIKE) * min(values.values()):
            return scaling
    return None


def _samples(result: CellResult) -> float | None:
    """Return the samples of the whole job in a step; those that several ranks load count once."""
    loaded = _sum_over_ranks(result, lambda rank: rank.samples_per_step)
    target, facts = result.cell.workload, result.ranks[0].facts if result.ranks else {}
    said = isinstance(target, ScriptTarget) and target.samples_per_step is not None
    if loaded is None or said or facts.get("steps_by") == "scalebench.step()":
        return loaded
    return loaded / (ranks_per_batch(facts) or 1)


def ranks_per_batch(facts: Mapping[str, Any]) -> int | None:
    """Return how many ranks take the same batch; None: parameters lie on a mesh that does not tell.

    FSDP says how many ranks divide the data: the rest of the mesh divides layers. Without it, it is
    tensor parallelism where parameters are cut along another dimension than the first. A pipeline
    has as many ranks as its stages, divided by those that a rank holds.
    """
    wrappers = facts.get("wrappers") or ()
    stages = [one.get("of") or 1 for one in wrappers if one["kind"] == "_PipelineStageBase"]
    in_pipeline = max(1, stages[0] // len(stages)) if stages else 1
    layouts = [one for one in wrappers if one["kind"] == "DTensor"]
    largest = max((math.prod(one["mesh"].values()) for one in layouts), default=1)
    sharded = [one.get("data_ranks") or largest for one in wrappers if one["kind"] in SHARDED]
    if sharded:
        return in_pipeline * max(1, largest // max(sharded))
    if largest == 1:
        return in_pipeline
    cut = {how for one in layouts for how in one["placements"] if how.startswith("Shard(")}
    return in_pipeline * largest if cut - {"Shard(dim=0)"} else None


def _sum_over_ranks(
    result: CellResult, of_rank: Callable[[RankRecord], float | None]
) -> float | None:
    found = [of_rank(rank) for rank in result.ranks]
    known = [one for one in found if one is not None]
    return sum(known) if known and len(known) == len(found) else None


def _changes(result: CellResult) -> bool:
    """Tell whether ranks saw more work in the last steps than in the first, or less."""
    return any(rank.facts.get("backwards_per_step", 0) is None for rank in result.ranks)


def _elements(rank: RankRecord) -> float | None:
    """Return the elements that a rank's modules are given, if ranks divide nothing but the data."""
    facts = rank.facts
    kinds = {one.get("kind") for one in facts.get("wrappers") or ()}
    together = ranks_per_batch(facts)
    divides = kinds & {"_PipelineStageBase"} or together is None
    several = [group.get("ranks") for group in facts.get("groups") or () if group.get("ranks")]
    if divides or any(1 < size < max(several) for size in several):
        return None
    found = facts.get("input_elements")
    return float(found) / together if found and together else None


def _backwards(rank: RankRecord) -> float | None:
    found = rank.facts.get("backwards_per_step")
    return float(found) if found else None
