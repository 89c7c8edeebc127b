"""Dense peaks of devices by name and number format, and the utilisation they allow to state.

MFU, model FLOPs utilisation, is achieved over peak FLOP/s (Chowdhery et al. 2022, "PaLM",
appendix B). The peaks are those that the makers print for dense matrices; where a document
prints the figure with 2:4 sparsity only, it is halved. Sixteen-bit formats are taken with
32-bit accumulation, as training does it, and FP8 likewise.

A name is matched whole: a variant not listed (a laptop chip, a slice of a device) has another clock
or other units, so it has no peak here.
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
        r"A[18]00-(SXM4|PCIE)-(40|80)GB|A[18]00 80GB PCIe",
        _tensor_cores(19.5, 156, 312),
        "NVIDIA A100 datasheet (2021); the same for 40 and 80 GB, PCIe and SXM; NVIDIA A800 "
        "datasheet (2022): slower links alone",
    ),
    Peaks(
        r"A100-SXM-64GB",
        _tensor_cores(22.4, 179, 358),
        "NVIDIA A100 of Leonardo, 124 SMs at the A100's clock: Turisini et al. (2023), LEONARDO",
    ),
    Peaks(r"A10", _tensor_cores(31.2, 62.5, 125), "NVIDIA A10 datasheet (2021)"),
    Peaks(
        r"A10G",
        _tensor_cores(35, 35, 70),
        "NVIDIA and AWS, A10G datasheet (2022)",
    ),
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
        r"RTX A6000",
        _tensor_cores(38.7, 77.4, 154.8),
        "NVIDIA Ampere GA102 architecture whitepaper (2021), RTX A6000",
    ),
    Peaks(
        r"RTX 6000 Ada Generation",
        _tensor_cores(91.1, 182.1, 364.2, 728.5),
        "NVIDIA Ada architecture whitepaper for professionals (2023), RTX 6000 Ada",
    ),
    Peaks(
        r"RTX PRO 6000 Blackwell Workstation Edition",
        _tensor_cores(126, 251.9, 503.8, 1007.6),
        "NVIDIA RTX Blackwell PRO architecture whitepaper (2025), RTX PRO 6000 Workstation",
    ),
    Peaks(
        r"H[18]00 80GB HBM3|H800",
        _tensor_cores(67, 989 / 2, 1979 / 2, 3958 / 2),
        "NVIDIA H100 datasheet (2023), H100 SXM, printed with sparsity; an H800 has slower links "
        "and FP64",
    ),
    Peaks(
        r"H[18]00 PCIe",
        _tensor_cores(51, 756 / 2, 1513 / 2, 3026 / 2),
        "NVIDIA H100 datasheet (2023), H100 PCIe, printed with sparsity",
    ),
    Peaks(
        r"H100 NVL",
        _tensor_cores(60, 835 / 2, 1671 / 2, 3341 / 2),
        "NVIDIA H100 datasheet (2024), H100 NVL, one GPU, printed with sparsity",
    ),
    Peaks(
        r"GH200 (120GB|480GB|144G HBM3e)",
        _tensor_cores(67, 989 / 2, 1979 / 2, 3958 / 2),
        "NVIDIA GH200 datasheet (2023), printed with sparsity; the number is the CPU's memory",
    ),
    Peaks(
        r"H20(-3e)?",
        _tensor_cores(44, 74, 148, 296),
        "NVIDIA HGX H20 specifications (2023), dense",
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
        r"GB200",
        _tensor_cores(None, 1250, 2500, 5000),
        "NVIDIA GB200 NVL72 datasheet (2025), one GPU, printed with sparsity; documents give 80 "
        "and 90 for float32",
    ),
    Peaks(
        r"B300 SXM6 AC",
        _tensor_cores(75, 1100, 2250, 4500),
        "NVIDIA HGX B300 datasheet (2025), one GPU, printed with sparsity",
    ),
    Peaks(
        r"GB300",
        _tensor_cores(80, 1250, 2500, 5000),
        "NVIDIA GB300 NVL72 datasheet (2025), one GPU, printed with sparsity",
    ),
    Peaks(
        r"GeForce RTX 3090",
        _tensor_cores(35.6, 35.6, 71),
        "NVIDIA Ampere GA102 architecture whitepaper (2021), appendix A",
    ),
    Peaks(
        r"GeForce RTX 3090 Ti",
        _tensor_cores(40, 40, 80),
        "NVIDIA Ada architecture whitepaper v2.1 (2023), appendix A",
    ),
    Peaks(
        r"GeForce RTX 4090",
        _tensor_cores(82.6, 82.6, 165.2, 330.3),
        "NVIDIA Ada architecture whitepaper v2.1 (2023), appendix A",
    ),
    Peaks(
        r"GeForce RTX 5090",
        _tensor_cores(104.8, 104.8, 209.5, 419),
        "NVIDIA RTX Blackwell architecture whitepaper (2025), appendix A",
    ),
    Peaks(
        r"Instinct MI210",
        _tensor_cores(45.3, None, 181),
        "AMD Instinct MI210 data sheet (2022), matrix figures",
    ),
    Peaks(
        r"Instinct MI250X",
        _tensor_cores(95.7 / 2, None, 383 / 2),
        "AMD Instinct MI250X data sheet (2022), matrix figures; torch sees each of the two dies "
        "as a device, so half; a driver that says MI250X/MI250 does not say which",
    ),
    Peaks(
        r"Instinct MI3(00|25)X",
        _tensor_cores(163.4, 653.7, 1307.4, 2614.9),
        "AMD Instinct MI300X data sheet (2023); MI325X data sheet (2024): more memory alone",
    ),
    Peaks(
        r"Instinct MI355X",
        _tensor_cores(157.3, None, 2516.6, 5033.2),
        "AMD Instinct MI355X data sheet (2025), matrix figures; it emulates TF32",
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
