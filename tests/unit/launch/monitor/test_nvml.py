"""What is read of a device, and what becomes of a device or a library at fault."""

import sys

import pynvml
import pytest

from scalebench.launch.monitor.sampler import NO_DEVICE, DeviceSampler
from scalebench.records.telemetry import DeviceTrack
from tests.builders.watched import BEGIN_NS, A, make_twin, sample

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


def test_no_device_at_all_is_a_reason():
    node, _ = sample(make_twin(), [])
    assert (node.devices, node.unavailable) == ([], {"devices": NO_DEVICE})


def test_without_the_module_there_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = DeviceSampler()
    assert not sampler.open()
    assert "cannot be imported" in sampler.unavailable["devices"]
