"""What is read of a device, and what becomes of a device or a library at fault."""

import os
import sys

import pynvml
import pytest

from scalebench.launch.monitor import nvml as reader
from scalebench.launch.monitor.sampler import HIDDEN, NO_DEVICE, DeviceSampler
from scalebench.records.telemetry import DeviceTrack
from tests.builders.watched import BEGIN_NS, A, B, make_twin, sample

PER_READING = ("energy_j", "power_w", "sm_clock_hz", "memory_clock_hz", "temperature_c")


def first_device(twin, **kwargs) -> DeviceTrack:
    return sample(twin, **kwargs)[0].devices[0]


def test_readings_are_in_si_units_at_the_time_they_were_taken():
    device = first_device(make_twin(), until_s=1.0)
    states, traffic = device.states, device.traffic
    assert states.time_ns == [BEGIN_NS + i * 100_000_000 for i in range(11)]
    assert states.energy_j[:3] == [5_000_000.0, 5_000_030.0, 5_000_060.0]
    assert states.power_w == [300.0] * 11
    assert (states.sm_clock_hz[0], states.memory_clock_hz[0]) == (1_980_000_000, 2_619_000_000)
    assert (states.temperature_c[0], states.throttle_bits[0]) == (61, 0)
    assert (traffic.pcie_rx_byte_per_s[0], traffic.pcie_tx_byte_per_s[0]) == (2 * 10**9, 15 * 10**8)
    assert traffic.nvlink_rx_bytes == [0, 1_024_000_000]
    assert traffic.nvlink_tx_bytes == [512 * 1024, 1_024_000_000 + 512 * 1024]
    assert traffic.memory_used_bytes[0] == 12_884_901_888
    assert (device.uuid, device.name, device.index) == (A, "Hand-written GPU", 0)
    assert device.unavailable == {}


def test_traffic_is_read_once_a_second_and_of_one_device_per_wake():
    twin = make_twin()
    sampler = sample(twin, until_s=2.0)[1]
    first, second = (log.traffic for log in sampler.logs)
    assert [t - BEGIN_NS for t, _ in first] == [0, 10**9, 2 * 10**9]
    assert [t - BEGIN_NS for t, _ in second] == [10**8, 11 * 10**8]


@pytest.mark.parametrize("written", [str, lambda uuid: uuid.removeprefix("GPU-")])
def test_devices_are_opened_by_uuid_whatever_their_order(written):
    """CUDA's first device is NVML's second here."""
    node, _ = sample(make_twin(), [written(B), written(A)], until_s=0.1)
    assert [(d.uuid, d.index) for d in node.devices] == [(B, 1), (A, 0)]
    assert [d.states.power_w[0] for d in node.devices] == [450.0, 300.0]


def test_only_the_devices_asked_for_are_read_and_all_when_none_are_named():
    assert [d.uuid for d in sample(make_twin(), [B], 0.0)[0].devices] == [B]
    assert [d.uuid for d in sample(make_twin(), None, 0.0)[0].devices] == [A, B]


def test_a_mig_slice_is_found_and_says_what_it_cannot_tell():
    twin = make_twin()
    twin.devices[1]["uuid"] = "MIG-bbbbbbbb-0000-1111-2222-000000000001"
    del twin.devices[1]["calls"]["nvmlDeviceGetPowerUsage"]
    node, _ = sample(twin, ["bbbbbbbb-0000-1111-2222-000000000001"], until_s=0.5)
    device = node.devices[0]
    assert device.uuid.startswith("MIG-bbbb")
    assert device.states.power_w == []
    assert device.unavailable["power_w"] == "NVML: Not Supported; this is a MIG slice"
    assert device.states.sm_clock_hz == [1_980_000_000] * 6


def test_a_uuid_that_nvml_does_not_know_is_named_and_the_others_are_read():
    node, _ = sample(make_twin(), ["no-such", A], until_s=0.0)
    assert [d.uuid for d in node.devices] == [A]
    assert node.unavailable == {"no-such": "NVML: Not Found"}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_j"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetClockInfo", "sm_clock_hz"),
        ("nvmlDeviceGetTemperatureV", "temperature_c"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttle_bits"),
    ],
)
def test_what_is_not_supported_is_null_with_the_reason_and_asked_once(call, field):
    twin = make_twin()
    twin.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    device = first_device(twin, uuids=[A], until_s=1.0)
    assert getattr(device.states, field) == []
    assert device.unavailable[field] == "NVML: Not Supported"
    assert twin.calls.count(call) == (2 if call == "nvmlDeviceGetClockInfo" else 1)
    others = [f for f in PER_READING if f not in (field, "memory_clock_hz")]
    assert all(None not in getattr(device.states, f) for f in others)
    assert all(len(getattr(device.states, f)) == 11 for f in others)


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT]
)
def test_a_fault_in_the_middle_leaves_what_was_read_and_the_other_fields(code):
    twin = make_twin()
    twin.fail("nvmlDeviceGetPowerUsage", code, from_s=0.5)
    device = first_device(twin, until_s=1.0)
    assert device.states.power_w == [300.0] * 5 + [None] * 6
    assert device.unavailable["power_w"] == f"NVML: {pynvml.NVMLError(code)} (in 6 of 11 readings)"
    assert list(device.unavailable) == ["power_w"]
    assert None not in device.states.energy_j


def test_a_lost_device_does_not_disturb_its_neighbour():
    twin = make_twin()
    for query in ("TotalEnergyConsumption", "PowerUsage", "ClockInfo", "MemoryInfo"):
        twin.fail(f"nvmlDeviceGet{query}", pynvml.NVML_ERROR_GPU_IS_LOST, 0.3, uuid=A)
    node, _ = sample(twin, until_s=1.0)
    lost, well = node.devices
    assert lost.states.energy_j[:4] == [5_000_000.0, 5_000_030.0, 5_000_060.0, None]
    assert "GPU is lost" in lost.unavailable["energy_j"]
    assert well.unavailable == {}
    assert well.states.power_w == [450.0] * 11


def test_missing_permission_is_a_reason():
    twin = make_twin()
    twin.fail("nvmlDeviceGetComputeRunningProcesses", pynvml.NVML_ERROR_NO_PERMISSION)
    device = first_device(twin, until_s=1.0)
    assert device.traffic.foreign_processes == []
    assert device.unavailable["foreign_processes"] == "NVML: Insufficient Permissions"
    assert device.traffic.memory_used_bytes != []


def test_an_older_library_is_asked_by_the_older_names():
    throttle = "nvmlDeviceGetCurrentClocksThrottleReasons"
    twin = make_twin(**{throttle: 4, "nvmlDeviceGetTemperature[0]": 55})
    twin.missing.add("nvmlDeviceGetCurrentClocksEventReasons")  # an older pynvml
    twin.fail("nvmlDeviceGetTemperatureV", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)  # an older driver
    device = first_device(twin, until_s=0.2)
    assert device.states.throttle_bits == [4] * 3
    assert device.states.temperature_c == [55] * 3
    assert device.unavailable == {}


def test_a_function_that_no_version_has_is_a_reason():
    twin = make_twin()
    twin.missing |= {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues"}
    device = first_device(twin, until_s=0.2)
    assert device.unavailable["energy_j"] == reader.NO_SUCH_SYMBOL
    assert device.unavailable["nvlink_rx_bytes"] == reader.NO_SUCH_SYMBOL
    assert (device.states.energy_j, device.traffic.nvlink_tx_bytes) == ([], [])


def test_links_that_a_device_does_not_have_are_null_with_a_reason():
    bad = {"nvmlReturn": pynvml.NVML_ERROR_NOT_SUPPORTED, "ullVal": 0}
    device = first_device(make_twin(nvmlDeviceGetFieldValues=[bad, bad]), until_s=0.2)
    assert device.traffic.nvlink_rx_bytes == []
    assert device.unavailable["nvlink_rx_bytes"] == "NVML: Not Supported"


def test_no_device_at_all_is_a_reason():
    node, _ = sample(make_twin(), [])
    assert (node.devices, node.unavailable) == ([], {"devices": NO_DEVICE})


def test_processes_are_told_apart_by_their_parents():
    processes = [
        {"pid": os.getpid(), "usedGpuMemory": 1 << 30},
        {"pid": os.getppid(), "usedGpuMemory": 1 << 20},
        {"pid": 1, "usedGpuMemory": 1 << 10},
    ]
    device = first_device(make_twin(nvmlDeviceGetComputeRunningProcesses=processes), until_s=0.0)
    assert device.traffic.own_processes == [1]
    assert device.traffic.foreign_processes == [2]
    assert device.traffic.foreign_bytes == [(1 << 20) + (1 << 10)]


def test_a_process_of_another_namespace_is_neither_ours_nor_foreign():
    processes = [{"pid": (1 << 30) + 7, "usedGpuMemory": 1 << 30}]
    device = first_device(make_twin(nvmlDeviceGetComputeRunningProcesses=processes), until_s=0.0)
    assert device.traffic.foreign_processes == []
    assert "PID namespace" in device.unavailable["foreign_processes"]


def test_where_nvml_hides_our_own_processes_it_is_not_believed_that_there_are_no_others():
    device = first_device(make_twin(nvmlDeviceGetComputeRunningProcesses=[]), until_s=0.0)
    assert device.traffic.foreign_processes == []
    assert device.unavailable["foreign_processes"] == HIDDEN


def test_without_the_module_there_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = DeviceSampler()
    assert not sampler.open()
    assert "cannot be imported" in sampler.unavailable["devices"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML: NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVML: Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "NVML: RM has detected"),
    ],
)
def test_without_library_or_driver_there_is_a_reason(code, text):
    twin = make_twin()
    twin.fail("nvmlInit", code)
    node, _ = sample(twin)
    assert node.devices == []
    assert node.unavailable["devices"].startswith(text)
