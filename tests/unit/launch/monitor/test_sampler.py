"""The sampling thread: it never holds up the end of a launch, whatever the driver does."""

import time

import pynvml
import pytest

from scalebench.launch.monitor.sampler import DeviceSampler
from tests.builders.watched import A, make_twin, sample


@pytest.fixture
def stuck():
    """A twin whose functions can be made to hang; they come back when the test is over."""
    twin = make_twin()
    yield twin
    twin.release.set()


def test_a_driver_that_never_answers_does_not_hold_up_the_end(stuck):
    stuck.hanging.add("nvmlDeviceGetPowerUsage")
    sampler = DeviceSampler([A], stuck)
    sampler.start()
    time.sleep(0.1)
    begun = time.monotonic()
    (track,) = sampler.stop(limit_s=0.2)
    assert time.monotonic() - begun < 1.0
    assert track.states.time_ns == []  # the first reading never ended
    assert sampler.unavailable["sampler"] == "NVML had not answered 0.2 s after the end"
    assert sampler.thread.daemon


def first_device(twin, **kwargs):
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
