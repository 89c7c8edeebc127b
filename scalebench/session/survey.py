"""What torch says of this machine, asked in a separate process and remembered."""

import hashlib
import json
import os
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

    Asking costs the seconds that torch's import takes. The answer is kept until the interpreter,
    torch, the driver or the visible devices change.
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


def survey_key() -> str:
    """Return what names the cached answer: all that could make it another."""
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = "none"
    driver = Path("/proc/driver/nvidia/version")
    parts = (
        *(__version__, sys.executable, torch_version),
        *STRATEGIES,
        os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        driver.read_text() if driver.exists() else "",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
