"""The peak of a row on a mesh by what each axis takes off one process."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.analysis.rows.fields import NO_LAUNCH, Unavailable
from scalebench.costmodel.memory import (
    Division,
    MeasuredBaseline,
    divided_part,
    in_flight_part,
    predict_memory,
    savings_of,
)
from scalebench.records.measured.rank import RankRecord
from scalebench.records.rows.strategies import AxisSaving, MemoryByAxis
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Context, Execution, Mesh, Plain, Tensor, expert_groups

NO_MESH = "the strategy has no mesh whose axes divide memory"
NOT_OF_EXPERTS = "what experts on a rank keep for the tokens of others depends on the router"
NO_ORDER = "the microbatches that a rank keeps under {} do not follow from its stage alone"


def memory_by_axis(
    result: CellResult | None,
    inspection: CellResult | None,
    baseline: MeasuredBaseline | None,
    shards: Sequence[CellResult],
) -> MemoryByAxis:
    """Return what each axis takes off the peak of a row's fullest rank.

    ``inspection``, the row's, tells the fullest rank; ``shards`` may know the layers as well.

    Raises:
        Unavailable: It is not known; the text says why.
    """
    if result is None or not result.ranks:
        raise Unavailable(NO_LAUNCH)
    cell = result.cell
    if not isinstance(cell.strategy, Mesh | Tensor | Context):
        raise Unavailable(NO_MESH)
    if cell.world_size == 1:
        raise Unavailable("one rank divides nothing")
    if expert_groups(cell.strategy) is not None:
        raise Unavailable(NOT_OF_EXPERTS)
    rank = _fullest(result, inspection)
    if rank.num_parameters is None or baseline is None:
        raise Unavailable("no plain baseline was measured")
    settings = {name: getattr(baseline.strategy, name) for name in Execution.model_fields}
    one = predict_memory(
        Plain(**settings),
        rank.num_parameters,
        cell.global_batch,
        rank.facts.get("optimizer"),
        baseline,
    )
    if one.total_bytes is None:
        raise Unavailable(one.reason or "the peak of one process is not predictable")
    facts = [rank.facts, *(shard.ranks[0].facts for shard in shards)]
    known = next((told for told in facts if "parameters" in told), {})
    savings = [
        AxisSaving(
            axis=found.axis,
            num_ranks=found.num_ranks,
            state_bytes=round(found.state_bytes),
            activations_bytes=round(found.activations_bytes),
        )
        for found in savings_of(one, divisions_of(cell, rank.rank, rank.num_parameters, known))
    ]
    left = one.total_bytes - sum(saving.total_bytes for saving in savings)
    return MemoryByAxis(one_process_bytes=one.total_bytes, savings=savings, rank_bytes=left)


def _fullest(result: CellResult, inspection: CellResult | None) -> RankRecord:
    """Return the record, of a measuring launch, of the rank with the highest peak."""
    peaks = {
        rank.rank: rank.memory.allocated_bytes or 0
        for rank in (inspection.ranks if inspection else ())
    }
    return max(result.ranks, key=lambda rank: (peaks.get(rank.rank, 0), -rank.rank))


def divisions_of(
    cell: Cell, rank: int, num_parameters: int, facts: Mapping[str, Any]
) -> list[Division]:
    """Return how the axes of a strategy divide what a rank holds, outermost first.

    ``facts`` has ``parameters`` where layers are divided.

    Raises:
        Unavailable: A dimension has no law.
    """
    strategy, world_size = cell.strategy, cell.world_size
    parameters = [(size, bool(divided)) for size, divided in facts.get("parameters", ())]
    if isinstance(strategy, Context):
        ranks = strategy.ranks_per_group(world_size)
        return [_samples("data", world_size // ranks), _samples("context", ranks)]
    assert isinstance(strategy, Tensor)
    if not parameters:
        raise Unavailable("no launch told which layers are divided")
    ranks = strategy.ranks_per_group(world_size)
    tensor = Division(
        "tensor", ranks, divided_part(parameters, ranks), 1 / ranks if strategy.sequence else 1.0
    )
    if not isinstance(strategy, Mesh):
        return [_samples("data", strategy.num_shards(world_size)), tensor]
    sizes = strategy.axis_sizes(world_size)
    shards = sizes["shard"]
    return [
        _stage(strategy, rank, world_size, sum(s for s, _ in parameters) / num_parameters),
        _samples("data", sizes["data"]),
        Division("shard", shards, 1 / shards, 1 / shards),
        _samples("context", sizes["context"]),
        tensor,
    ]


def _samples(axis: str, ranks: int) -> Division:
    """Return a dimension whose ranks have different samples or tokens, and all parameters."""
    return Division(axis, ranks, 1.0, 1 / ranks)


def _stage(strategy: Mesh, rank: int, world_size: int, state: float) -> Division:
    stages = strategy.ranks_per_pipeline(world_size)
    if stages == 1:
        return Division("pipeline", 1, 1.0, 1.0)
    stage = strategy.coordinates(rank, world_size)["pipeline"]
    kept = in_flight_part(strategy.schedule, stage, stages, strategy.microbatches)
    if kept is None:
        raise Unavailable(NO_ORDER.format(strategy.schedule))
    return Division("pipeline", stages, state, kept / stages)
