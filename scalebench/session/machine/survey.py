"""What torch says of this machine, asked in a separate process and remembered.

What to say, and what to do, where devices are there and ranks cannot train on them.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scalebench import __version__
from scalebench.launch.local import LocalLauncher
from scalebench.records.files import write_atomic
from scalebench.records.paths import cache_folder
from scalebench.spec import STRATEGIES

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

    ``facts``: as for `about_unusable`. ``instead``: what the user gives to have them there.
    """
    about = about_unusable(facts)
    if about is None:
        return None
    return f"{'. '.join(about)}. {instead} runs the ranks on the CPU over gloo."


def survey_machine(fresh: bool = False, rates: bool = False) -> dict[str, Any]:
    """Return what torch says of this machine, from a cache unless ``fresh``.

    Asking costs the seconds that torch's import takes. The answer is kept until the host, the
    interpreter, torch, the driver or the devices that this process may use change.
    """
    cached = cache_folder() / f"survey-{survey_key()}.json"
    if not fresh:
        with suppress(OSError, ValueError):
            return dict(json.loads(cached.read_text(encoding="utf-8")))
    with LocalLauncher() as launcher:
        answer = launcher.survey(rates)
    if answer.get("unusable"):  # to be asked again: what is at fault may be mended
        return answer
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(
            cached,
            json.dumps({k: v for k, v in answer.items() if k not in ("rates", "uncompiled")}),
        )
    return answer


class SurveyedLauncher(LocalLauncher):
    """For a look at a plan: imports torch only for what `survey_machine` does not remember."""

    def __init__(self) -> None:
        super().__init__(early=False)

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Return what torch says of this machine."""
        return survey_machine(fresh=rates, rates=rates)


_DEVICES = (
    *("dev/nvidia[0-9]*", "dev/kfd", "dev/dri/renderD*", "proc/driver/nvidia/gpus/*"),
    "proc/driver/nvidia/capabilities/gpu*/mig/gi*",
)
"""Files of which there is one for each GPU, or slice of one, that a container or job was given."""
_CHOICES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
"""Variables that choose among them."""


def survey_key(root: Path = Path("/")) -> str:
    """Return what names the cached answer: all that could make it another.

    Hosts share a home directory, and with it the cache.
    """
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = "none"
    driver = root / "proc/driver/nvidia/version"
    devices = sorted(path for pattern in _DEVICES for path in root.glob(pattern))
    parts = (
        *(__version__, platform.node(), sys.executable, torch_version),
        *STRATEGIES,
        *(os.environ.get(name, "") for name in _CHOICES),
        *(os.fspath(path) for path in devices if os.access(path, os.R_OK)),
        driver.read_text() if driver.exists() else "",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
