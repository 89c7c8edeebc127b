"""What is said of a rank besides its steps."""

import os

import pytest
import torch
from torch import nn

from scalebench.worker.attach import facts


@pytest.mark.parametrize(
    ("device", "by_device", "backend"),
    [
        ("cpu", "cpu:gloo,cuda:nccl", "gloo"),
        ("cuda", "cpu:gloo,cuda:nccl", "nccl"),
        ("cuda", "cpu:gloo", None),
        ("cpu", "undefined", None),
    ],
)
def test_the_backend_of_a_device(device, by_device, backend):
    assert facts.backend_for(device, by_device) == backend


def test_parameters_are_counted_once():
    model = nn.Linear(4, 2)
    two = [torch.optim.SGD(model.parameters()), torch.optim.Adam([model.bias])]
    told = facts.of_training(two, "cpu")
    assert told["num_parameters"] == 4 * 2 + 2
    assert told["facts"]["optimizer"] == "SGD, Adam"
    assert told["facts"]["backend"] is None
    assert told["facts"]["affinity"] == sorted(os.sched_getaffinity(0))
    assert told["facts"]["scheduling_class"] == "default"


def test_memory_on_cpu_is_the_process_alone():
    assert set(facts.memory("cpu")) == {"rss_bytes"}


def test_what_loading_a_model_cost_the_allocator_does_not_count(monkeypatch):
    cuda = facts.torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "mem_get_info", lambda: (60, 80))
    for peak in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(cuda, peak, lambda: 10)
    monkeypatch.setattr(cuda, "memory_stats", lambda: {"num_alloc_retries": 3})
    before = facts.allocator_retries("cuda")
    monkeypatch.setattr(cuda, "memory_stats", lambda: {"num_alloc_retries": 5})
    assert facts.memory("cuda", before)["allocator_retries"] == 2
