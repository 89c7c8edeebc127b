"""The CUDA clock, held against a recorded device: no GPU is needed to see what it asks of one."""

from typing import ClassVar

import pytest
import torch

from scalebench.worker.measure.clock import CudaClock, HostClock, step_clock


class RecordedEvent:
    """Twin of ``torch.cuda.Event``: the device reaches the events at recorded times."""

    device_ms: ClassVar[list[float]] = []
    calls: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing, "an event without timing cannot be resolved"

    def record(self) -> None:
        self.ms = self.device_ms.pop(0)
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def elapsed_time(self, later: "RecordedEvent") -> float:
        assert "synchronize" in self.calls, "asked before the device had got there"
        return later.ms - self.ms


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[RecordedEvent]:
    monkeypatch.setattr(torch.cuda, "Event", RecordedEvent)
    RecordedEvent.device_ms = [100.0, 110.0, 125.0, 126.5]
    RecordedEvent.calls = []
    return RecordedEvent


def test_cuda_steps_are_what_the_device_noted_in_seconds(recorded: type[RecordedEvent]) -> None:
    clock = CudaClock()
    for _ in range(4):
        clock.mark()
    assert clock.resolve() == pytest.approx([0.010, 0.015, 0.0015])


def test_nothing_waits_between_the_marks(recorded: type[RecordedEvent]) -> None:
    clock = CudaClock()
    for _ in range(3):
        clock.mark()
    assert recorded.calls == ["record"] * 3
    clock.resolve()
    assert recorded.calls == ["record"] * 3 + ["synchronize"]


def test_marks_are_forgotten_when_resolved(recorded: type[RecordedEvent]) -> None:
    clock = CudaClock()
    clock.mark()
    clock.mark()
    clock.resolve()
    clock.mark()
    assert clock.resolve() == []


def test_the_host_clock_counts_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_000_000_000, 1_250_000_000, 3_250_000_000])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(times))
    clock = HostClock()
    for _ in range(3):
        clock.mark()
    assert clock.resolve() == [0.25, 2.0]


@pytest.mark.parametrize(("device", "kind"), [("cpu", HostClock), ("cuda", CudaClock)])
def test_each_device_has_its_clock(device: str, kind: type) -> None:
    assert isinstance(step_clock(torch.device(device)), kind)
