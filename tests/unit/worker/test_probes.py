"""How operations are timed: one by one on the host's clock, or a full queue on the device."""

from types import SimpleNamespace

import pytest
import torch

from scalebench.worker.collectives import probes
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.collectives.probes import timed_on_device

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
