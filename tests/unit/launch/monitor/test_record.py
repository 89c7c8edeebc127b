"""The recorder: what it writes of a device is what the twin replays."""

import json
import sys

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.monitor import record
from tests.builders.watched import A, B, make_twin, sample
from tests.recorded.nvml_twin import NvmlTwin


def test_a_recording_replays_as_the_device_it_was_made_of():
    twin = make_twin()
    del twin.devices[0]["calls"]["nvmlDeviceGetPowerUsage"]  # an error is recorded, too
    document = json.loads(json.dumps(record.record(twin, seconds=0.15)))
    again = [device["calls"].keys() for device in document["devices"]]
    assert [device["uuid"] for device in document["devices"]] == [A, B]
    assert all("nvmlDeviceGetClockInfo[1]" in calls for calls in again)
    original = sample(twin, until_s=0.0)[0].devices
    assert sample(NvmlTwin(document), until_s=0.0)[0].devices == original


def test_without_a_device_there_is_one_line(monkeypatch, capsys, tmp_path):
    import pynvml

    twin = make_twin()
    twin.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    with pytest.raises(EnvironmentUnfit, match="Nothing can be recorded: NVML: NVML Shared"):
        record.record(twin, seconds=0.0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert record.main([str(tmp_path / "out.json")]) == 5
    assert "cannot be imported" in capsys.readouterr().err
    assert record.main([]) == 2
