"""The compiled stand-in for NVML, called by the real nvidia-ml-py."""

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pynvml
import pytest

from tests.standins import built

A = "GPU-aaaaaaaa-0000-1111-2222-000000000000"
B = "GPU-bbbbbbbb-0000-1111-2222-000000000001"
SLICE = "MIG-cccccccc-0000-1111-2222-000000000002"
WHOLE_GPU = (
    *(
        "energy 5000000000",
        "power 300000",
        "sm_clock 1980",
        "memory_clock 2619",
        "memory 12884901888",
    ),
    *("temperature 55", "temperature_v 61", "throttle_reasons 4", "event_reasons 8"),
    *("pcie_rx 2000000", "pcie_tx 1500000", "nvlink_rx 4000", "nvlink_tx 8000", "processes"),
)
"""What a device answers; units as NVML's."""

Nvml = Callable[..., None]


def library(variants: Sequence[str] = ()) -> Path:
    """Return the library of that name; ``variants`` are the macros of its source."""
    return built("nvml.c", "libnvidia-ml.so.1", [f"-D{variant}" for variant in variants])


def write_answers(path: Path, *lines: str) -> Path:
    """Write two GPUs and a MIG slice of a third, which cannot tell all; the lines count more."""
    devices = [f"device {uuid} x" for uuid in (A, B, SLICE)]
    whole = [f"{uuid} {answer}" for uuid in (A, B) for answer in WHOLE_GPU]
    of_slice = [f"{SLICE} {answer}" for answer in ("sm_clock 1980", "memory 1024", "processes")]
    path.write_text("\n".join([*devices, *whole, f"{B} power 450000", *of_slice, *lines]) + "\n")
    return path


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Give this process an NVML: variants of the library, and lines of its answers."""

    def give(*lines: str, variants: Sequence[str] = ()) -> None:
        answers = write_answers(tmp_path / "answers", *lines)
        monkeypatch.setenv("NVML_ANSWERS", os.fspath(answers))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(os.fspath(library(variants))))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    return give
