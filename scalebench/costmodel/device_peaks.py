"""Dense peaks of devices by name and number format, and the utilisation they allow to state.

MFU, model FLOPs utilisation, is achieved over peak FLOP/s (Chowdhery et al. 2022, "PaLM",
appendix B). The peaks are those that the makers print for dense matrices; where a document
prints the figure with 2:4 sparsity only, it is halved. Sixteen-bit formats are taken with
32-bit accumulation, as training does it, and FP8 likewise.

A name is matched whole: a variant not listed (a laptop chip, a slice of a device, a part for one
country or one customer) has another clock or other units, so it has no peak here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scalebench.spec import Execution

Dtype = Literal["float32", "tf32", "float16", "bfloat16", "fp8"]
TERA = 1e12


@dataclass(frozen=True)
class Peaks:
    """One device.

    Attributes:
        pattern: Regular expression for the whole name, as the driver gives it, after the maker.
        tera: Number format → dense TFLOP/s. A format that is missing has no matrix units, or the
            maker's documents disagree about it.
        source: The maker's document.
    """

    pattern: str
    tera: Mapping[Dtype, float]
    source: str


def _tensor_cores(
    float32: float | None, tf32: float | None, sixteen: float, fp8: float | None = None
) -> dict[Dtype, float]:
    """Return the formats of a device whose two sixteen-bit formats are equally fast."""
    every: dict[Dtype, float | None] = {
        "float32": float32,
        "tf32": tf32,
        "float16": sixteen,
        "bfloat16": sixteen,
        "fp8": fp8,
    }
    return {dtype: value for dtype, value in every.items() if value is not None}


DEVICES = (
    Peaks(
        r"(Tesla )?V100-SXM2-(16|32)GB",
        {"float32": 15.7, "float16": 125},
        "NVIDIA V100 datasheet (2020), V100 SXM2",
    ),
    Peaks(
        r"(Tesla )?V100-PCIE-(16|32)GB",
        {"float32": 14, "float16": 112},
        "NVIDIA V100 datasheet (2020), V100 PCIe",
    ),
    Peaks(
        r"(Tesla )?V100S-PCIE-32GB",
        {"float32": 16.4, "float16": 130},
        "NVIDIA V100 datasheet (2020), V100S PCIe",
    ),
    Peaks(r"(Tesla )?T4", {"float32": 8.1, "float16": 65}, "NVIDIA T4 datasheet (2019)"),
    Peaks(
        r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe",
        _tensor_cores(19.5, 156, 312),
        "NVIDIA A100 datasheet (2021); the same for 40 and 80 GB, PCIe and SXM",
    ),
    Peaks(r"A10", _tensor_cores(31.2, 62.5, 125), "NVIDIA A10 datasheet (2021)"),
    Peaks(r"A30", _tensor_cores(10.3, 82, 165), "NVIDIA A30 datasheet (2022)"),
    Peaks(r"A40", _tensor_cores(37.4, 74.8, 149.7), "NVIDIA A40 datasheet (2021)"),
    Peaks(
        r"L4",
        _tensor_cores(30.3, 120 / 2, 242 / 2, 485 / 2),
        "NVIDIA L4 datasheet (2023), printed with sparsity",
    ),
    Peaks(r"L40", _tensor_cores(90.5, 90.5, 181.05, 362), "NVIDIA L40 datasheet (2023)"),
    Peaks(r"L40S", _tensor_cores(91.6, 183, 362.05, 733), "NVIDIA L40S datasheet (2023)"),
    Peaks(
        r"H100 80GB HBM3",
        _tensor_cores(67, 989 / 2, 1979 / 2, 3958 / 2),
        "NVIDIA H100 datasheet (2023), H100 SXM, printed with sparsity",
    ),
    Peaks(
        r"H100 PCIe",
        _tensor_cores(51, 756 / 2, 1513 / 2, 3026 / 2),
        "NVIDIA H100 datasheet (2023), H100 PCIe, printed with sparsity",
    ),
    Peaks(
        r"H100 NVL",
        _tensor_cores(60, 835 / 2, 1671 / 2, 3341 / 2),
        "NVIDIA H100 datasheet (2024), H100 NVL, one GPU, printed with sparsity",
    ),
    Peaks(
        r"H200",
        _tensor_cores(67, 989 / 2, 1979 / 2, 3958 / 2),
        "NVIDIA H200 datasheet (2024), H200 SXM, printed with sparsity",
    ),
    Peaks(
        r"H200 NVL",
        _tensor_cores(60, 835 / 2, 1671 / 2, 3341 / 2),
        "NVIDIA H200 datasheet (2024), H200 NVL, printed with sparsity",
    ),
    Peaks(
        r"B200",
        _tensor_cores(None, 1100, 2250, 4500),
        "NVIDIA Blackwell architecture technical brief (2024), HGX B200, dense; documents give "
        "75 and 80 for float32",
    ),
    Peaks(
        r"GeForce RTX 3090",
        _tensor_cores(35.6, 35.6, 71),
        "NVIDIA Ampere GA102 architecture whitepaper (2021), appendix A",
    ),
    Peaks(
        r"GeForce RTX 4090",
        _tensor_cores(82.6, 82.6, 165.2, 330.3),
        "NVIDIA Ada architecture whitepaper v2.1 (2023), appendix A",
    ),
    Peaks(
        r"Instinct MI250X",
        _tensor_cores(95.7 / 2, None, 383 / 2),
        "AMD Instinct MI250X data sheet (2022), matrix figures; torch sees each of the two dies "
        "as a device, so half; a driver that says MI250X/MI250 does not say which",
    ),
    Peaks(
        r"Instinct MI300X",
        _tensor_cores(163.4, 653.7, 1307.4, 2614.9),
        "AMD Instinct MI300X data sheet (2023)",
    ),
)


def peak_flops(device_name: str, dtype: Dtype) -> float | None:
    """Return a device's dense peak in FLOP/s, or None if it is not known.

    Args:
        device_name: As ``torch.cuda.get_device_name`` gives it; ``cpu`` has no peak.
        dtype: In which the matrix products run.
    """
    device = _device(device_name)
    if device is None or dtype not in device.tera:
        return None
    return device.tera[dtype] * TERA


def why_no_peak(device_name: str, dtype: Dtype) -> str | None:
    """Return why `peak_flops` knows no peak; None if it does."""
    device = _device(device_name)
    if device is None:
        return f"the peak FLOP/s of {device_name!r} are not known"
    if dtype not in device.tera:
        return f"{device_name} has no published dense peak for {dtype}"
    return None


def _device(name: str) -> Peaks | None:
    bare = re.sub(r"^(NVIDIA|AMD) ", "", name.strip())
    return next((device for device in DEVICES if re.fullmatch(device.pattern, bare)), None)


def compute_dtype(execution: Execution, tf32: bool) -> Dtype:
    """Return the format in which matrix products run.

    Args:
        execution: Of the row.
        tf32: Whether float32 products run in TF32: the rank's fact ``matmul_tf32``, for
            convolutions ``convolution_tf32``.
    """
    if execution.computes_in_bfloat16:
        return "bfloat16"
    return "tf32" if tf32 else "float32"


def mixed_peak(flops: Mapping[Dtype, float], device_name: str) -> float | None:
    """Return the peak of a device for a mix of formats, FLOP/s: Σ f / Σ (f / peak).

    At this rate the device would do the work if each format ran at its own peak.

    Args:
        flops: Format → how much of the work is in it.
        device_name: As for `peak_flops`.

    Returns:
        None if the peak of a format that takes part is not known, or there is no work.
    """
    seconds = 0.0
    for dtype, amount in flops.items():
        peak = peak_flops(device_name, dtype)
        if amount and peak is None:
            return None
        seconds += amount / peak if peak else 0.0
    return sum(flops.values()) / seconds if seconds else None


def mfu(flops_per_sample: float, throughput: float, num_devices: int, peak: float) -> float:
    """Return achieved over peak FLOP/s of the whole job, a plain ratio.

    Args:
        flops_per_sample: Model FLOPs of forward and backward on one sample.
        throughput: Samples per second of the whole job.
        num_devices: Devices that share the work, each once however many ranks it runs.
        peak: FLOP/s of one of them.
    """
    return flops_per_sample * throughput / (num_devices * peak)
