"""How long a rank computes: as a run measured it here, or by a device's published peak."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from scalebench import units
from scalebench.analysis.rows.at_one_rank import StepAtOneRank, step_at_one_rank
from scalebench.analysis.rows.launches import Unavailable, grouped
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.device_peaks import Dtype, peak_flops
from scalebench.errors import unknown_name
from scalebench.records.summary import Row, Summary
from scalebench.search.candidates import PRECISIONS
from scalebench.search.choice import CHECKPOINTING_OF
from scalebench.search.devices.parameters import DeviceModel, Parameters
from scalebench.search.model import SearchModel, WholeModel
from scalebench.search.space import ComputeSpeed, Recomputing


class NoPlainRow(Exception):
    """A run that did not measure the plain model on one rank; the text says of which."""


def plain_rows(rows: Sequence[Row], workload: str) -> list[Row]:
    """Return the plain rows of a workload at one rank that were measured."""
    return [row for row in rows if _is_plain(row, workload)]


def _is_plain(row: Row, workload: str, checkpointing: bool | str = False) -> bool:
    return (
        (row.strategy, row.world_size, row.workload) == ("plain", 1, workload)
        and row.status == "ok"
        and row.step_s is not None
        and (row.strategy_settings.get("checkpointing") or False) == checkpointing
        and not row.strategy_settings.get("compile")
    )


def whole_model(run: StoredRun, summary: Summary, workload: str) -> WholeModel:
    """Return any workload by what a run measured of it.

    Raises:
        NoPlainRow: The run did not measure it plainly on one rank.
    """
    row = next(iter(plain_rows(summary.rows, workload)), None)
    if row is None or row.num_parameters is None:
        raise NoPlainRow(f"{run.paths.root} did not measure {workload} plainly on one rank")
    groups = max(
        (
            len(rank.facts.get("group_elements") or ())
            for launches in grouped(run).values()
            if launches.cell.workload.name == workload
            for result in launches.good.values()
            for rank in result.ranks
        ),
        default=0,
    )
    inner = max(1, groups - 1)  # the last is the root, with what is in no block
    return WholeModel.of(workload, row.num_parameters, inner, row.flops_per_sample)


def measured_speed(run: StoredRun, summary: Summary, model: SearchModel) -> ComputeSpeed:
    """Return how long a rank computes, seconds for each FLOP and each pass.

    Steps on several batches give ``t = a + k·batch``, both not negative; one batch gives k alone.
    The optimizer's part of ``a`` is what the trace of DDP on one rank shows behind the backward
    pass; the rest is what every microbatch costs. Contention, where ranks of the run shared the
    machine, lengthens all of it.

    Raises:
        NoPlainRow: The run has no such row.
    """
    rows = plain_rows(summary.rows, model.name)
    if not rows:
        raise NoPlainRow(f"{run.paths.root} did not measure {model.name} plainly on one rank")
    contention = _contention(summary.rows, model.name)
    update_s = _update_s(run, model.name)
    flop_s, pass_s = {}, 0.0
    for precision in PRECISIONS:
        mine = [row for row in rows if _is_in(row, precision)]
        steps = {row.rank_batch: row.step_s.value for row in mine if row.step_s is not None}
        if not steps:
            continue
        fixed_s, each_s = _line(steps, update_s)
        pass_s = max(pass_s, contention * max(fixed_s - update_s, 0.0))
        flop_s[precision] = contention * each_s / model.flops_per_sample
    device = _device_name(run)
    peaks = {name: peak_flops(device, name) for name in flop_s}  # type: ignore[arg-type]
    if isinstance(model, WholeModel) and not model.is_counted:
        peaks = {}
    axis_s = _machinery(summary.rows, model, flop_s, pass_s, update_s, contention)
    return ComputeSpeed(
        flop_s=flop_s,
        pass_s=pass_s,
        update_s=contention * update_s,
        described=_described(run, rows, contention),
        axis_s=axis_s,
        recomputing=_recomputing(summary.rows, model, flop_s, contention),
        peak_flops={name: peak for name, peak in peaks.items() if peak},
    )


AXIS_OF = {"fsdp": "shard", "tensor": "tensor", "mesh": "tensor", "context": "context",
           "expert": "expert", "pipeline": "pipeline"}  # fmt: skip
"""Kind of strategy → the axis whose machinery it has also on one rank, where it sends nothing."""


def _machinery(
    rows: Sequence[Row],
    model: SearchModel,
    flop_s: Mapping[str, float],
    pass_s: float,
    update_s: float,
    contention: float,
) -> dict[str, float]:
    """Return what each axis costs a rank apart from its messages, by its strategy on one rank.

    The strategy's step less the plain model's on the same batch, for each microbatch; for pipelines
    for each microbatch and stage. The median over its rows.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        axis = AXIS_OF.get(row.strategy)
        if axis is None or row.world_size != 1 or row.workload != model.name or not row.step_s:
            continue
        if row.status != "ok" or row.strategy_settings.get("checkpointing"):
            continue
        precision = next(name for name in PRECISIONS if _is_in(row, name))
        if precision not in flop_s:
            continue
        settings = row.strategy_settings
        m = int(settings.get("microbatches") or 1) if axis == "pipeline" else 1
        v = int(settings.get("chunks") or 1) if axis == "pipeline" else 1
        plain = row.rank_batch * model.flops_per_sample * flop_s[precision] + m * pass_s
        more = contention * row.step_s.value - plain - update_s * contention
        found.setdefault(axis, []).append(max(more, 0.0) / (m * v))
    return {axis: float(np.median(values)) for axis, values in found.items()}


def _recomputing(
    rows: Sequence[Row], model: SearchModel, flop_s: Mapping[str, float], contention: float
) -> dict[str, Recomputing]:
    """Return what each checkpointing was measured to take, by the plain model with and without it.

    The step with it less the step without, on the same batch: ``a + k·batch``, both not negative;
    one batch gives k alone.
    """
    usual = {(r.rank_batch, _is_in(r, "bfloat16")): r for r in plain_rows(rows, model.name)}
    found = {}
    for name, checkpointing in CHECKPOINTING_OF.items():
        samples, plain_s, more_s = [], [], []
        for row in rows:
            same = usual.get((row.rank_batch, _is_in(row, "bfloat16")))
            if not checkpointing or not _is_plain(row, model.name, checkpointing) or not same:
                continue
            precision = next(p for p in PRECISIONS if _is_in(row, p))
            if row.step_s is None or same.step_s is None or precision not in flop_s:
                continue
            forward_s = flop_s[precision] * model.flops_per_sample / 3
            samples.append(row.rank_batch * forward_s)
            plain_s.append(same.step_s.value)
            more_s.append(contention * (row.step_s.value - same.step_s.value))
        if samples:
            found[name] = _recomputing_line(samples, plain_s, more_s)
    return found


def _recomputing_line(
    forward_s: Sequence[float], plain_s: Sequence[float], more_s: Sequence[float]
) -> Recomputing:
    """Return the line through what steps take more, each with the error of its plain step."""
    weight, x, y = 1 / np.array(plain_s), np.array(forward_s), np.array(more_s)
    columns = [x] if len(set(forward_s)) == 1 else [x, np.ones(len(x))]
    found, _ = nnls(np.column_stack(columns) * weight[:, None], y * weight)
    return Recomputing(*(float(value) for value in found))


def _is_in(row: Row, precision: str) -> bool:
    return (row.strategy_settings.get("autocast") or False) is (precision == "bfloat16")


def _line(steps: Mapping[int, float], update_s: float) -> tuple[float, float]:
    """Return what a step costs at any batch, and what each sample adds, seconds."""
    x, y = np.array(list(steps), dtype=float), np.array(list(steps.values()))
    if len(steps) == 1:
        fixed = min(update_s, y[0] / 2)
        return float(fixed), float((y[0] - fixed) / x[0])
    (fixed, each), _ = nnls(np.column_stack((1 / y, x / y)), np.ones(len(x)))
    return float(fixed), float(each)


def _update_s(run: StoredRun, workload: str) -> float:
    """Return the optimizer's part of a step on one rank, seconds; 0: no trace shows it."""
    for (_, _, world_size), launches in grouped(run).items():
        cell = launches.cell
        if world_size == 1 and cell.strategy.kind == "ddp" and cell.workload.name == workload:
            try:
                found = step_at_one_rank(launches)
            except Unavailable:
                continue
            if isinstance(found, StepAtOneRank):
                return found.shape.fixed_s
    return 0.0


def _contention(rows: Sequence[Row], workload: str) -> float:
    known = [
        (row.world_size, row.prediction.contention)
        for row in rows
        if row.workload == workload and row.prediction and row.prediction.contention
    ]
    return max(known, default=(1, 1.0))[1]


def _device_name(run: StoredRun) -> str:
    devices = run.info.environment.get("devices") or []
    on_gpu = run.info.spec.device == "cuda" and devices
    return str(devices[0].get("name", "")) if on_gpu else "cpu"


def _described(run: StoredRun, rows: Sequence[Row], contention: float) -> str:
    batches = sorted({row.rank_batch for row in rows})
    samples = " and ".join(map(str, batches))
    said = f"one rank, measured in run {run.info.run_id} on {samples} samples a step"
    if abs(contention - 1) >= 0.0005:
        said += f"; ranks that compute at once take {contention:.2f} times as long"
    return said


class DeviceType(NamedTuple):
    """A device as it is sold.

    Attributes:
        name: As `device_peaks` knows it.
        memory_bytes: By its data sheet, as the next two.
        memory_byte_per_s: Bandwidth of its memory.
        units: Streaming multiprocessors; compute units.
        topology: The machine that it is usually sold in; None: there is no usual one.
    """

    name: str
    memory_bytes: int
    memory_byte_per_s: float
    units: int
    topology: str | None = None


GB = 10**9
DEVICE_TYPES: Mapping[str, DeviceType] = {
    "v100": DeviceType("V100-SXM2-32GB", 32 * GB, 900e9, 80),
    "a100": DeviceType("A100-SXM4-80GB", 80 * GB, 2039e9, 108, "dgx-a100"),
    "a100-40gb": DeviceType("A100-SXM4-40GB", 40 * GB, 1555e9, 108, "dgx-a100"),
    "h100": DeviceType("H100 80GB HBM3", 80 * GB, 3350e9, 132, "dgx-h100"),
    "h200": DeviceType("H200", 141 * GB, 4800e9, 132, "dgx-h100"),
    "b200": DeviceType("B200", 180 * GB, 8000e9, 148, "dgx-b200"),
    "b300": DeviceType("B300 SXM6 AC", 270 * GB, 7700e9, 148, "dgx-b300"),
    "gb200": DeviceType("GB200", 186 * GB, 8000e9, 152, "gb200-nvl72"),
    "gb300": DeviceType("GB300", 279 * GB, 8000e9, 152, "gb300-nvl72"),
    "l40s": DeviceType("L40S", 48 * GB, 864e9, 142, "pcie4-8x-ethernet-100g"),
    "a10": DeviceType("A10", 24 * GB, 600e9, 72, "pcie4-4x-ethernet-25g"),
    "mi300x": DeviceType("Instinct MI300X", 192 * GB, 5300e9, 304),
}
"""``--gpu-type`` → the device."""


def short_name(device: str) -> str:
    """Return a device's name as ``--gpu-type`` has it; any other in lower case."""
    name = device.lower()
    for short in DEVICE_TYPES:
        if re.search(rf"(?<![a-z]){short}(?![0-9])", name):
            other = re.search(r"pcie|nvl\b|40gb", name)  # another memory, another peak
            return f"{short}-{other[0]}" if other else short
    return name


def device_type(name: str) -> DeviceType:
    """Return a device by its name; raises UsageError with the valid short ones."""
    short = short_name(name)
    if short not in DEVICE_TYPES:
        raise unknown_name("GPU type", short, DEVICE_TYPES)
    return DEVICE_TYPES[short]


def assumed_speed(device: DeviceType, efficiency: float) -> ComputeSpeed:
    """Return the speed of a device at a part of its published dense peak.

    Args:
        device: Which.
        efficiency: Part of the peak that a rank reaches while it computes; what it recomputes
            counts as work here.
    """
    known = {name: peak_flops(device.name, name) for name in PRECISIONS}  # type: ignore[arg-type]
    peaks = {name: peak for name, peak in known.items() if peak}
    shown = ", ".join(f"{units.significant(p / 1e12)} TFLOP/s {n}" for n, p in peaks.items())
    return ComputeSpeed(
        flop_s={name: 1 / (efficiency * peak) for name, peak in peaks.items()},
        pass_s=0.0,
        update_s=0.0,
        described=f"assumed, not measured: {device.name} computes at {100 * efficiency:g} % of its "
        f"published peak ({shown}); starting operators and the optimizer are in that",
        peak_flops=peaks,
    )


FORMATS: tuple[Dtype, ...] = ("bfloat16", "float16", "fp8", "fp4")


def modelled_speed(device: DeviceType, values: Parameters, described: str) -> ComputeSpeed:
    """Return the speed of a device operator by operator.

    Args:
        device: Which.
        values: What its data sheet does not say.
        described: Where these are from.
    """
    peaks = {name: peak for name in FORMATS if (peak := peak_flops(device.name, name))}
    half = peaks.get("bfloat16") or peaks["float16"]
    narrow = peaks.get("fp8", half)
    formats = {"bfloat16": half, "fp8": narrow, "fp4": peaks.get("fp4", narrow)}
    model = DeviceModel(formats, device.memory_byte_per_s, device.units, values)
    usual = 1 / (values.matrix_efficiency * half)
    return ComputeSpeed(
        flop_s={"bfloat16": usual},
        pass_s=0.0,
        update_s=0.0,
        described=described,
        peak_flops={"bfloat16": half},
        device=model,
    )
