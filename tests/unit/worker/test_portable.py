"""What measures steps in scalebench's own ranks and in scripts: clocks, steadiness, memory."""

import math
import os
import shutil
import sys
import sysconfig
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity

from scalebench.worker import portable, survey
from scalebench.worker.collectives import probes
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.collectives.probes import timed_on_device
from scalebench.worker.portable import CudaClock, StepClock, steady_start, step_profiler
from scalebench.worker.survey import what_is_missing, why_not_compiled


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


OPERATION_S = 0.004


HOST_S = 35e-6
"""To ask for an operation takes the host longer than a GPU takes for a small one."""
SMALL_S = 12e-6


class Device:
    """A stream: the host asks at its own pace, the device does one after another, as it comes."""

    def __init__(self, monkeypatch, operation_s=OPERATION_S):
        self.asked = []
        self.host_s = self.device_s = 0.0
        self.operation_s = operation_s
        cuda = SimpleNamespace(Event=self.event, synchronize=self.synchronize, _sleep=self.sleep)
        monkeypatch.setattr(probes.torch, "cuda", cuda)
        monkeypatch.setattr(probes.torch, "zeros", lambda *_, **__: None)
        monkeypatch.setattr(probes.dist, "all_reduce", lambda _: self.ask("gate", self.operation_s))
        monkeypatch.setattr(probes.time, "perf_counter", lambda: self.host_s)

    def ask(self, name, takes_s):
        self.asked.append(name)
        self.host_s += HOST_S
        self.device_s = max(self.device_s, self.host_s) + takes_s

    def sleep(self, cycles):
        self.ask("sleep", cycles / 2e9)

    def operation(self, name, waits=False):
        def run():
            self.ask(name, self.operation_s)
            if waits:
                self.host_s = self.device_s

        return Operation(run, torch.ones(1), torch.ones(1), 4)

    def event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at_s=None)

        def record():
            self.asked.append("event")
            event.at_s = max(self.device_s, self.host_s)

        event.record = record
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event

    def synchronize(self, device):
        self.asked.append("synchronise")
        self.host_s = max(self.host_s, self.device_s)


class Context(SimpleNamespace):
    def barrier(self):
        self.log.append("barrier")

    def agree_max(self, values):
        return [2 * value for value in values]

    def gather(self, item):
        return [item, 2 * item] if isinstance(item, float) else [item, item]


def context(kind, log):
    return Context(device=torch.device(kind), rank=0, log=log, job=SimpleNamespace(world_size=2))


@pytest.mark.parametrize(("ranks", "mean"), [(None, 1.5), ((1,), 2), ((0, 1), 1.5)])
def test_a_gpu_does_a_full_queue_between_two_events(monkeypatch, ranks, mean):
    """As nccl-tests does it: warm up, n operations, divide, average over the ranks."""
    device = Device(monkeypatch, SMALL_S)
    first, again = device.operation("warm"), device.operation("a")
    found = timed_on_device(first, again, 3, context("cuda", device.asked), ranks)
    before = ["barrier", "gate", "warm", "sleep", "gate", "event"]
    assert device.asked == [*before, "a", "a", "a", "event", "synchronise"]
    assert found == pytest.approx(mean * SMALL_S)  # and not the host's pace


DEV = f"apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    def become(programs=("gcc", "g++"), header=True, triton=True, **variables):
        for name in ("CC", "CXX"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if header:
            (tmp_path / "Python.h").touch()
        monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        monkeypatch.setattr(survey.importlib.util, "find_spec", {"triton": triton or None}.get)

    return become


@pytest.mark.parametrize(
    ("there", "device", "problem", "remedy"),
    [
        ({}, "cuda", None, None),
        ({}, "cpu", None, None),
        ({"programs": ("clang",)}, "cuda", None, None),
        ({"programs": ()}, "cuda", "no C compiler", "apt install gcc"),
        ({"programs": ("gcc",)}, "cpu", "no C++ compiler", "apt install g++"),
        ({"programs": ("tcc",), "CC": "tcc"}, "cuda", None, None),
        ({"CC": "/gone/gcc"}, "cuda", "no C compiler", "apt install gcc"),
        ({"header": False}, "cuda", "no Python.h", DEV),
        ({"triton": False}, "cuda", "no triton", "pip install triton"),
        ({"triton": False}, "cpu", None, None),
        (
            {"programs": (), "header": False},
            "cuda",
            "no C compiler, no Python.h",
            f"apt install gcc; {DEV}",
        ),
    ],
    ids=str,
)
def test_what_is_missing_is_told_with_what_installs_it(machine, there, device, problem, remedy):
    machine(**there)
    told = what_is_missing(device)
    assert told == (None if problem is None else {"problem": problem, "remedy": remedy})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_kernel_compiles_here():
    assert why_not_compiled("cpu") is None
