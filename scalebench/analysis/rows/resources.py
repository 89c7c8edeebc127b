"""What a row used: memory, traffic by its strategy's law, energy, and the device's arithmetic.

Energy per sample, from what NVML told while the clean steps ran.

NVML's counter moves in steps (every 20 ms to 100 ms, by generation), so a window's ends are known
no better than that: only windows of 2 s and more are used, in which it moved at least ten times.
Without a counter power is integrated, which is less: newer devices give the mean of the last
second, and some sample a quarter of the time (Yang, Adamek & Armour 2023, "Part-time power
measurements"; ``nvmlDeviceGetPowerUsage`` in NVML's reference). ``source`` tells which it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.rows.at_one_rank import NO_SHARD
from scalebench.analysis.rows.axes import memory_by_axis, predicted_wire_bytes
from scalebench.analysis.rows.launches import (
    NO_LAUNCH,
    Context,
    Fields,
    Launches,
    Unavailable,
    found_by,
    known,
)
from scalebench.analysis.shapes import layers_of
from scalebench.analysis.validity import Window, clean_windows, used_devices
from scalebench.costmodel.device_peaks import Dtype, compute_dtype, mfu, mixed_peak, why_no_peak
from scalebench.costmodel.group_steps import why_no_group_law
from scalebench.costmodel.memory import MeasuredBaseline, predict_memory, why_unfit
from scalebench.costmodel.sharding import predict_traffic
from scalebench.costmodel.stage_split import predict_pipeline_memory
from scalebench.grouping import totals
from scalebench.records.measured.rank import Memory, RankRecord
from scalebench.records.measured.trace import DeviceTrack
from scalebench.records.rows.strategies import MemoryByAxis
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Grouped, Pipeline, Script, Strategy, WithoutLockstep
from scalebench.spec.suites import ENERGY_WINDOW_S
from scalebench.stats import Estimate, estimate_over_launches

MIN_UPDATES = 10
MAX_GAP_S = 1.0

Source = Literal["counter", "power"]
Series = NDArray[np.float64]
KINDS = ("allocated_bytes", "reserved_bytes", "device_bytes", "rss_bytes")
"""Memory that every launch counts; the largest of all ranks is told."""

CATEGORIES = (
    *("parameters_bytes", "gradients_bytes", "optimizer_bytes", "communication_bytes"),
    *("data_bytes", "activations_bytes"),
)
"""Memory that the inspecting launch tells apart; one rank's are told, so that they sum."""


@dataclass(frozen=True)
class Energy:
    """Joules per sample, or why there are none.

    Attributes:
        j_per_sample: Sum over the devices used; None: see ``reason``.
        source: ``counter``: the devices' own energy counters (measured); ``power``: power was
            integrated for at least one device (derived).
        reason: Why it is null.
    """

    j_per_sample: float | None = None
    source: Source | None = None
    reason: str | None = None


def energy_per_sample(result: CellResult) -> Energy:
    """Return the energy of the GPUs over the clean windows, per sample of the job.

    Everything that the devices used between the first and the last step of a window counts,
    the first step of each block and the ranks' agreement between blocks included.
    """
    devices = used_devices(result)
    if isinstance(devices, str):
        return Energy(reason=devices)
    windows = clean_windows(result)
    if not windows:
        return Energy(
            reason="the clean steps are the last of the warm-up; energy needs "
            f"{ENERGY_WINDOW_S:g} s of steps after it: leave out --quick, --steps and --precision"
        )
    long_enough = [window for window in windows if window.length_s >= ENERGY_WINDOW_S]
    if not long_enough:
        longest = max(window.length_s for window in windows)
        return Energy(
            reason=f"the longest clean window is {longest:.2g} s; energy needs "
            f"{ENERGY_WINDOW_S:g} s, so leave out --quick, --steps and --precision"
        )
    samples = sum(window.num_steps for window in long_enough) * result.cell.global_batch
    joules = 0.0
    source: Source = "counter"
    for device in devices:
        energy = _device_energy(device, long_enough)
        if energy.reason is not None:
            return Energy(reason=f"{device.uuid}: {energy.reason}")
        joules += energy.joules
        source = "power" if energy.source == "power" else source
    return Energy(joules / samples, source)


@dataclass(frozen=True)
class _Joules:
    joules: float = 0.0
    source: Source = "counter"
    reason: str | None = None


def _device_energy(device: DeviceTrack, windows: Sequence[Window]) -> _Joules:
    """Return the energy of one device over the windows: by its counter, else by its power."""
    states, told = device.states, device.unavailable
    by_counter = _total([_counted(states.time_ns, states.energy_j, w) for w in windows])
    if not isinstance(by_counter, str):
        return _Joules(by_counter, "counter")
    by_power = _total([_integrated(states.time_ns, states.power_w, w) for w in windows])
    if not isinstance(by_power, str):
        return _Joules(by_power, "power")
    counter, power = told.get("energy_j", by_counter), told.get("power_w", by_power)
    return _Joules(reason=f"energy counter: {counter}; power: {power}")


def _total(parts: Sequence[float | str]) -> float | str:
    """Return the sum, or the first of the texts among the parts."""
    total = 0.0
    for part in parts:
        if isinstance(part, str):
            return part
        total += part
    return total


def _counted(
    time_ns: Sequence[int], energy_j: Sequence[float | None], window: Window
) -> float | str:
    """Return the joules that the counter advanced in a window, or why it does not tell."""
    known = _bracketing(time_ns, energy_j, window)
    if isinstance(known, str):
        return known
    times, values = known
    if np.any(np.diff(values) < 0):
        return "it went backwards: the driver was reloaded"
    num_updates = int(np.count_nonzero(np.diff(values)))
    if num_updates < MIN_UPDATES:
        return f"it changed {num_updates} times in the window; {MIN_UPDATES} are needed"
    ends = np.interp(_seconds([window.start_ns, window.end_ns], window), times, values)
    return float(ends[1] - ends[0])


def _integrated(
    time_ns: Sequence[int], power_w: Sequence[float | None], window: Window
) -> float | str:
    """Return the integral of power over a window in joules (trapezoids), or why there is none."""
    known = _bracketing(time_ns, power_w, window)
    if isinstance(known, str):
        return known
    times, values = known
    ends = _seconds([window.start_ns, window.end_ns], window)
    inside = times[(times > ends[0]) & (times < ends[1])]
    grid = np.concatenate((ends[:1], inside, ends[1:]))
    power = np.interp(grid, times, values)
    return float(np.sum(np.diff(grid) * (power[1:] + power[:-1]) / 2))


def _bracketing(
    time_ns: Sequence[int], values: Sequence[float | None], window: Window
) -> tuple[Series, Series] | str:
    """Return times (seconds from the window's start) and values around a window, nulls left out.

    The last reading before the window and the first one after it are included.
    """
    pairs = [(t, v) for t, v in zip(time_ns, values, strict=False) if v is not None]
    if not pairs:
        return "not read"
    times = _seconds([t for t, _ in pairs], window)
    known = np.array([v for _, v in pairs], dtype=float)
    first = int(np.searchsorted(times, 0.0, side="right")) - 1
    last = int(np.searchsorted(times, window.length_s, side="left"))
    if first < 0 or last >= len(times):
        return "the readings do not cover the whole window"
    times, known = times[first : last + 1], known[first : last + 1]
    if np.max(np.diff(times)) > MAX_GAP_S:
        return f"there was no reading for more than {MAX_GAP_S:g} s of the window"
    return times, known


def _seconds(time_ns: Sequence[int], window: Window) -> Series:
    """Return times as seconds from the window's start; exact, because differences are small."""
    return np.array([t - window.start_ns for t in time_ns], dtype=float) / 1e9


def memory_of_row(row: Launches, run: Context) -> Fields:
    """Return what a row's ranks kept, and the memory and traffic that its strategy's laws say."""
    base, own = run.baseline(row), run.at_one_rank(row)
    others = [one for one in (base, own if row.cell.world_size > 1 else None) if one is not None]
    alone = [one.inspection for one in others if one.inspection is not None]
    first = next(iter(row.good.values()), None)
    sized = first or (_sized(own, base) if row.measured or row.inspection else None)
    inspected = [row.inspection] if row.inspection else []
    memories = [r.memory for result in (*inspected, *row.good.values()) for r in result.ranks]
    told = {kind: _largest(memories, kind) for kind in KINDS}
    return {
        "memory": told | _categories(row.inspection),
        "peak_memory_bytes": known(told["allocated_bytes"], _why_no_peak(row)),
        "predicted_memory_bytes": found_by(predicted_peak, row.cell, sized, alone, row.shards),
        "memory_by_axis": found_by(_by_axis, row, first, alone),
        "predicted_wire_bytes": found_by(_predicted_traffic, first),
    }


def _sized(*others: Launches | None) -> CellResult | None:
    """Return a launch of another row that knows how large the model is."""
    good = (result for other in others if other is not None for result in other.good.values())
    return next(good, None)


def _why_no_peak(row: Launches) -> str:
    if row.good and isinstance(row.cell.strategy, Script):
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


def predicted_peak(
    cell: Cell,
    sized: CellResult | None,
    alone: Sequence[CellResult],
    shards: Sequence[CellResult] = (),
) -> int:
    """Predict the peak; also of a row that ran out of memory, from another one's model.

    ``sized`` knows the model's size: it is a launch of the row, where one succeeded. ``alone``:
    inspecting launches of one rank, whose activations predictions start from: the plain baseline's,
    then the strategy's own.

    Raises:
        Unavailable: It is not predictable; the text says why.
    """
    rank, strategy = sized.ranks[0] if sized is not None and sized.ranks else None, cell.strategy
    if sized is None or rank is None or rank.num_parameters is None:
        raise Unavailable(NO_LAUNCH)
    if isinstance(strategy, Script):
        raise Unavailable("how a user's script divides its memory is not known")
    if isinstance(strategy, WithoutLockstep):
        raise Unavailable("what training without lockstep keeps besides is not predicted")
    baseline, optimizer = _baseline(strategy, alone), rank.facts.get("optimizer")
    if isinstance(strategy, Pipeline):
        # Its layers were counted by a launch like the row's.
        if sized.cell.strategy != strategy or sized.cell.rank_batch != cell.rank_batch:
            raise Unavailable("no launch counted the layers with microbatches of this size")
        try:
            layers = layers_of(rank.facts)
            predicted = predict_pipeline_memory(
                strategy, layers, cell.world_size, cell.rank_batch, optimizer, baseline
            )
        except ValueError as reason:
            raise Unavailable(str(reason)) from reason
    elif isinstance(strategy, Grouped) and cell.world_size > 1:
        peaks = [peak for shard in shards if (peak := peak_memory_of(shard)) is not None]
        if not peaks:
            raise Unavailable(NO_SHARD)
        return max(peaks)
    else:
        predicted = predict_memory(
            strategy,
            rank.num_parameters,
            cell.rank_batch,
            optimizer,
            baseline,
            cell.world_size,
            rank.facts.get("group_elements"),
        )
    if predicted.total_bytes is None:
        raise Unavailable(predicted.reason or "not predictable")
    return predicted.total_bytes


def _by_axis(row: Launches, result: CellResult | None, alone: Sequence[CellResult]) -> MemoryByAxis:
    """Return what each axis of a mesh takes off the peak of one process; raises Unavailable."""
    baseline = None if result is None else _baseline(result.cell.strategy, alone)
    return memory_by_axis(result, row.inspection, baseline, row.shards)


def _predicted_traffic(result: CellResult | None) -> int:
    """Return the bytes that a rank sends in a step by the strategy's law; raises Unavailable."""
    num_parameters = None if result is None else result.ranks[0].num_parameters
    if result is None or num_parameters is None:
        raise Unavailable(NO_LAUNCH)
    cell, groups = result.cell, result.ranks[0].facts.get("group_elements")
    if isinstance(cell.strategy, Grouped):
        by_axis = predicted_wire_bytes(result)
        if not by_axis and cell.world_size > 1:
            why = why_no_group_law(cell.strategy)
            raise Unavailable(why or "no step has shown what is divided")
        return round(sum(by_axis.values()))
    predicted = predict_traffic(cell.strategy, num_parameters, cell.world_size, groups)
    if predicted is None:
        raise Unavailable(f"there is no law for the traffic of {cell.strategy.kind}")
    return round(predicted.total_bytes)


def _baseline(strategy: Strategy, alone: Sequence[CellResult]) -> MeasuredBaseline | None:
    """Return the first launch that has the strategy's activations; else the first, to say why."""
    found = [
        MeasuredBaseline(result.cell.strategy, result.cell.rank_batch, result.ranks[0].memory)
        for result in alone
        if result.ranks
    ]
    fit = (baseline for baseline in found if why_unfit(strategy, baseline) is None)
    return next(fit, found[0] if found else None)


def energy_of_row(row: Launches, _: Context) -> Fields:
    """Return what a sample took of the GPUs."""
    found = [energy_per_sample(result) for result in row.good.values()]
    joules = [energy.j_per_sample for energy in found if energy.j_per_sample is not None]
    reason = next((energy.reason for energy in found if energy.reason), "not measured")
    estimate = estimate_over_launches(joules) if joules else None
    return {"energy_j_per_sample": known(estimate, reason if found else NO_LAUNCH)}


def mfu_of_row(row: Launches, _: Context) -> Fields:
    """Return the model's arithmetic, and what part it is of what the devices can do."""
    ranks = row.inspection.ranks if row.inspection else ()
    flops = next((rank.flops_per_sample for rank in ranks if rank.flops_per_sample), None)
    why = _why_no_flops(ranks) if flops is None else "not known"
    return {"flops_per_sample": known(flops, why), "mfu": found_by(_mfu, row, flops, why)}


def _mfu(row: Launches, flops: float | None, why_no_flops: str) -> Estimate:
    """Return achieved FLOP/s over the devices' peak; raises Unavailable."""
    first = next(iter(row.good.values()), None)
    if first is None or row.throughput is None:
        raise Unavailable(NO_LAUNCH)
    if isinstance(first.cell.strategy, Script):
        raise Unavailable(why_no_flops)
    device = str(first.ranks[0].facts.get("device_name", "cpu"))
    inspected = row.inspection.ranks if row.inspection else ()
    convolutions = _convolution_share(first.cell, inspected)
    by_format = _flops_by_format(first, flops or 1.0, convolutions)
    peak = mixed_peak(by_format, device)
    if flops is None or peak is None:
        reasons = [why_no_peak(device, dtype) for dtype, amount in by_format.items() if amount]
        raise Unavailable(next(filter(None, reasons), why_no_flops))
    return row.throughput.scaled(mfu(flops, 1.0, _num_devices(first.ranks), peak))


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
    return totals(
        (compute_dtype(strategy, bool(facts.get(setting))), flops * share)
        for setting, share in parts.items()
    )


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
