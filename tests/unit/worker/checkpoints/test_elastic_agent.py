"""torchrun's agent notes when it begins to stop its ranks, and when it has stopped them."""

import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import PContext

from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.spec.recovery import FaultPlan
from scalebench.worker.checkpoints.elastic_agent import note_stops

STOPPING_S = 0.05


def test_the_first_stop_of_each_attempt_that_fails_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def close(self, death_sig=None, timeout=30):
        calls.append(timeout)
        time.sleep(STOPPING_S)

    monkeypatch.setattr(PContext, "close", close)
    folder = FaultFolder(tmp_path)
    for attempt in range(3):
        plan = FaultPlan(kind="kill", at_step=5, attempt=attempt, fails=attempt < 2)
        folder.write_plan(plan)
    note_stops(folder)
    for attempt in range(3):
        context = object.__new__(PContext.__subclasses__()[0])
        context.envs = {0: {"TORCHELASTIC_RESTART_COUNT": str(attempt)}}
        context.close(timeout=7)
        context.close()
    assert calls == 3 * [7, 30]
    for attempt in (0, 1):
        events = folder.events(attempt, AGENT)
        assert [event.name for event in events] == ["noticed", "stopped"]
        assert events[1].time_ns - events[0].time_ns >= STOPPING_S * 1e9
    assert folder.events(2, AGENT) == [], "these ranks came to their end"
