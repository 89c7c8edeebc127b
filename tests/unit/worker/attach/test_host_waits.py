"""Calls for which the host waits for the device are counted, with their place in the code."""

import inspect

import pytest
import torch
from torch import nn

from scalebench.worker.attach import host_waits
from scalebench.worker.attach.host_waits import HostWaits


@pytest.fixture(autouse=True)
def never_compiled(monkeypatch):
    """Other tests of this process may have used torch.compile."""
    monkeypatch.setattr(host_waits, "_compiles", lambda: False)


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
    assert found["places"][0]["file"].endswith("test_host_waits.py")


def test_torch_is_as_before_afterwards():
    names = (*host_waits.ON_TENSORS,)
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
    monkeypatch.setattr(host_waits, "_compiles", lambda: True)
    waits = HostWaits()
    before = vars(torch.Tensor).get("item")
    waits.begin()
    assert vars(torch.Tensor).get("item") is before
    assert waits.found(4) is None and "torch.compile" in waits.unavailable
