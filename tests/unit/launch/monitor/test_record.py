"""The recorder: what it writes of a device is what the twin replays."""

import json
import os
import sys

import pynvml
import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.monitor.sampler import DeviceSampler
from tests.builders.watched import BEGIN_NS, make_twin, sample
from tests.recorded import record_nvml as record
from tests.recorded.nvml_twin import NvmlTwin
from tests.standins.nvml import A, B, Nvml, nvml

__all__ = ["nvml"]


def test_a_recording_replays_as_the_device_it_was_made_of(nvml: Nvml):
    nvml("* power error 3", f"* processes {os.getpid()} 5")  # an error is recorded, too
    sampler = DeviceSampler(None, clock_ns=lambda: BEGIN_NS)
    assert sampler.open()
    sampler.tick()
    document = json.loads(json.dumps(record.record(pynvml, seconds=0.15)))
    assert [device["uuid"] for device in document["devices"]] == [A, B]
    again, _ = sample(NvmlTwin(document), until_s=0.0)
    assert [one.states for one in again.devices] == [one.states for one in sampler.tracks()]
    assert again.devices[0] == sampler.tracks()[0]


def test_without_a_device_there_is_one_line(monkeypatch, capsys, tmp_path):
    twin = make_twin()
    twin.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    with pytest.raises(EnvironmentUnfit, match="Nothing can be recorded: NVML: NVML Shared"):
        record.record(twin, seconds=0.0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert record.main([str(tmp_path / "out.json")]) == 5
    assert "cannot be imported" in capsys.readouterr().err
    assert record.main([]) == 2
