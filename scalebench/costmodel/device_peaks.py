"""Dense peaks of devices by name and number format, and the utilisation they allow to state.

MFU, model FLOPs utilisation, is achieved over peak FLOP/s (Chowdhery et al. 2022, "PaLM",
appendix B). The peaks are those that the makers print for dense matrices; where a document
prints the figure with 2:4 sparsity only, it is halved. Sixteen-bit formats are taken with
32-bit accumulation, as training does it, and FP8 likewise.

A name is matched whole: a variant not listed (a laptop chip, a slice of a device) has another clock
or other units, so it has no peak here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalebench.spec import Execution

Dtype = Literal["float32", "tf32", "float16", "bfloat16", "fp8", "fp4"]
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


DEVICES = tuple(
    Peaks(**device)
    for device in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
)
"""Of device_peaks.json. A GH200's number is its CPU's memory; torch sees each of the two dies of an
MI250X as a device."""


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
    if execution.autocast:
        return "float16"
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
