"""Communication of a row by the dimension of the mesh whose group carried it."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from scalebench.analysis.attribution import WIRE_FACTORS, LaunchAttribution
from scalebench.costmodel.group_steps import group_operations, model_of_facts
from scalebench.costmodel.tensor_layers import NoLaw, Operation
from scalebench.records.rows.communication import AxisFigures
from scalebench.records.run import CellResult
from scalebench.records.trace import Trace, TracedOperation
from scalebench.spec import Grouped
from scalebench.trace.breakdown import covered_by, within
from scalebench.trace.intervals import intersect, length_s, none, subtract

_RANKS = re.compile(r"ranks (\d{1,9}(?:,\d{1,9})*)")
NO_MESH = "the strategy does not say along which dimension of a mesh its operations go"


def axes_of_row(launches: Sequence[LaunchAttribution], rank: int) -> list[AxisFigures]:
    """Return the figures of every dimension, means over the launches; empty: none was told.

    Args:
        launches: Of the row, looked into.
        rank: Whose operations.
    """
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
    found: dict[str, float] = {}
    for op in operations:
        sent = WIRE_FACTORS[op.op](op.num_ranks) * op.num_bytes
        found[op.axis] = found.get(op.axis, 0.0) + sent
    return found


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
