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
