"""A device from facts: its data sheet, and what no data sheet says, with bounds and sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scalebench.search.candidates import Floats


class Parameters(NamedTuple):
    """By what a device and its links differ from their data sheets; meanings in `PARAMETERS`."""

    matrix_efficiency: float
    narrow_efficiency: float
    attention_efficiency: float
    memory_efficiency: float
    kernel_s: float
    launch_s: float
    inside: float
    across: float
    decline: float
    network_s: float
    collective_s: float
    hop_s: float
    skew: float
    overlap: float
    step_s: float


class Parameter(NamedTuple):
    """One number.

    Attributes:
        default: Where nothing was measured.
        low: Least that a fit may find.
        high: Most.
        spread: Standard deviation of its logarithm from one system to the next.
        meaning: In words.
        source: Of the default.
    """

    default: float
    low: float
    high: float
    spread: float
    meaning: str
    source: str


FIELD = "chosen on published rows (docs/predictions.md)"
BANDWIDTHS = "bus bandwidths on 1 to 64 nodes of 8 H100 (Ultra-Scale Playbook, 2025)"

PARAMETERS: Mapping[str, Parameter] = {
    "matrix_efficiency": Parameter(
        0.65, 0.2, 1.0, 0.12, "part of its peak in the largest matrix products", "see DEVICES"
    ),
    "narrow_efficiency": Parameter(
        1.0, 0.3, 1.5, 0.5, "the same in 8 or 4 bits, over that in 16", "cuBLAS's FP8 products"
    ),
    "attention_efficiency": Parameter(
        0.5, 0.1, 1.2, 0.4, "the same in attention, over that of products", "see DEVICES"
    ),
    "memory_efficiency": Parameter(
        0.8, 0.15, 1.0, 0.3, "part of its memory's bandwidth", "STREAM on NVIDIA devices"
    ),
    "kernel_s": Parameter(
        5e-6, 5e-7, 3e-5, 0.8, "device time that an operator takes besides", "CUDA's launch gaps"
    ),
    "launch_s": Parameter(
        3e-5, 2e-6, 1.5e-4, 0.3, "host time to start an operator", f"vTrain: {FIELD}"
    ),
    "inside": Parameter(
        0.6, 0.1, 1.0, 0.3, "part of the nominal bandwidth in a node", BANDWIDTHS
    ),
    "across": Parameter(
        0.8, 0.05, 1.2, 0.5, "part of the nominal bandwidth between two nodes", BANDWIDTHS
    ),
    "decline": Parameter(
        0.15, 0.01, 1.0, 0.7, "power of nodes by which that bandwidth falls", BANDWIDTHS
    ),
    "network_s": Parameter(
        2e-5, 3e-6, 2e-3, 1.5, "latency of a message between nodes", "NCCL's tuning table"
    ),
    "collective_s": Parameter(
        2e-5, 2e-6, 2e-4, 0.7, "to start a collective", "NCCL's tuning table"
    ),
    "hop_s": Parameter(
        2e-4, 1e-5, 1.0, 1.2, "host time to hand a microbatch on between stages", f"vTrain: {FIELD}"
    ),
    "skew": Parameter(
        0.5, 1e-3, 1.0, 0.7,
        "how much later operators start for each further rank of a tensor group that sends to "
        "other nodes", f"nanotron: {FIELD}",
    ),
    "overlap": Parameter(
        0.8, 0.1, 1.0, 0.3, "part of a pass behind which gathers and gradients hide", FIELD
    ),
    "step_s": Parameter(
        5e-3, 1e-4, 0.5, 1.0, "what every step costs besides", f"vTrain: {FIELD}"
    ),
}  # fmt: skip
"""Of which systems differ; each has a meaning, bounds and a source."""

OF_DEVICE = ("matrix_efficiency", "narrow_efficiency", "attention_efficiency")
"""What differs from one kind of device to the next in one table; all else is its system's."""

DEVICES: Mapping[str, Mapping[str, float]] = {
    "a100": {"matrix_efficiency": 0.8, "attention_efficiency": 0.6},
    "h100": {"matrix_efficiency": 0.65, "attention_efficiency": 0.4},
    "h200": {"matrix_efficiency": 0.65, "attention_efficiency": 0.4},
}
"""Device → its defaults: cuBLAS reaches 250 of 312 and 640 to 700 of 989.5 TFLOP/s; Dao 2023
(FlashAttention-2, §4.1) 180 to 225 on A100; on H100 370 forward without a mask (Shah et al. 2024,
figure 5), less with one and backward."""


def defaults(device: str) -> Parameters:
    """Return the defaults of a device, by its short name without the size of its memory."""
    own = DEVICES.get(device, {})
    return Parameters(**{n: own.get(n, p.default) for n, p in PARAMETERS.items()})


def chip(gpu: str) -> str:
    """Return a device's short name without the size of its memory."""
    return gpu.split("-")[0]


UPDATE_BYTES = 30.0
"""Moved for each parameter by AdamW: 32-bit weights, gradients and moments, and 16-bit weights."""


@dataclass(frozen=True)
class DeviceModel:
    """A device.

    Attributes:
        peaks: Format → published dense FLOP/s.
        memory_byte_per_s: Published bandwidth of its memory.
        units: Multiprocessors.
        values: What the published figures are multiplied with, and costs in seconds.
    """

    peaks: dict[str, float]
    memory_byte_per_s: float
    units: int
    values: Parameters

    def update_s(self, parameters: Floats) -> Floats:
        """Return the optimizer's step on so many parameters, and what every step costs, s."""
        moved = UPDATE_BYTES * parameters / self.memory_byte_per_s
        return moved / self.values.memory_efficiency + self.values.step_s
