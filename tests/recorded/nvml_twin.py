"""A stand-in for the ``pynvml`` module that replays a recording; faults can be put in.

Constants, structures and errors are the real module's, so the reader meets the real types.
"""

import json
import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

TWO_GPUS = Path(__file__).with_name("two_gpus.json")


def load(path: Path = TWO_GPUS) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


class NvmlTwin:
    """Answers as the recording does at ``now_s``: with the last answer recorded by then.

    Attributes:
        now_s: Time on the recording's clock; set it, or give ``clock_s``.
        hanging: Functions that do not answer until `release` is set.
        calls: Names of the functions called, in order.
    """

    def __init__(
        self, document: dict[str, Any], clock_s: Callable[[], float] | None = None
    ) -> None:
        self.devices = document["devices"]
        self.clock_s = clock_s or (lambda: self.now_s)
        self.now_s = 0.0
        self.hanging: set[str] = set()
        self.release = threading.Event()
        self.faults: list[tuple[str, int, float, str | None]] = []
        self.calls: list[str] = []

    def fail(self, call: str, code: int, from_s: float = 0.0, uuid: str | None = None) -> None:
        """Let a function answer with an error from some time on; on one device or on all."""
        self.faults.append((call, code, from_s, uuid))

    def __getattr__(self, name: str) -> Any:
        if not hasattr(pynvml, name):
            raise AttributeError(name)
        if not name.startswith("nvml"):
            return getattr(pynvml, name)
        return lambda *arguments: self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        if name in self.hanging:
            self.release.wait()
        device = arguments[0] if arguments and isinstance(arguments[0], dict) else None
        for call, code, from_s, uuid in self.faults:
            on_it = uuid is None or (device is not None and device["uuid"] == uuid)
            if call == name and on_it and self.clock_s() >= from_s:
                raise pynvml.NVMLError(code)
        if device is not None:
            return self._replay(device, name, arguments[1:])
        return self._without_device(name, *arguments)

    def _without_device(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlDeviceGetCount":
            return len(self.devices)
        if name == "nvmlDeviceGetHandleByIndex":
            return self.devices[arguments[0]]
        if name == "nvmlDeviceGetHandleByUUID":
            for device in self.devices:
                if device["uuid"] == arguments[0]:
                    return device
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return None

    def _replay(self, device: dict[str, Any], name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlDeviceGetUUID":
            return device["uuid"]
        key = name + json.dumps(list(arguments)) if arguments else name
        series = device["calls"].get(key)
        if series is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        last = max(bisect_right(series["time_s"], self.clock_s()) - 1, 0)
        return _as_pynvml(series["answer"][last])


def _as_pynvml(answer: Any) -> Any:
    """Return a recorded answer as pynvml gives it."""
    if isinstance(answer, list):
        return [_as_pynvml(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    if "error" in answer:
        raise pynvml.NVMLError(answer["error"])
    if "nvmlReturn" in answer:
        value = pynvml.c_nvmlFieldValue_t(nvmlReturn=answer["nvmlReturn"])
        value.value.ullVal = answer["ullVal"]
        return value
    return SimpleNamespace(**answer)
