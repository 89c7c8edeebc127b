"""AMD's GPUs through ``amdsmi``, in the shape of ``pynvml``: what reads NVIDIA's reads these, too.

Functions that are missing here are missing at AMD, or are not asked for: the field is null, with
that as the reason. Units are NVML's: mJ, mW, MHz, degrees Celsius, bytes. Not yet tried on a GPU of
AMD: the tests run the real binding on a library that gcc builds.

Source: the documentation of AMD SMI's Python interface; the name under which HIP knows a device is
its serial number in hexadecimal digits, as ``torch.cuda`` relies on, too.
"""

import contextlib
import importlib
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

UNKNOWN_VALUE = "N/A"
MEBIBYTE = 1 << 20


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
