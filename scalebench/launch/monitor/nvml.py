"""Reads GPUs through NVML, field by field, AMD's through ``amdsmi``; whose a process on them is.

AMD's GPUs through ``amdsmi``, in the shape of ``pynvml``: what reads NVIDIA's reads these, too.

Functions that are missing here are missing at AMD, or are not asked for: the field is null, with
that as the reason. Units are NVML's: mJ, mW, MHz, degrees Celsius, bytes. Not yet tried on a GPU of
AMD: the tests run the real binding on a library that gcc builds.

Source: the documentation of AMD SMI's Python interface; the name under which HIP knows a device is
its serial number in hexadecimal digits, as ``torch.cuda`` relies on, too.

Reads GPUs through NVML, field by field: what one call cannot tell leaves the others alone.

The functions take the ``pynvml`` module as an argument, so that a recorded device can stand in
for a real one. Devices are opened by UUID: NVML counts by PCI address, CUDA by speed and by
``CUDA_VISIBLE_DEVICES``.
"""

import contextlib
import importlib
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from uuid import UUID

UNKNOWN_VALUE = "N/A"
MEBIBYTE = 1 << 20
PROC = Path("/proc")
Kinship = Literal["ours", "foreign", "unknown"]
OURS: Kinship = "ours"
FOREIGN: Kinship = "foreign"
UNKNOWN: Kinship = "unknown"
Value = int | float | None
ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink counter that stands for the sum over the links (``UINT_MAX`` in nvml.h)."""
MISMATCH = "NVMLLibraryMismatchError"
"""What pynvml raises where the library has an older version of the function."""
NO_SUCH_SYMBOL = "the driver's library does not have the function"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DRIVER = Path("/sys/class/kfd")


class AmdSmiError(Exception):
    """What ``amdsmi`` refuses; ``value`` is its status code, as `NVMLError` has one."""

    library = "amdsmi"

    def __init__(self, value: int | None, text: str) -> None:
        super().__init__(text)
        self.value = value


class AmdSmi:
    """The functions of ``pynvml`` that `scalebench.launch.monitor.nvml` calls.

    Raises:
        ImportError: There is no such package, or it finds no ``libamd_smi.so``.
    """

    NVMLError = AmdSmiError
    NVML_SUCCESS = 0
    NVML_ERROR_INVALID_ARGUMENT = 1
    NVML_ERROR_NOT_SUPPORTED = 2
    NVML_ERROR_FUNCTION_NOT_FOUND = 3
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = -1  # no function of AMD's has versions
    NVML_ERROR_NO_PERMISSION = 10
    NVML_ERROR_NOT_FOUND = 31
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = "GFX", "MEM"

    def __init__(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:  # it prints what it misses
            try:
                self.amdsmi = importlib.import_module("amdsmi")
            except Exception as error:  # without its library the import ends in a KeyError
                why = printed.getvalue().strip().splitlines()
                raise ImportError(why[-1] if why else str(error)) from error
        self.handles: list[Any] = []

    def nvmlInit(self) -> None:
        """Open the library and find the devices."""
        self._ask(self.amdsmi.amdsmi_init)
        self.handles = self._ask(self.amdsmi.amdsmi_get_processor_handles)

    def nvmlShutdown(self) -> None:
        """Close the library."""
        self._ask(self.amdsmi.amdsmi_shut_down)

    def nvmlDeviceGetCount(self) -> int:
        """Return how many devices there are."""
        return len(self.handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        """Return a device by its number."""
        return self.handles[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        """Return a device by the name that torch has for it; raises AmdSmiError."""
        for handle in self.handles:
            if self.nvmlDeviceGetUUID(handle) == uuid:
                return handle
        raise AmdSmiError(self.NVML_ERROR_NOT_FOUND, f"there is no device {uuid}")

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        """Return ``GPU-`` and 16 bytes as torch writes HIP's: the digits of the serial number."""
        serial = self._field(self.amdsmi.amdsmi_get_gpu_asic_info(handle), "asic_serial")
        digits = str(serial).lower().removeprefix("0x").zfill(16)
        return f"GPU-{UUID(digits.encode().hex())}"

    def nvmlDeviceGetName(self, handle: Any) -> str:
        """Return the product's name."""
        return str(self._field(self.amdsmi.amdsmi_get_gpu_asic_info(handle), "market_name"))

    def nvmlDeviceGetIndex(self, handle: Any) -> int:
        """Return the number of a device."""
        return self.handles.index(handle)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> float:
        """Return the energy since the driver was loaded, mJ; the counter counts some µJ each."""
        told = self._ask(self.amdsmi.amdsmi_get_energy_count, handle)
        count = self._field(told, "energy_accumulator", "power")
        return float(count * self._field(told, "counter_resolution") / 1e3)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> float:
        """Return the power of the socket, mW: the moment's, on older devices a mean."""
        told = self._ask(self.amdsmi.amdsmi_get_power_info, handle)
        return float(self._field(told, "current_socket_power", "average_socket_power") * 1e3)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: str) -> int:
        """Return a clock, MHz."""
        kinds = self.amdsmi.AmdSmiClkType
        told = self._ask(self.amdsmi.amdsmi_get_clock_info, handle, kinds[kind])
        return int(self._field(told, "clk", "cur_clk"))

    def nvmlDeviceGetTemperature(self, handle: Any, _: int) -> int:
        """Return the temperature of the hottest place of the die, degrees Celsius."""
        where = self.amdsmi.AmdSmiTemperatureType.JUNCTION
        now = self.amdsmi.AmdSmiTemperatureMetric.CURRENT
        return int(self._ask(self.amdsmi.amdsmi_get_temp_metric, handle, where, now))

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        """Return ``used``, bytes."""
        told = self._ask(self.amdsmi.amdsmi_get_gpu_vram_usage, handle)
        return SimpleNamespace(used=int(self._field(told, "vram_used")) * MEBIBYTE)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[SimpleNamespace]:
        """Return ``pid`` and ``usedGpuMemory`` (bytes) of the processes on a device."""
        told = self._ask(self.amdsmi.amdsmi_get_gpu_process_list, handle)
        return [
            SimpleNamespace(pid=one["pid"], usedGpuMemory=one["memory_usage"]["vram_mem"])
            for one in told
        ]

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self.amdsmi.AmdSmiException as error:
            text = " ".join(str(error).split())
            raise AmdSmiError(getattr(error, "err_code", None), text) from error

    def _field(self, answer: dict[str, Any], *names: str) -> Any:
        """Return the first value that there is: versions and devices differ in the field."""
        for name in names:
            if answer.get(name, UNKNOWN_VALUE) != UNKNOWN_VALUE:
                return answer[name]
        raise AmdSmiError(self.NVML_ERROR_NOT_SUPPORTED, f"{names[0]} is not told here")


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the third (state) on; see proc(5).

    Raises:
        OSError: There is no such process, or it is hidden.
    """
    text = (proc / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets


def kinship(pid: int, family: Collection[int]) -> Kinship:
    """Tell whether a process is one of a family, or descends from one of them.

    Returns:
        ``unknown`` when it cannot be seen from here: it has ended, or its number is of another
        PID namespace, as NVML tells it to a container.
    """
    while pid > 1:
        if pid in family:
            return OURS
        try:
            pid = int(stat_fields(pid)[1])
        except (OSError, IndexError, ValueError):
            return UNKNOWN
    return FOREIGN


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
        read: Asks NVML of a device and returns SI values.
    """

    fields: tuple[str, ...]
    read: Callable[["Device"], Sequence[Value]]


def _clock_hz(device: "Device", kind: int) -> Sequence[Value]:
    return (device.ask("nvmlDeviceGetClockInfo", kind) * 1_000_000,)


def _temperature(device: "Device") -> Sequence[Value]:
    names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    return (int(device.ask(names, device.nvml.NVML_TEMPERATURE_GPU)),)


def _throttle_bits(device: "Device") -> Sequence[Value]:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return (int(device.ask(names)),)


def _pcie(device: "Device") -> Sequence[Value]:
    kinds = (device.nvml.NVML_PCIE_UTIL_RX_BYTES, device.nvml.NVML_PCIE_UTIL_TX_BYTES)
    return [device.ask("nvmlDeviceGetPcieThroughput", kind) * 1000 for kind in kinds]  # KB/s


def _nvlink(device: "Device") -> Sequence[Value]:
    nvml = device.nvml
    kinds = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
    answers = device.ask("nvmlDeviceGetFieldValues", [(kind, ALL_LINKS) for kind in kinds])
    for answer in answers:
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
    return [int(answer.value.ullVal) * 1024 for answer in answers]  # KiB


def _processes(device: "Device") -> Sequence[Value]:
    """Count the computing processes that are of this launch, and the others."""
    name = "nvmlDeviceGetComputeRunningProcesses"
    found = [(kinship(p.pid, device.family), p) for p in device.ask((name, f"{name}_v2"))]
    if any(kind == UNKNOWN for kind, _ in found):
        raise LookupError("a process in another PID namespace: its owner is not known")
    foreign = [process.usedGpuMemory for kind, process in found if kind == FOREIGN]
    ours = len(found) - len(foreign)
    return ours, len(foreign), None if None in foreign else sum(foreign)


STATE = (
    Query(("energy_j",), lambda d: (d.ask("nvmlDeviceGetTotalEnergyConsumption") / 1e3,)),  # mJ
    Query(("power_w",), lambda d: (d.ask("nvmlDeviceGetPowerUsage") / 1e3,)),  # mW
    Query(("sm_clock_hz",), lambda d: _clock_hz(d, d.nvml.NVML_CLOCK_SM)),
    Query(("memory_clock_hz",), lambda d: _clock_hz(d, d.nvml.NVML_CLOCK_MEM)),
    Query(("temperature_c",), _temperature),
    Query(("throttle_bits",), _throttle_bits),
)
TRAFFIC = (
    Query(("pcie_rx_byte_per_s", "pcie_tx_byte_per_s"), _pcie),
    Query(("nvlink_rx_bytes", "nvlink_tx_bytes"), _nvlink),
    Query(("memory_used_bytes",), lambda d: (int(d.ask("nvmlDeviceGetMemoryInfo").used),)),
    Query(("own_processes", "foreign_processes", "foreign_bytes"), _processes),
)


@dataclass
class Device:
    """An open device.

    Attributes:
        family: Processes whose descendants are of this launch, and they themselves.
        faults: Field → the reason and how often it was met.
    """

    nvml: Any
    handle: Any
    uuid: str
    name: str | None
    index: int | None
    family: Sequence[int]
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    given_up: set[Query] = field(default_factory=set)

    def ask(self, names: str | Sequence[str], *arguments: Any) -> Any:
        """Call the first of the functions that module, library and device have."""
        *newer, last = [names] if isinstance(names, str) else names
        for name in newer:
            try:
                return getattr(self.nvml, name)(self.handle, *arguments)
            except Exception as error:
                if not _is_missing(self.nvml, error):
                    raise
        return getattr(self.nvml, last)(self.handle, *arguments)

    def read(self, queries: Sequence[Query]) -> dict[str, Value]:
        """Return the values by field; None where a call failed. Raises nothing.

        A call that this device will never answer is not made again.
        """
        values: dict[str, Value] = {}
        for query in queries:
            values |= self._answer(query)
        return values

    def _answer(self, query: Query) -> dict[str, Value]:
        if query in self.given_up:
            return dict.fromkeys(query.fields)
        try:
            return dict(zip(query.fields, query.read(self), strict=True))
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
    if isinstance(error, AttributeError) or type(error).__name__ == MISMATCH:
        return NO_SUCH_SYMBOL
    if isinstance(error, LookupError):
        return str(error.args[0]) if error.args else type(error).__name__
    if hasattr(error, "value"):
        return f"{getattr(error, 'library', 'NVML')}: {error}"
    return f"{type(error).__name__}: {error}"


def _is_missing(nvml: Any, error: Exception) -> bool:
    """Tell whether module, library or device do not have what was called, and never will."""
    codes = (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    )
    missing = isinstance(error, AttributeError) or type(error).__name__ == MISMATCH
    return missing or getattr(error, "value", None) in codes


def _is_final(nvml: Any, error: Exception) -> bool:
    denied = getattr(error, "value", None) == nvml.NVML_ERROR_NO_PERMISSION
    return denied or _is_missing(nvml, error)


def open_devices(
    nvml: Any, uuids: Sequence[str] | None, family: Sequence[int] = ()
) -> tuple[list[Device], Mapping[str, str]]:
    """Open devices by UUID, after ``nvmlInit``.

    ``uuids`` are as CUDA tells them, with or without ``GPU-`` or ``MIG-``; None: every device.

    Returns:
        The devices, and UUID → reason of those that could not be opened.
    """
    wanted = every_uuid(nvml) if uuids is None else uuids
    opened, refused = [], {}
    for uuid in wanted:
        try:
            opened.append(_open(nvml, uuid, family))
        except Exception as error:
            refused[uuid] = reason_of(error)
    return opened, refused


def every_uuid(nvml: Any) -> list[str]:
    """Return the UUID of every device that NVML shows; MIG slices are not among them."""
    handles = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount()))
    return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def _open(nvml: Any, uuid: str, family: Sequence[int]) -> Device:
    written = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    handle, full = _handle(nvml, written)
    name = _or_none(nvml.nvmlDeviceGetName, handle)
    index = _or_none(nvml.nvmlDeviceGetIndex, handle)
    return Device(nvml, handle, full, None if name is None else _text(name), index, family)


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
