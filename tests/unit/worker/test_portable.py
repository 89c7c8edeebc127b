"""What measures steps in scalebench's own ranks and in scripts: clocks, steadiness, memory."""

import math
import os
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity

from scalebench.worker import portable
from scalebench.worker.portable import CudaClock, StepClock, steady_start, step_profiler


class RecordedEvent:
    device_ms: ClassVar[list[float]] = []
    calls: ClassVar[list[str]] = []

    def __init__(self, enable_timing=False):
        assert enable_timing, "an event without timing cannot be resolved"

    def record(self):
        self.ms = self.device_ms.pop(0)
        self.calls.append("record")

    def synchronize(self):
        self.calls.append("synchronize")

    def query(self):
        return "synchronize" in self.calls

    def elapsed_time(self, later):
        assert "synchronize" in self.calls, "asked before the device had got there"
        return later.ms - self.ms


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", RecordedEvent)
    RecordedEvent.device_ms = [100.0, 110.0, 125.0, 126.5]
    RecordedEvent.calls = []
    return RecordedEvent


def test_cuda_steps_are_what_the_device_noted_and_nothing_waits_between(recorded):
    clock = StepClock(CudaClock())
    for _ in range(4):
        clock.mark()
    assert recorded.calls == ["record"] * 4
    assert clock.resolve() == pytest.approx([0.010, 0.015, 0.0015])
    assert recorded.calls == ["record"] * 4 + ["synchronize"]
    assert clock.resolve() == []


def test_on_a_gpu_cupti_is_detached_after_a_trace_and_threads_are_not_asked_for(monkeypatch):
    """Otherwise every launch of a kernel takes longer from then on."""
    monkeypatch.setattr(portable, "profile", lambda **options: options)
    monkeypatch.setenv("TEARDOWN_CUPTI", "")
    monkeypatch.delenv("TEARDOWN_CUPTI")
    assert step_profiler("cpu")["experimental_config"] is not None
    assert os.environ.get("TEARDOWN_CUPTI") is None
    on_gpu = step_profiler("cuda")
    assert os.environ.get("TEARDOWN_CUPTI") == "1"
    assert on_gpu["experimental_config"] is None
    assert on_gpu["activities"] == [ProfilerActivity.CPU, ProfilerActivity.CUDA]


def noise(seed, n, sigma=0.05):
    return np.random.default_rng(seed).normal(0, sigma, n)


def autocorrelated(seed, n, phi=0.6, sigma=0.05):
    """An AR(1) series with standard deviation ``sigma``."""
    shocks = noise(seed, n, sigma * math.sqrt(1 - phi**2))
    series = [float(noise(seed + 10_000, 1, sigma)[0])]
    for shock in shocks[1:]:
        series.append(phi * series[-1] + shock)
    return np.array(series)


@pytest.mark.parametrize("num_slow", [3, 5, 10, 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_start_up_transient_is_cut(num_slow, seed):
    series = 0.01 * np.exp(noise(seed, 80))
    series[:num_slow] *= 3
    start = steady_start(series)
    assert num_slow <= start <= 40


def first_accepted(series):
    asked = range(10, len(series) + 1, 5)
    return next((n for n in asked if steady_start(series[:n]) is not None), None)


@pytest.mark.parametrize("make", [noise, autocorrelated])
def test_noise_around_a_level_is_accepted_early(make):
    found = [first_accepted(0.01 * np.exp(make(seed, 60))) for seed in range(100)]
    assert None not in found
    assert np.mean([n <= 20 for n in found]) >= 0.75
    assert np.mean([n <= 40 for n in found]) >= 0.95


@pytest.mark.parametrize("n", [10, 20, 50, 200])
@pytest.mark.parametrize("ends", [(2, 1), (1, 2)])
def test_a_series_that_still_drifts_is_not_steady(n, ends):
    assert steady_start(np.linspace(*ends, n) * np.exp(noise(n, n, 0.01))) is None


@given(st.floats(min_value=1e-6, max_value=100), st.integers(10, 60))
def test_steps_that_are_all_alike_are_steady_from_the_first(step_s, n):
    assert steady_start([step_s] * n) == 0
