"""What torch says of this machine, asked in a separate process and remembered."""

import hashlib
import json
import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scalebench import __version__
from scalebench.launch.local import LocalLauncher
from scalebench.records.files import write_atomic
from scalebench.records.paths import cache_folder
from scalebench.spec import STRATEGIES


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

    Args:
        root: Where the kernel's files are; another folder holds a copy of them.
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
