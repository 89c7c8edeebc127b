"""torchrun's agent notes when it begins to stop its ranks, and when it has stopped them."""

import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import PContext

from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.worker.checkpoints.elastic_agent import note_first_stop

STOPPING_S = 0.05


def test_stopping_begins_when_the_failure_is_noticed_and_only_the_first_stop_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def close(self, death_sig=None, timeout=30):
        calls.append(timeout)
        time.sleep(STOPPING_S)

    monkeypatch.setattr(PContext, "close", close)
    folder = FaultFolder(tmp_path)
    note_first_stop(folder)
    context = object.__new__(PContext.__subclasses__()[0])
    context.close(timeout=7)
    context.close()
    assert calls == [7, 30]
    events = folder.events(0, AGENT)
    assert [event.name for event in events] == ["noticed", "stopped"]
    assert events[1].time_ns - events[0].time_ns >= STOPPING_S * 1e9
