"""What to say, and what to do, where devices are there and ranks cannot train on them."""

from collections.abc import Mapping
from typing import Any

OLDEST_DRIVER = {"12": "525", "13": "580"}
"""CUDA's major version → the oldest driver that any release of it works with.

Source: NVIDIA's CUDA compatibility guide, "minor version compatibility".
"""

_REMEDIES = (
    (
        "driver on your system is too old",
        "Update the driver ({torch} needs {oldest}, here is {driver}), or install a torch "
        "that is built for an older CUDA",
    ),
    (
        "Found no NVIDIA driver",
        "The driver's libcuda.so.1 is missing here: start the container with --gpus all and "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    ("not compiled with CUDA", "{torch} is a CPU build: install one that is built for CUDA"),
    ("Error 802", "Start NVIDIA's fabric manager: systemctl start nvidia-fabricmanager"),
    ("Error 803", "The driver's module and its libraries are of two versions: reboot"),
    (
        "GPUs are available",
        "CUDA_VISIBLE_DEVICES (ROCm: HIP_VISIBLE_DEVICES, too) may name none that is here, or this "
        "user may not open /dev/nvidia* (ROCm: /dev/kfd)",
    ),
    ("cannot train on it", "Ranks train on CUDA or ROCm devices, or on the CPU"),
)
_OTHERWISE = "`python -c 'import torch; torch.cuda.init()'` shows it again"


def about_unusable(facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with devices that torch cannot use, and the remedy.

    Args:
        facts: What torch says of the machine, with its driver where that is known.

    Returns:
        None: there are none.
    """
    told = facts.get("unusable")
    if told is None:
        return None
    found = (remedy for words, remedy in _REMEDIES if words in told["reason"])
    oldest = OLDEST_DRIVER.get((facts.get("cuda") or "").partition(".")[0])
    remedy = next(found, _OTHERWISE).format(
        torch=f"torch {facts['torch']}",
        oldest="a newer one" if oldest is None else f"driver {oldest} or newer",
        driver=facts.get("driver") or "an older one",
    )
    return f"{told['devices']}: {told['reason']}".rstrip("."), remedy


def refusal(facts: Mapping[str, Any], instead: str = "--device cpu") -> str | None:
    """Return why ranks are not silently put on the CPU instead of the devices; None: no reason.

    Args:
        facts: As for `about_unusable`.
        instead: What the user gives to have them there.
    """
    about = about_unusable(facts)
    if about is None:
        return None
    return f"{'. '.join(about)}. {instead} runs the ranks on the CPU over gloo."
