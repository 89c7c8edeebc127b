"""What is switched on while steps are traced: marks, and calls that wait for the device."""

import inspect

import pytest
import torch
from torch.utils.data import DataLoader

from scalebench.worker.attach import instruments
from scalebench.worker.attach.instruments import HostWaits


@pytest.fixture(autouse=True)
def never_compiled(monkeypatch):
    """Other tests of this process may have used torch.compile."""
    monkeypatch.setattr(instruments, "_compiles", lambda: False)


def test_calls_are_counted_where_they_stand():
    waits = HostWaits("cpu")
    torch.ones(1).item()
    waits.begin()
    next(iter(DataLoader(range(4), collate_fn=lambda batch: torch.ones(1).item())))
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


class OnGpu(torch.Tensor):
    is_cuda = True


def test_beside_a_gpu_the_hosts_own_tensors_are_waited_for_by_no_one():
    waits = HostWaits("cuda")
    waits.begin()
    for tensor in (torch.ones(1), torch.ones(1).as_subclass(OnGpu)):
        tensor.item()
    waits.end()
    assert waits.found(1)["calls"] == 1
