"""What is switched on while steps are traced: marks, and calls that wait for the device."""

import inspect

import pytest
import torch

from scalebench.worker.attach import instruments
from scalebench.worker.attach.instruments import HostWaits, Traces
from scalebench.worker.script.traces import capture_of


@pytest.fixture(autouse=True)
def never_compiled(monkeypatch):
    """Other tests of this process may have used torch.compile."""
    monkeypatch.setattr(instruments, "_compiles", lambda: False)


def test_calls_are_counted_where_they_stand():
    waits = HostWaits()
    torch.ones(1).item()
    waits.begin()
    line = inspect.currentframe().f_lineno + 2
    for _ in range(3):
        torch.ones(1).item()
        if torch.ones(1) > 0:
            torch.ones(2).cpu()
    waits.end()
    torch.ones(1).item()
    found = waits.found(3)
    assert (found["calls"], found["steps"]) == (9, 3)
    assert [(p["line"], p["call"], p["calls"]) for p in found["places"]] == [
        (line, ".item()", 3),
        (line + 1, "bool(tensor)", 3),
        (line + 2, ".cpu()", 3),
    ]
    assert found["places"][0]["file"].endswith("test_instruments.py")


def test_a_stored_block_tells_whether_the_clocks_moved(tmp_path):
    traces = Traces("cpu")
    traces.begin(7)
    for _ in range(4):
        traces.mark()
    traces.store(tmp_path, 0)
    (block,) = traces.blocks
    marks = list(zip(block["before_ns"], block["step_ns"], strict=True))
    assert len(marks) == 5 and all(before <= inside for before, inside in marks)
    assert capture_of(block).clock_error_s < 1e-3
    moved = [inside + (500_000_000 if i > 2 else 0) for i, inside in enumerate(block["step_ns"])]
    ahead = [before + (500_000_000 if i > 2 else 0) for i, before in enumerate(block["before_ns"])]
    found = capture_of(block | {"step_ns": moved, "before_ns": ahead})
    assert 0.4 < found.clock_error_s < 0.6
