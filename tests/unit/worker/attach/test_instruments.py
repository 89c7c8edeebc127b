"""What is switched on while steps are traced: marks, and calls that wait for the device."""

import inspect

import pytest
import torch
from torch import nn

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


def test_torch_is_as_before_afterwards():
    names = (*instruments.ON_TENSORS,)
    before = {name: vars(torch.Tensor).get(name) for name in names}
    waits = HostWaits()
    waits.begin()
    assert vars(torch.Tensor).get("item") is not before["item"]
    waits.end()
    assert {name: vars(torch.Tensor).get(name) for name in names} == before
    assert float(torch.ones(1)) == 1.0 and bool(torch.ones(1))


def test_what_torch_reads_of_its_own_numbers_is_no_wait():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(torch.ones(1, 2)).sum().backward()
    waits = HostWaits()
    waits.begin()
    optimizer.step()
    waits.end()
    assert waits.found(1) == {"steps": 1, "calls": 0, "seconds": 0.0, "places": []}


def test_a_script_that_compiles_is_left_alone(monkeypatch):
    monkeypatch.setattr(instruments, "_compiles", lambda: True)
    waits = HostWaits()
    before = vars(torch.Tensor).get("item")
    waits.begin()
    assert vars(torch.Tensor).get("item") is before
    assert waits.found(4) is None and "torch.compile" in waits.unavailable


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
