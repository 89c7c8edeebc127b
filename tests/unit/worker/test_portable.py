import math
import os
import shutil
import sys
import sysconfig
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity

from scalebench.worker import portable, survey
from scalebench.worker.collectives import probes
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.portable import CudaClock, StepClock, steady_start, step_profiler
from tests.examples import cases


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


@cases("num_slow", 3, 5, 10, 20)
@cases("seed", *range(5))
def test_a_start_up_transient_is_cut(num_slow, seed):
    series = 0.01 * np.exp(noise(seed, 80))
    series[:num_slow] *= 3
    assert num_slow <= steady_start(series) <= 40


def first_accepted(series):
    """How many steps the loop would have run: it asks at 10 and then after every 5 more."""
    asked = range(10, len(series) + 1, 5)
    return next((n for n in asked if steady_start(series[:n]) is not None), None)


@cases("make", noise, autocorrelated)
def test_noise_around_a_level_is_accepted_early(make):
    found = [first_accepted(0.01 * np.exp(make(seed, 60))) for seed in range(100)]
    assert None not in found
    assert np.mean([n <= 20 for n in found]) >= 0.75
    assert np.mean([n <= 40 for n in found]) >= 0.95


@cases("n", 10, 20, 50, 200)
@cases("ends", (2, 1), (1, 2))
def test_a_series_that_still_drifts_is_not_steady(n, ends):
    assert steady_start(np.linspace(*ends, n) * np.exp(noise(n, n, 0.01))) is None


@given(st.floats(min_value=1e-6, max_value=100), st.integers(10, 60))
def test_steps_that_are_all_alike_are_steady_from_the_first(step_s, n):
    assert steady_start([step_s] * n) == 0


HOST_S, SMALL_S = 35e-6, 12e-6
"""To ask for an operation takes the host longer than a GPU takes for a small one."""


class Device:
    """A stream: the host asks at its own pace, the device does one after another, as it comes."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.host_s = self.device_s = 0.0
        cuda = SimpleNamespace(Event=self.event, synchronize=self.synchronize, _sleep=self.sleep)
        monkeypatch.setattr(probes.torch, "cuda", cuda)
        monkeypatch.setattr(probes.torch, "zeros", lambda *_, **__: None)
        monkeypatch.setattr(probes.dist, "all_reduce", lambda _: self.ask("gate"))
        monkeypatch.setattr(probes.time, "perf_counter", lambda: self.host_s)

    def ask(self, name, takes_s=SMALL_S):
        self.asked.append(name)
        self.host_s += HOST_S
        self.device_s = max(self.device_s, self.host_s) + takes_s

    def sleep(self, cycles):
        self.ask("sleep", cycles / 2e9)

    def operation(self, name):
        return Operation(lambda: self.ask(name), torch.ones(1), torch.ones(1), 4)

    def event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at_s=None)

        def record():
            self.asked.append("event")
            event.at_s = max(self.device_s, self.host_s)

        event.record = record
        event.synchronize = lambda: self.synchronize("event")
        event.query = lambda: self.host_s >= event.at_s
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event

    def synchronize(self, device):
        self.asked.append("synchronise")
        self.host_s = max(self.host_s, self.device_s)


def test_cuda_steps_are_what_the_device_noted_and_nothing_waits_between(monkeypatch):
    device, clock = Device(monkeypatch), StepClock(CudaClock())
    for takes_s in (1.0, 0.010, 0.015, 0.0015):
        device.ask("step", takes_s)
        clock.mark()
    assert device.asked == ["step", "event"] * 4
    assert clock.resolve() == pytest.approx([0.010, 0.015, 0.0015])
    assert device.asked == [*["step", "event"] * 4, "synchronise"]
    assert clock.resolve() == []


@cases("ranks, mean", (None, 1.5), ((1,), 2), ((0, 1), 1.5))
def test_a_gpu_does_a_full_queue_between_two_events(monkeypatch, ranks, mean):
    """As nccl-tests does it: warm up, n operations, divide, average over the ranks."""
    device = Device(monkeypatch)
    rank_of_two = SimpleNamespace(  # the other's times are twice as long
        device=torch.device("cuda"),
        rank=0,
        job=SimpleNamespace(world_size=2),
        barrier=lambda: device.asked.append("barrier"),
        agree_max=lambda values: [2 * value for value in values],
        gather=lambda item: [item, 2 * item] if isinstance(item, float) else [item, item],
    )
    first, again = device.operation("warm"), device.operation("a")
    found = probes.timed_on_device(first, again, 3, rank_of_two, ranks)
    before = ["barrier", "gate", "warm", "sleep", "gate", "event"]
    assert device.asked == [*before, "a", "a", "a", "event", "synchronise"]
    assert found == pytest.approx(mean * SMALL_S)  # and not the host's pace


DEV = f"apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"
BOTH = f"apt install gcc; {DEV}"


@cases(
    "there, device, problem, remedy",
    ({}, "cuda", None, None),
    ({}, "cpu", None, None),
    ({"programs": ("clang",)}, "cuda", None, None),
    ({"programs": ()}, "cuda", "no C compiler", "apt install gcc"),
    ({"programs": ("gcc",)}, "cpu", "no C++ compiler", "apt install g++"),
    ({"programs": ("tcc",), "CC": "tcc"}, "cuda", None, None),
    ({"CC": "/gone/gcc"}, "cuda", "no C compiler", "apt install gcc"),
    ({"header": ()}, "cuda", "no Python.h", DEV),
    ({"triton": None}, "cuda", "no triton", "pip install triton"),
    ({"triton": None}, "cpu", None, None),
    ({"programs": (), "header": ()}, "cuda", "no C compiler, no Python.h", BOTH),
    ids=str,
)
def test_what_is_missing_is_told_with_a_remedy(
    monkeypatch, tmp_path, there, device, problem, remedy
):
    machine = {"programs": ("gcc", "g++"), "header": ("Python.h",), "triton": True} | there
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
        if name in machine:
            monkeypatch.setenv(name, machine[name])
    for name in machine["header"]:
        (tmp_path / name).touch()
    monkeypatch.setattr(shutil, "which", lambda name: name if name in machine["programs"] else None)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr(survey.importlib.util, "find_spec", {"triton": machine["triton"]}.get)

    told = survey.what_is_missing(device)
    assert told == (problem and {"problem": problem, "remedy": remedy})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_kernel_compiles_here():
    assert survey.why_not_compiled("cpu") is None
