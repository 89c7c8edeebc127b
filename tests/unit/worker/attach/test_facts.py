"""What is said of a rank besides its steps."""

import os

import pytest
import torch
from torch import nn

from scalebench.worker.attach import facts
from scalebench.worker.attach.problems import ScriptProblem, check_torch


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


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0+cpu", "2.15.0a0+git1234", "3.0", "odd"])
def test_versions_that_can_be_watched(version):
    check_torch(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.3.1+cu121"])
def test_versions_that_are_too_old(version):
    with pytest.raises(ScriptProblem, match=r"2\.4 or newer is needed"):
        check_torch(version)
