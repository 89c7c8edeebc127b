"""A rank pins itself: to whole cores, near its GPU, and says to which."""

import os
from types import SimpleNamespace

import pytest
import torch

from scalebench.resources import Processor
from scalebench.worker.process import setup

CORES = [Processor(number, number % 4, number // 4, node=number % 4 // 2) for number in range(8)]
"""Four cores with two siblings each; cores 0 and 1 on node 0, cores 2 and 3 on node 1."""


@pytest.fixture
def pinned(monkeypatch):
    seen = []
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9D, pci_device_id=0)
    asked = {"0000:9d:00.0": 1}
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, numbers: seen.append(set(numbers)))
    monkeypatch.setattr(setup, "read_processors", lambda numbers: CORES)
    monkeypatch.setattr(setup, "gpu_node", asked.__getitem__)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    return seen


def test_a_rank_with_a_gpu_takes_cores_of_its_node(pinned):
    assert setup.pin(0, 2, "cuda") == {"affinity": [2, 3], "numa_nodes": [1], "num_cores": 2}
    assert setup.pin(1, 2, "cuda") == {"affinity": [0, 1], "numa_nodes": [0], "num_cores": 2}
