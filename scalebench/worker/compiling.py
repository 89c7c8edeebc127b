"""Whether ``torch.compile`` works on a device: tried with one small kernel before any row."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from scalebench.records.scratch import Scratch
from scalebench.worker.process.failure import describe

COMPILERS = {"cuda": ("CC", ("gcc", "clang"), "gcc"), "cpu": ("CXX", ("g++", "clang++"), "g++")}
"""Device → variable that names the compiler, those looked for without it, and Debian's package.

On CUDA and ROCm triton compiles C with them, on the CPU Inductor C++.
"""


def why_not_compiled(device: str) -> dict[str, str] | None:
    """Compile and run one kernel; changes this process's environment.

    On CUDA with empty caches: what was compiled earlier proves nothing. On the CPU that would take
    long, and what Inductor needs there is known.

    Args:
        device: ``cuda`` or ``cpu``.

    Returns:
        ``problem`` and ``remedy``; None: it works.
    """
    if device == "cpu" and (missing := what_is_missing(device)) is not None:
        return missing
    with Scratch() as empty:
        if device == "cuda":
            names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
            os.environ |= dict.fromkeys(names, os.fspath(empty))
        try:
            _compile_one(device)
        except Exception as error:
            again = "a torch.compile of one function in `python` shows it again"
            return what_is_missing(device) or {
                "problem": describe(error).message,
                "remedy": again,
            }
    return None


def _compile_one(device: str) -> None:
    import torch._inductor.config as inductor  # takes seconds, which nobody else has to wait for

    inductor.compile_threads = 1  # no pool of processes for one kernel
    torch.compile(lambda x: 2 * x + 1)(torch.ones(8, device=device))


def what_is_missing(device: str) -> dict[str, str] | None:
    """Return what there is not of all that compiling needs, and what installs it; None: nothing."""
    variable, names, package = COMPILERS[device]
    compiler = os.environ.get(variable)
    missing: dict[str, str] = {}
    if not any(map(shutil.which, [compiler] if compiler else names)):
        missing[f"no {'C' if device == 'cuda' else 'C++'} compiler"] = f"apt install {package}"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        missing["no Python.h"] = f"apt install python{version}-dev"
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        missing["no triton"] = "pip install triton"
    if not missing:
        return None
    return {"problem": ", ".join(missing), "remedy": "; ".join(missing.values())}
