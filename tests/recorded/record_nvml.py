"""Record what NVML answers on this machine.

``python -m tests.recorded.record_nvml OUT [SECONDS]``

The file holds every answer as NVML gave it, with its time; tests replay such files. Not yet tried
on a machine with a GPU.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit, ScalebenchError
from scalebench.launch.monitor.nvml import load_nvml
from scalebench.launch.monitor.sampler import PERIOD_S, DeviceSampler
from scalebench.records.storage.files import write_atomic

FORMAT = "scalebench.nvml/1"


class RecordingNvml:
    """Passes every call on to ``pynvml`` and keeps what it answers of an opened device."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.started_s = time.monotonic()
        self.uuids: dict[int, str] = {}
        self.calls: dict[str, dict[str, dict[str, list[Any]]]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.nvml, name)
        return self._recorded(name, found) if name.startswith("nvmlDevice") else found

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                answer = function(*arguments)
            except self.nvml.NVMLError as error:
                self._keep(name, arguments, {"error": error.value})
                raise
            if name == "nvmlDeviceGetHandleByUUID":
                self.uuids[id(answer)] = arguments[0]
            self._keep(name, arguments, plain(answer))
            return answer

        return call

    def _keep(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        uuid = self.uuids.get(id(arguments[0])) if arguments else None
        if uuid is not None:
            key = call_key(name, arguments[1:])
            series = self.calls.setdefault(uuid, {}).setdefault(key, {"time_s": [], "answer": []})
            series["time_s"].append(round(time.monotonic() - self.started_s, 6))
            series["answer"].append(answer)

    def document(self) -> dict[str, Any]:
        """Return the recording."""
        devices = [{"uuid": uuid, "calls": calls} for uuid, calls in self.calls.items()]
        return {"format": FORMAT, "origin": "recorded", "devices": devices}


def call_key(name: str, arguments: tuple[Any, ...]) -> str:
    """Return what a call is filed under: its name and the arguments behind the handle."""
    return name + json.dumps(list(arguments)) if arguments else name


def plain(answer: Any) -> Any:
    """Return an answer of NVML as JSON can hold it: structures become their fields."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    if answer is None or isinstance(answer, int | float | str):
        return answer
    if hasattr(answer, "nvmlReturn"):
        return {"nvmlReturn": answer.nvmlReturn, "ullVal": answer.value.ullVal}
    if hasattr(answer, "used"):
        return {"used": answer.used, "total": answer.total}
    if hasattr(answer, "pid"):
        return {"pid": answer.pid, "usedGpuMemory": answer.usedGpuMemory}
    return [plain(item) for item in answer] if hasattr(answer, "__len__") else str(answer)


def record(nvml: Any, seconds: float) -> dict[str, Any]:
    """Sample every device for some seconds, and return the recording.

    Raises:
        EnvironmentUnfit: There is no device to record.
    """
    recording = RecordingNvml(nvml)
    sampler = DeviceSampler(nvml=recording)
    if not sampler.open():
        reasons = "; ".join(sampler.unavailable.values()) or "NVML shows no device"
        raise EnvironmentUnfit(f"Nothing can be recorded: {reasons}.")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sampler.tick()
        time.sleep(PERIOD_S)
    return recording.document()


def main(arguments: list[str]) -> int:
    """Record to the file given first, for the seconds given second (10)."""
    if not arguments:
        print("usage: python -m tests.recorded.record_nvml OUT [SECONDS]", file=sys.stderr)
        return 2
    nvml, reason = load_nvml()
    try:
        if reason is not None:
            raise EnvironmentUnfit(reason)
        document = record(nvml, float(arguments[1]) if arguments[1:] else 10.0)
        write_atomic(Path(arguments[0]), json.dumps(document))
    except ScalebenchError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
