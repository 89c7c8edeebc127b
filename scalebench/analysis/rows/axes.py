"""Communication and peak memory of a row, by the dimensions of its mesh."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalebench.analysis.attribution import WIRE_FACTORS, LaunchAttribution
from scalebench.analysis.pipeline_trace import PipelineTrace
from scalebench.analysis.rows.launches import (
    NO_LAUNCH,
    Context,
    Fields,
    Launches,
    Unavailable,
    null,
)
from scalebench.costmodel.group_steps import group_operations, model_of_facts
from scalebench.costmodel.links.nccl_log import merged
from scalebench.costmodel.links.topology import wire_findings
from scalebench.costmodel.memory import (
    Division,
    MeasuredBaseline,
    divided_part,
    in_flight_part,
    predict_memory,
    savings_of,
)
from scalebench.costmodel.pipeline_schedule import bubble_law
from scalebench.costmodel.pipeline_step import dry_run, equal_times
from scalebench.costmodel.tensor_layers import NoLaw, Operation
from scalebench.grouping import totals
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.records.rows.steps import AxisFigures
from scalebench.records.rows.strategies import (
    AxisSaving,
    MemoryByAxis,
    PipelineFigures,
    StageTimes,
    TimedPass,
)
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Execution, Grouped, Mesh, Plain, Tensor, expert_groups
from scalebench.spec import Context as ContextParallel
from scalebench.trace.breakdown import covered_by, within
from scalebench.trace.events import intersect, length_s, none, subtract

_RANKS = re.compile(r"ranks (\d{1,9}(?:,\d{1,9})*)")
NO_MESH = "the strategy does not say along which dimension of a mesh its operations go"
NO_MEMORY_MESH = "the strategy has no mesh whose axes divide memory"
NOT_OF_EXPERTS = "what experts on a rank keep for the tokens of others depends on the router"
NO_ORDER = "the microbatches that a rank keeps under {} do not follow from its stage alone"


def axes_of_row(launches: Sequence[LaunchAttribution], rank: int) -> list[AxisFigures]:
    """Return the figures of every dimension, means over the launches; empty: none was told."""
    of_launches = [_of_launch(launch, rank) for launch in launches]
    names = dict.fromkeys(name for found in of_launches for name in found)
    predicted = predicted_wire_bytes(launches[0].result, rank)
    groups = groups_by_axis(launches[0].traces)
    means = {name: [found[name] for found in of_launches if name in found] for name in names}
    return [
        of_axis[0].model_copy(
            update={
                "predicted_wire_bytes": predicted.get(name),
                "groups": groups.get(name),
                **_mean(of_axis),
            }
        )
        for name, of_axis in means.items()
    ]


def groups_by_axis(traces: Mapping[int, Trace]) -> dict[str, list[list[int]]]:
    """Return dimension → the ranks of every group along it, as the ranks' traces tell."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for trace in traces.values():
        for op in trace.operations:
            listed = _RANKS.fullmatch(op.group or "")
            if op.axis is not None and listed:
                ranks = tuple(map(int, listed[1].split(",")))
                found.setdefault(op.axis, set()).add(ranks)
    return {axis: sorted(map(list, groups)) for axis, groups in found.items()}


def predicted_wire_bytes(result: CellResult, rank: int = 0) -> dict[str, float]:
    """Return dimension → bytes that a rank sends in a step by the strategy's law; may be empty."""
    return wire_bytes_by_axis(predicted_operations(result, rank))


def predicted_operations(result: CellResult, rank: int = 0) -> list[Operation]:
    """Return what a rank of a launch takes part in during a step, by the strategy's law.

    Empty where there is no law, and where a rank sends nothing. Only in a mesh with a pipeline do
    the ranks differ.
    """
    strategy, cell = result.cell.strategy, result.cell
    if not isinstance(strategy, Grouped) or not result.ranks:
        return []
    try:
        model = model_of_facts(strategy, result.ranks[rank].facts)
        return group_operations(strategy, model, cell.world_size, cell.rank_batch)
    except NoLaw:
        return []


def wire_bytes_by_axis(operations: Sequence[Operation]) -> dict[str, float]:
    """Return dimension → bytes that a rank sends, by the ring's law."""
    return totals((op.axis, WIRE_FACTORS[op.op](op.num_ranks) * op.num_bytes) for op in operations)


def _of_launch(launch: LaunchAttribution, rank: int) -> dict[str, AxisFigures]:
    """Return dimension → its figures in one launch, per step."""
    trace, chosen = launch.traces[rank], launch.typical_steps
    by_axis: dict[str, list[TracedOperation]] = {}
    between_ranks = launch.result.cell.world_size > 1
    for op in trace.operations:
        alone = between_ranks and op.group_size == 1
        if op.axis is not None and op.step in chosen and not alone:
            by_axis.setdefault(op.axis, []).append(op)
    step, waiting = launch.partitions[rank], launch.waiting.get(rank, none())
    found = {}
    for axis, operations in by_axis.items():
        covered = within(step.steps, covered_by(operations))
        exposed = subtract(covered, step.compute)
        wait_s = length_s(intersect(exposed, waiting)) / len(chosen)
        found[axis] = AxisFigures(
            axis=axis,
            num_ranks=operations[0].group_size or launch.result.cell.world_size,
            count=len(operations) / len(chosen),
            num_bytes=_volume(operations, len(chosen), dict.fromkeys(WIRE_FACTORS, 1.0)),
            wire_bytes=_volume(operations, len(chosen), _factors(operations)),
            total_s=length_s(covered) / len(chosen),
            exposed_s=length_s(exposed) / len(chosen),
            wait_s=None if launch.not_apart else wait_s,
        )
    return found


def _factors(operations: Sequence[TracedOperation]) -> dict[str, float]:
    size = operations[0].group_size or 1
    return {kind: factor(size) for kind, factor in WIRE_FACTORS.items()}


def _volume(
    operations: Sequence[TracedOperation], num_steps: int, factors: Mapping[str, float]
) -> float | None:
    sizes = [(op.num_bytes, factors.get(op.kind)) for op in operations]
    known = [size * factor for size, factor in sizes if size is not None and factor is not None]
    return sum(known) / num_steps if len(known) == len(sizes) else None


def _mean(found: Sequence[AxisFigures]) -> dict[str, float | None]:
    fields = ("count", "num_bytes", "wire_bytes", "total_s", "exposed_s", "wait_s")
    values = {field: [getattr(one, field) for one in found] for field in fields}
    return {n: None if None in each else float(np.mean(each)) for n, each in values.items()}


SLOW = "slow wires"
BY_HAND = (
    "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=nccl.%h.%p, then scalebench doctor --nccl-log"
)


def wires_of_row(row: Launches, _: Context) -> Fields:
    """Return the wires of a row, and a mark for each that is slower than what the machine has."""
    ranks = row.inspection.ranks if row.inspection is not None else []
    logs = [rank.wires for rank in ranks if rank.wires is not None]
    if logs:
        wires = merged(logs)
        found = wire_findings(wires)
        return {
            "wires": wires.model_copy(update={"findings": found}),
            "stamps": [f"{SLOW}: {one.text}" for one in found],
        }
    if row.cell.world_size == 1:
        why = "one rank sends to no other"
    elif row.cell.device == "cpu":
        why = "NCCL joins GPUs; these ranks are on CPU"
    elif row.inspection is None:
        why = f"no inspection launch had NCCL write its log: {BY_HAND}"
    else:
        told = (rank.wires_unavailable for rank in ranks if rank.wires_unavailable)
        why = next(told, "the inspection launch recorded no log of NCCL")
    return null(["wires"], why)


MOST_ACTIONS = 2000
"""Passes of a step that a row lists; the launches' own files have all."""


def pipeline_figures(pipelines: Sequence[PipelineTrace]) -> PipelineFigures:
    """Return the field ``pipeline`` of a row; its passes are left out where they are too many.

    Args:
        pipelines: Of all launches and side by side; at least one, all of them traced whole.
    """
    first = pipelines[0]
    strategy, schedule = first.strategy, first.schedule
    assert schedule is not None, "pipelines whose trace is incomplete are left out"
    p, m, v = len(first.ranks), strategy.microbatches, strategy.chunks
    home = schedule.rank_of_stage
    equal = dry_run(schedule, equal_times(schedule.num_stages))
    ratios = [one.timeline.bubble_ratio for one in pipelines if one.timeline is not None]
    return PipelineFigures(
        schedule=strategy.schedule,
        num_ranks=p,
        num_microbatches=m,
        chunks=v,
        num_pipelines=len(first.traces) // p,
        bubble_law=bubble_law(strategy.schedule, p, m, v),
        bubble_equal_stages=equal.bubble_ratio,
        bubble_measured_times=float(np.mean(ratios)),
        idle_ratio=float(np.mean([one.idle_ratio for one in pipelines])),
        in_flight=schedule.in_flight(),
        stages=[
            StageTimes(stage=stage, rank=home[stage], **_times(pipelines, stage))
            for stage in sorted(home)
        ],
        actions=_actions(first) if sum(map(len, schedule.ranks)) <= MOST_ACTIONS else None,
    )


def _actions(pipeline: PipelineTrace) -> list[TimedPass] | None:
    """Return the passes of one typical step, seconds after the first of them began."""
    if pipeline.schedule is None or pipeline.timeline is None:
        return None
    planned = pipeline.timeline
    step = pipeline.chosen[len(pipeline.chosen) // 2]
    done = {rank: pipeline.spans(rank, step) for rank in pipeline.ranks}
    begin_ns = min(start for spans in done.values() for start, _ in spans.values())
    return [
        TimedPass(
            rank=rank,
            **action._asdict(),
            start_s=(done[rank][action][0] - begin_ns) / 1e9,
            end_s=(done[rank][action][1] - begin_ns) / 1e9,
            planned_start_s=planned.start_s[place][number],
            planned_end_s=planned.end_s[place][number],
        )
        for place, rank in enumerate(pipeline.ranks)
        for number, action in enumerate(pipeline.schedule.ranks[place])
        if action in done[rank]
    ]


_NAMES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}


def _times(pipelines: Sequence[PipelineTrace], stage: int) -> dict[str, float]:
    """Return a stage's time for one microbatch by kind of action: means over the pipelines."""
    found = {
        name: [one.seconds[kind, stage] for one in pipelines if (kind, stage) in one.seconds]
        for kind, name in _NAMES.items()
    }
    return {name: float(np.mean(times)) for name, times in found.items() if times}


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
    if not isinstance(cell.strategy, Mesh | Tensor | ContextParallel):
        raise Unavailable(NO_MEMORY_MESH)
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
    if isinstance(strategy, ContextParallel):
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
