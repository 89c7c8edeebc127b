"""One rank's watch from the first step to the end of the script, without a process."""

import os

import pytest
import torch
from torch import nn

from scalebench.spec import StepPlan
from scalebench.worker.attach import schedule
from scalebench.worker.attach.watch import MOST_ENDINGS, Done, Watch

LONG = 2_000
"""Steps; a watch of four clean ones has long been over then."""


@pytest.fixture(autouse=True)
def short_margin(monkeypatch):
    """Steps of microseconds would fill the half second that other ranks are given with 50,000."""
    monkeypatch.setattr(schedule, "MARGIN_S", 1e-4)


class Script:
    """Stands for a training script: an optimizer, and how often it was called."""

    def __init__(self, folder, to_the_end=False):
        steps = StepPlan(steps=4, trace=False, max_warmup_steps=15)
        request = {
            "rank": 0, "world_size": 1, "device": "cpu", "folder": str(folder), "store": None,
            "limit_s": 1.0, "plan": steps.model_dump(), "to_the_end": to_the_end,
        }  # fmt: skip
        self.kept = []
        self.watch = Watch(request, self.kept.append)
        self.optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
        self.num_steps = 0

    def train(self, num_steps=LONG):
        for _ in range(num_steps):
            self.watch.backward()
            self.num_steps += 1
            self.watch.optimizer_called(self.optimizer)


def test_a_script_is_ended_when_everything_is_measured(tmp_path):
    script = Script(tmp_path)
    with pytest.raises(Done) as ended:
        script.train()
    assert ended.value.code == 0
    (record,) = script.kept
    assert len(record["call_s"]) == script.num_steps == record["schedule"]["end"]
    assert record["schedule"]["clean_end"] - record["schedule"]["first_clean"] >= 4
    assert record["facts"]["optimizer"] == "SGD"


def test_a_script_that_catches_the_end_is_ended_by_force(tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(os, "_exit", forced.append)
    script = Script(tmp_path)
    for _ in range(MOST_ENDINGS):
        assert not forced
        with pytest.raises(Done):
            script.train()
    with pytest.raises(Done):  # what stands for os._exit returns
        script.train(1)
    assert forced == [0] * len(forced) != []
    assert len(script.kept) == 1
