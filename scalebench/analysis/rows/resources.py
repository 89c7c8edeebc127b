"""What one row of the summary used: memory, energy, and the device's arithmetic."""

from collections.abc import Mapping, Sequence

from scalebench.analysis.energy import energy_per_sample
from scalebench.analysis.pipeline_shape import layers_of
from scalebench.analysis.rows.axes import predicted_wire_bytes
from scalebench.analysis.rows.experts import NO_EXPERTS, NOT_RECORDED, experts_of_row
from scalebench.analysis.rows.fields import RowFields, Unavailable
from scalebench.analysis.rows.group_step import NO_SHARD
from scalebench.analysis.rows.memory_axes import memory_by_axis
from scalebench.analysis.step_shape import NoShape
from scalebench.costmodel.device_peaks import (
    Dtype,
    compute_dtype,
    mfu,
    mixed_peak,
    why_no_peak,
)
from scalebench.costmodel.group_steps import why_no_group_law
from scalebench.costmodel.memory import MeasuredBaseline, predict_memory, why_unfit
from scalebench.costmodel.pipelines.memory import predict_pipeline_memory
from scalebench.costmodel.traffic import predict_traffic
from scalebench.records.rank import Memory, RankRecord
from scalebench.records.run import CellResult
from scalebench.spec import (
    Cell,
    Grouped,
    Pipeline,
    Script,
    Strategy,
    WithoutLockstep,
    expert_groups,
)
from scalebench.stats import Estimate, estimate_over_launches

KINDS = ("allocated_bytes", "reserved_bytes", "device_bytes", "rss_bytes")
"""Memory that every launch counts; the largest of all ranks is told."""

CATEGORIES = (
    *("parameters_bytes", "gradients_bytes", "optimizer_bytes", "communication_bytes"),
    *("data_bytes", "activations_bytes"),
)
"""Memory that the inspecting launch tells apart; one rank's are told, so that they sum."""


def use_of_row(
    cell: Cell,
    inspection: CellResult | None,
    good: Mapping[int, CellResult],
    alone: Sequence[CellResult],
    throughput: Estimate | None,
    reference: CellResult | None = None,
    shards: Sequence[CellResult] = (),
) -> RowFields:
    """Work out what a row used.

    Args:
        cell: Of one of the row's launches.
        inspection: The row's inspecting launch, if it was run.
        good: Repeat → measuring launch that succeeded.
        alone: Inspecting launches of one rank, whose activations predictions start from: the
            plain baseline's, then the strategy's own.
        throughput: Samples per second of the whole job.
        reference: A launch that knows the model's size, where none of the row's own succeeded.
        shards: Launches of one rank's shard alone.
    """
    row = RowFields()
    _set_memory(row, inspection, good)
    _set_predicted_memory(row, cell, next(iter(good.values()), reference), alone, shards)
    _set_memory_by_axis(row, inspection, next(iter(good.values()), None), alone, shards)
    _set_predicted_traffic(row, good)
    _set_energy(row, list(good.values()))
    divides = expert_groups(cell.strategy) is not None
    experts = experts_of_row(list(good.values())) if divides else None
    row.set("experts", experts, NOT_RECORDED if divides else NO_EXPERTS)
    _set_mfu(row, inspection, list(good.values()), throughput)
    return row


def _set_memory(
    row: RowFields, inspection: CellResult | None, good: Mapping[int, CellResult]
) -> None:
    results = [*([inspection] if inspection else []), *good.values()]
    memories = [rank.memory for result in results for rank in result.ranks]
    told = {kind: _largest(memories, kind) for kind in KINDS}
    row.values["memory"] = told | _categories(inspection)
    peak = told["allocated_bytes"]
    row.set("peak_memory_bytes", peak, _why_no_peak(list(good.values())))


def _why_no_peak(good: Sequence[CellResult]) -> str:
    if good and isinstance(good[0].cell.strategy, Script):
        return "on CPU the tensors of a user's script are not counted; see memory.rss_bytes"
    return "the inspection launch, which counts it, failed"


def peak_memory_of(result: CellResult) -> int | None:
    """Return the peak memory of a launch, the largest over its ranks, bytes; None: not counted."""
    known = [rank.memory.allocated_bytes for rank in result.ranks]
    peaks = [peak for peak in known if peak is not None]
    return max(peaks) if peaks and len(peaks) == len(known) else None


def _largest(memories: Sequence[Memory], kind: str) -> int | None:
    known = [value for memory in memories if (value := getattr(memory, kind)) is not None]
    return max(known, default=None)


def _categories(inspection: CellResult | None) -> dict[str, int | None]:
    """Return what the peak of the fullest rank was made of."""
    counted = [
        rank.memory
        for rank in (inspection.ranks if inspection else ())
        if rank.memory.allocated_bytes is not None
    ]
    if not counted:
        return dict.fromkeys(CATEGORIES)
    fullest = max(counted, key=lambda memory: memory.allocated_bytes or 0)
    return {name: getattr(fullest, name) for name in CATEGORIES}


def _set_predicted_memory(
    row: RowFields,
    cell: Cell,
    sized: CellResult | None,
    alone: Sequence[CellResult],
    shards: Sequence[CellResult],
) -> None:
    """Predict the peak; also of a row that ran out of memory, from another one's model."""
    name = "predicted_memory_bytes"
    rank = sized.ranks[0] if sized is not None and sized.ranks else None
    if sized is None or rank is None or rank.num_parameters is None:
        row.set(name, None, "no launch of this row succeeded")
        return
    if isinstance(cell.strategy, Script):
        row.set(name, None, "how a user's script divides its memory is not known")
        return
    if isinstance(cell.strategy, WithoutLockstep):
        row.set(name, None, "what training without lockstep keeps besides is not predicted")
        return
    if isinstance(cell.strategy, Pipeline):
        _set_predicted_memory_of_pipeline(row, cell.strategy, cell, sized, alone)
        return
    if isinstance(cell.strategy, Grouped) and cell.world_size > 1:
        peaks = [peak_memory_of(shard) for shard in shards]
        peak = max((peak for peak in peaks if peak is not None), default=None)
        row.set(name, peak, NO_SHARD)
        return
    predicted = predict_memory(
        cell.strategy,
        rank.num_parameters,
        cell.rank_batch,
        rank.facts.get("optimizer"),
        _baseline(cell.strategy, alone),
        cell.world_size,
        rank.facts.get("group_elements"),
    )
    row.set(name, predicted.total_bytes, predicted.reason or "not predictable")


def _set_memory_by_axis(
    row: RowFields,
    inspection: CellResult | None,
    result: CellResult | None,
    alone: Sequence[CellResult],
    shards: Sequence[CellResult],
) -> None:
    """Set what each axis of a mesh takes off the peak of one process."""
    name = "memory_by_axis"
    baseline = None if result is None else _baseline(result.cell.strategy, alone)
    try:
        row.values[name] = memory_by_axis(result, inspection, baseline, shards)
    except Unavailable as reason:
        row.set(name, None, str(reason))


def _set_predicted_memory_of_pipeline(
    row: RowFields,
    strategy: Pipeline,
    cell: Cell,
    sized: CellResult,
    alone: Sequence[CellResult],
) -> None:
    """Predict the peak of the fullest rank; its layers were counted by a launch like the row's."""
    name = "predicted_memory_bytes"
    if sized.cell.strategy != strategy or sized.cell.rank_batch != cell.rank_batch:
        row.set(name, None, "no launch counted the layers with microbatches of this size")
        return
    try:
        predicted = predict_pipeline_memory(
            strategy,
            layers_of(sized.ranks[0].facts),
            cell.world_size,
            cell.rank_batch,
            sized.ranks[0].facts.get("optimizer"),
            _baseline(strategy, alone),
        )
    except (NoShape, ValueError) as reason:
        row.set(name, None, str(reason))
        return
    row.set(name, predicted.total_bytes, "not predictable")


def _set_predicted_traffic(row: RowFields, good: Mapping[int, CellResult]) -> None:
    name = "predicted_wire_bytes"
    result = next(iter(good.values()), None)
    num_parameters = None if result is None else result.ranks[0].num_parameters
    if result is None or num_parameters is None:
        row.set(name, None, "no launch of this row succeeded")
        return
    cell, groups = result.cell, result.ranks[0].facts.get("group_elements")
    if isinstance(cell.strategy, Grouped):
        _set_predicted_traffic_of_group(row, cell.strategy, result)
        return
    predicted = predict_traffic(cell.strategy, num_parameters, cell.world_size, groups)
    total = None if predicted is None else round(predicted.total_bytes)
    row.set(name, total, f"there is no law for the traffic of {cell.strategy.kind}")


def _set_predicted_traffic_of_group(row: RowFields, strategy: Grouped, result: CellResult) -> None:
    by_axis = predicted_wire_bytes(result)
    total = round(sum(by_axis.values())) if by_axis or result.cell.world_size == 1 else None
    reason = why_no_group_law(strategy) or "no step has shown what is divided"
    row.set("predicted_wire_bytes", total, reason)


def _baseline(strategy: Strategy, alone: Sequence[CellResult]) -> MeasuredBaseline | None:
    """Return the first launch that has the strategy's activations; else the first, to say why."""
    found = [
        MeasuredBaseline(result.cell.strategy, result.cell.rank_batch, result.ranks[0].memory)
        for result in alone
        if result.ranks
    ]
    fit = (baseline for baseline in found if why_unfit(strategy, baseline) is None)
    return next(fit, found[0] if found else None)


def _set_energy(row: RowFields, good: Sequence[CellResult]) -> None:
    name = "energy_j_per_sample"
    if not good:
        row.set(name, None, "no launch of this row succeeded")
        return
    found = [energy_per_sample(result) for result in good]
    known = [energy.j_per_sample for energy in found if energy.j_per_sample is not None]
    reason = next((energy.reason for energy in found if energy.reason), "not measured")
    row.set(name, estimate_over_launches(known) if known else None, reason)


def _set_mfu(
    row: RowFields,
    inspection: CellResult | None,
    good: Sequence[CellResult],
    throughput: Estimate | None,
) -> None:
    ranks = inspection.ranks if inspection else ()
    flops = next((rank.flops_per_sample for rank in ranks if rank.flops_per_sample), None)
    row.set("flops_per_sample", flops, _why_no_flops(ranks))
    if not good or throughput is None:
        row.set("mfu", None, "no launch of this row succeeded")
        return
    if isinstance(good[0].cell.strategy, Script):
        row.set("mfu", None, row.reasons.get("flops_per_sample", "not known"))
        return
    trained = good[0].ranks
    device = str(trained[0].facts.get("device_name", "cpu"))
    by_format = _flops_by_format(good[0], flops or 1.0, _convolution_share(good[0].cell, ranks))
    peak = mixed_peak(by_format, device)
    if flops is None or peak is None:
        reasons = [why_no_peak(device, dtype) for dtype, amount in by_format.items() if amount]
        reason = next(filter(None, reasons), row.reasons.get("flops_per_sample"))
        row.set("mfu", None, reason or "not known")
        return
    row.set("mfu", throughput.scaled(mfu(flops, 1.0, _num_devices(trained), peak)), "not known")


def _convolution_share(cell: Cell, inspected: Sequence[RankRecord]) -> float:
    """Return how much of the FLOPs is in convolutions, 0 to 1; of old runs by the kind of model."""
    for rank in inspected:
        if rank.flops_per_sample and rank.convolution_flops_per_sample is not None:
            return rank.convolution_flops_per_sample / rank.flops_per_sample
    return 1.0 if cell.workload.kind == "cnn" else 0.0


def _flops_by_format(
    result: CellResult, flops: float, convolution_share: float
) -> dict[Dtype, float]:
    """Return number format → FLOPs: convolutions and matrix products have a setting each."""
    strategy, facts = result.cell.strategy, result.ranks[0].facts
    parts = {"convolution_tf32": convolution_share, "matmul_tf32": 1 - convolution_share}
    by_format: dict[Dtype, float] = {}
    for setting, share in parts.items():
        dtype = compute_dtype(strategy, bool(facts.get(setting)))
        by_format[dtype] = by_format.get(dtype, 0.0) + flops * share
    return by_format


def _why_no_flops(ranks: Sequence[RankRecord]) -> str:
    """Return why no FLOPs were counted: no reference ran, or no operator has a formula."""
    if not ranks:
        return "only the inspection launch counts FLOPs, and there was none"
    verified = ranks[0].verification
    if verified is not None and verified.status == "unverified" and verified.reason:
        return verified.reason
    return "torch's FLOP counter knows no operator of the model"


def _num_devices(ranks: Sequence[RankRecord]) -> int:
    """Return how many devices the ranks ran on; several ranks may share one."""
    named = {(rank.host, uuid) for rank in ranks if (uuid := rank.facts.get("device_uuid"))}
    return len(named) or len(ranks)
