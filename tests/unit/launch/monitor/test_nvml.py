"""What is read of a device, and what becomes of a device or a library at fault."""

import sys

import pynvml
import pytest

from scalebench.launch.monitor.sampler import NO_DEVICE, DeviceSampler
from scalebench.records.telemetry import DeviceTrack
from tests.builders.watched import make_twin, sample


def first_device(twin, **kwargs) -> DeviceTrack:
    return sample(twin, **kwargs)[0].devices[0]


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
