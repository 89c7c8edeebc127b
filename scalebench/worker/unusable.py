"""Devices that are there and that ranks cannot train on, and torch's own words on why."""

import os
from contextlib import suppress
from pathlib import Path

import torch

NVIDIA_DEVICES = Path("/proc/driver/nvidia/gpus")
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def unusable_devices() -> dict[str, str] | None:
    """Return what devices there are although torch sees none to train on; initialises CUDA.

    Returns:
        ``devices`` (how many of what, and who says so) and ``reason`` (torch's own words where it
        is torch that sees none). None: torch sees devices, or there are none, or the user has
        hidden them.
    """
    if torch.cuda.is_available() or _hidden():
        return None
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        count = torch.accelerator.device_count()
        return {
            "devices": f"torch has {count} device(s) of type {accelerator.type}",
            "reason": "scalebench cannot train on it",
        }
    there = _of_the_driver()
    return (
        None
        if there is None
        else {"devices": f"{there}, and torch sees none", "reason": _words_of_torch()}
    )


def _hidden() -> bool:
    """Whether a variable says that no device is to be used."""
    given = (os.environ[name].strip() for name in HIDING if name in os.environ)
    return any(value in ("", "NoDevFiles") or value.startswith("-1") for value in given)


def _of_the_driver() -> str | None:
    """Say how many GPUs the kernel's driver shows; None: none.

    AMD's are asked for only where torch is built for them: many processors have a graphics part
    that the driver shows and nobody trains on.
    """
    if torch.version.hip is not None:
        count = sum(_is_amd_gpu(node) for node in AMD_NODES.glob("*"))
        return f"AMD's driver shows {count} GPU(s)" if count else None
    for who, number in (("NVML", _count_of_nvml()), (NVIDIA_DEVICES, _count_of_kernel())):
        if number:
            return f"{who} shows {number} GPU{'s' * (number > 1)}"
    return None


def _is_amd_gpu(node: Path) -> bool:
    with suppress(OSError, ValueError):
        return int((node / "gpu_id").read_text()) > 0  # a processor's is 0
    return False


def _count_of_nvml() -> int:
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # no library, no driver, or one at fault: the kernel may still tell
        return 0


def _count_of_kernel() -> int:
    return len(list(NVIDIA_DEVICES.glob("*"))) if NVIDIA_DEVICES.is_dir() else 0


def _words_of_torch() -> str:
    """Return what torch says when it is made to use a device: asked politely it only warns."""
    try:
        torch.cuda.init()
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return "torch.cuda.is_available() is false"
