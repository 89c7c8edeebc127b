"""The sampling thread: it never holds up the end of a launch, whatever the driver does."""

import time

import pytest

from scalebench.launch.monitor.sampler import DeviceSampler
from tests.builders.watched import A, make_twin


def test_the_end_is_sampled_however_long_the_next_reading_is_away():
    sampler = DeviceSampler([A], make_twin(), period_s=60.0)
    sampler.start()
    while sampler.num_ticks < 1:
        time.sleep(0.005)
    stopped_ns = time.monotonic_ns()
    (track,) = sampler.stop()
    first, last = track.states.time_ns
    assert first < stopped_ns <= last


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


def test_the_thread_samples_until_it_is_stopped_and_is_then_gone():
    sampler = DeviceSampler([A], make_twin(), period_s=0.02)
    before = time.monotonic_ns()
    sampler.start()
    while sampler.num_ticks < 5:
        time.sleep(0.005)
    (track,) = sampler.stop()
    after = time.monotonic_ns()
    times = track.states.time_ns
    assert len(times) >= 5
    assert times == sorted(times)
    assert before < times[0] < times[-1] < after
    assert sampler.thread is not None and not sampler.thread.is_alive()
    assert 0 < sampler.cpu_s < 0.3
