"""Devices that are not here: published peaks times an efficiency that the user states."""

from collections.abc import Mapping
from typing import NamedTuple

from scalebench import units
from scalebench.costmodel.device_peaks import peak_flops
from scalebench.costmodel.search.job import PRECISIONS, ComputeSpeed
from scalebench.errors import unknown_name


class DeviceType(NamedTuple):
    """A device as it is sold.

    Attributes:
        name: As `device_peaks` knows it.
        memory_bytes: By its data sheet.
        topology: The machine that it is usually sold in; None: there is no usual one.
    """

    name: str
    memory_bytes: int
    topology: str | None = None


GB = 10**9
DEVICE_TYPES: Mapping[str, DeviceType] = {
    "v100": DeviceType("V100-SXM2-32GB", 32 * GB),
    "a100": DeviceType("A100-SXM4-80GB", 80 * GB, "dgx-a100"),
    "a100-40gb": DeviceType("A100-SXM4-40GB", 40 * GB, "dgx-a100"),
    "h100": DeviceType("H100 80GB HBM3", 80 * GB, "dgx-h100"),
    "h200": DeviceType("H200", 141 * GB, "dgx-h100"),
    "b200": DeviceType("B200", 180 * GB, "dgx-b200"),
    "l40s": DeviceType("L40S", 48 * GB, "pcie4-8x-ethernet-100g"),
    "a10": DeviceType("A10", 24 * GB, "pcie4-4x-ethernet-25g"),
    "mi300x": DeviceType("Instinct MI300X", 192 * GB),
}
"""``--gpu-type`` → the device."""


def device_type(name: str) -> DeviceType:
    """Return a device by its short name; raises UsageError with the valid ones."""
    if name.lower() not in DEVICE_TYPES:
        raise unknown_name("GPU type", name, DEVICE_TYPES)
    return DEVICE_TYPES[name.lower()]


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
        told=f"assumed, not measured: {device.name} computes at {100 * efficiency:g} % of its "
        f"published peak ({shown}); starting operators and the optimizer are in that",
        peak_flops=peaks,
    )
