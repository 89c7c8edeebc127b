"""Reads GPUs through NVML, field by field: what one call cannot tell leaves the others alone.

The functions take the ``pynvml`` module as an argument, so that a recorded device can stand in
for a real one. Devices are opened by UUID: NVML counts by PCI address, CUDA by speed and by
``CUDA_VISIBLE_DEVICES``.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.launch.monitor.amdsmi import AmdSmi
from scalebench.launch.monitor.processes import FOREIGN, UNKNOWN, kinship

Value = int | float | None
ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink counter that stands for the sum over the links (``UINT_MAX`` in nvml.h)."""
NO_SUCH_SYMBOL = "the driver's library does not have the function"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DRIVER = Path("/sys/class/kfd")


def load_nvml() -> tuple[Any, str | None]:
    """Return the ``pynvml`` module and None, or None and why there is no such module.

    That it can be imported does not mean that there is a driver: see `open_devices`. With AMD's
    driver and without NVIDIA's, what stands in its place reads through ``amdsmi``.
    """
    if AMD_DRIVER.exists() and not NVIDIA_DRIVER.exists():
        try:
            return AmdSmi(), None
        except ImportError as error:
            return None, f"amdsmi cannot be imported ({error}): pip install scalebench[rocm]"
    try:
        return importlib.import_module("pynvml"), None
    except ImportError as error:
        return None, f"nvidia-ml-py cannot be imported: {error}"


@dataclass(frozen=True)
class Query:
    """One call, and the fields that it fills.

    Attributes:
        fields: Names, in the order of what ``read`` returns.
        read: Asks NVML (module, handle) and returns SI values.
    """

    fields: tuple[str, ...]
    read: Callable[[Any, Any], Sequence[Value]]


def _energy(nvml: Any, handle: Any) -> Sequence[Value]:
    return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,)  # mJ


def _power(nvml: Any, handle: Any) -> Sequence[Value]:
    return (nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,)  # mW


def _sm_clock(nvml: Any, handle: Any) -> Sequence[Value]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1_000_000,)


def _memory_clock(nvml: Any, handle: Any) -> Sequence[Value]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1_000_000,)


def _temperature(nvml: Any, handle: Any) -> Sequence[Value]:
    names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    return (_first_there(nvml, names, handle, nvml.NVML_TEMPERATURE_GPU),)


def _throttle_bits(nvml: Any, handle: Any) -> Sequence[Value]:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return (_first_there(nvml, names, handle),)


def _pcie(nvml: Any, handle: Any) -> Sequence[Value]:
    kinds = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
    return [nvml.nvmlDeviceGetPcieThroughput(handle, kind) * 1000 for kind in kinds]  # KB/s


def _nvlink(nvml: Any, handle: Any) -> Sequence[Value]:
    kinds = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
    answers = nvml.nvmlDeviceGetFieldValues(handle, [(kind, ALL_LINKS) for kind in kinds])
    for answer in answers:
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
    return [int(answer.value.ullVal) * 1024 for answer in answers]  # KiB


def _memory(nvml: Any, handle: Any) -> Sequence[Value]:
    return (int(nvml.nvmlDeviceGetMemoryInfo(handle).used),)


def _processes(nvml: Any, handle: Any) -> Sequence[Value]:
    """Count the computing processes that descend from this one, and the others."""
    found = [(kinship(p.pid), p) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    if any(kind == UNKNOWN for kind, _ in found):
        raise LookupError("a process in another PID namespace: its owner is not known")
    foreign = [process.usedGpuMemory for kind, process in found if kind == FOREIGN]
    ours = len(found) - len(foreign)
    return ours, len(foreign), None if None in foreign else sum(foreign)


STATE = (
    Query(("energy_j",), _energy),
    Query(("power_w",), _power),
    Query(("sm_clock_hz",), _sm_clock),
    Query(("memory_clock_hz",), _memory_clock),
    Query(("temperature_c",), _temperature),
    Query(("throttle_bits",), _throttle_bits),
)
TRAFFIC = (
    Query(("pcie_rx_byte_per_s", "pcie_tx_byte_per_s"), _pcie),
    Query(("nvlink_rx_bytes", "nvlink_tx_bytes"), _nvlink),
    Query(("memory_used_bytes",), _memory),
    Query(("own_processes", "foreign_processes", "foreign_bytes"), _processes),
)


def _first_there(nvml: Any, names: Sequence[str], *arguments: Any) -> int:
    """Call the first of the functions that module and library have."""
    for name in names[:-1]:
        try:
            return int(getattr(nvml, name)(*arguments))
        except AttributeError:
            continue
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return int(getattr(nvml, names[-1])(*arguments))


@dataclass
class Device:
    """An open device. ``faults`` collects, by field, the reason and how often it was met."""

    nvml: Any
    handle: Any
    uuid: str
    name: str | None
    index: int | None
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    given_up: set[Query] = field(default_factory=set)

    def read(self, queries: Sequence[Query]) -> dict[str, Value]:
        """Return the values by field; None where a call failed. Raises nothing.

        A call that this device will never answer is not made again.
        """
        values: dict[str, Value] = {}
        for query in queries:
            values |= self._ask(query)
        return values

    def _ask(self, query: Query) -> dict[str, Value]:
        if query in self.given_up:
            return dict.fromkeys(query.fields)
        try:
            return dict(zip(query.fields, query.read(self.nvml, self.handle), strict=True))
        except Exception as error:  # a driver at fault may answer anything
            self._note(query, error)
            return dict.fromkeys(query.fields)

    def _note(self, query: Query, error: Exception) -> None:
        reason = reason_of(error)
        if _is_final(self.nvml, error):
            self.given_up.add(query)
            reason += "; this is a MIG slice" if self.uuid.startswith("MIG-") else ""
        for name in query.fields:
            counts = self.faults.setdefault(name, {})
            counts[reason] = counts.get(reason, 0) + 1


def reason_of(error: Exception) -> str:
    """Return what an error of NVML says, as the reason of a null."""
    if isinstance(error, AttributeError):
        return NO_SUCH_SYMBOL
    if isinstance(error, LookupError):
        return str(error.args[0]) if error.args else type(error).__name__
    if hasattr(error, "value"):
        return f"{getattr(error, 'library', 'NVML')}: {error}"
    return f"{type(error).__name__}: {error}"


def _is_final(nvml: Any, error: Exception) -> bool:
    final = (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
    )
    return isinstance(error, AttributeError) or getattr(error, "value", None) in final


def open_devices(nvml: Any, uuids: Sequence[str] | None) -> tuple[list[Device], Mapping[str, str]]:
    """Open devices by UUID, after ``nvmlInit``.

    Args:
        nvml: The module.
        uuids: As CUDA tells them, with or without ``GPU-`` or ``MIG-``; None: every device.

    Returns:
        The devices, and UUID → reason of those that could not be opened.
    """
    wanted = every_uuid(nvml) if uuids is None else uuids
    opened, refused = [], {}
    for uuid in wanted:
        try:
            opened.append(_open(nvml, uuid))
        except Exception as error:
            refused[uuid] = reason_of(error)
    return opened, refused


def every_uuid(nvml: Any) -> list[str]:
    """Return the UUID of every device that NVML shows; MIG slices are not among them."""
    handles = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount()))
    return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def _open(nvml: Any, uuid: str) -> Device:
    written = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    handle, full = _handle(nvml, written)
    name = _or_none(nvml.nvmlDeviceGetName, handle)
    index = _or_none(nvml.nvmlDeviceGetIndex, handle)
    return Device(nvml, handle, full, None if name is None else _text(name), index)


def _handle(nvml: Any, written: Sequence[str]) -> tuple[Any, str]:
    for uuid in written[:-1]:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(uuid), uuid
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                raise
    return nvml.nvmlDeviceGetHandleByUUID(written[-1]), written[-1]


def _or_none(function: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return function(handle)
    except Exception:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
