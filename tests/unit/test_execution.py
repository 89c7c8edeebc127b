"""What the worker says of how a rank computes."""

import pytest
import torch

from scalebench.costmodel.memory import STATES
from scalebench.worker.execution import optimizer_kind, tf32_in_force

OPTIONS = {
    "SGD": {},
    "SGD with momentum": {"momentum": 0.9},
    "Adagrad": {},
    "RMSprop": {},
    "RMSprop with momentum": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "Adam with amsgrad": {"amsgrad": True},
    "AdamW with amsgrad": {"amsgrad": True},
}


@pytest.mark.parametrize("kind", STATES)
def test_the_state_of_an_optimizer_is_as_large_as_the_cost_model_says(kind):
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimizer = getattr(torch.optim, kind.split()[0])([parameter], lr=0.1, **OPTIONS[kind])
    assert optimizer_kind(optimizer) == kind
    parameter.sum().backward()
    optimizer.step()
    tensors = [t for t in optimizer.state[parameter].values() if isinstance(t, torch.Tensor)]
    assert sum(t.numel() for t in tensors if t.numel() == 1000) == STATES[kind] * 1000
    assert sum(t.numel() for t in tensors if t.numel() != 1000) <= 2  # counters


def test_one_group_with_momentum_is_enough():
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    groups[1]["momentum"] = 0.5
    assert optimizer_kind(torch.optim.SGD(groups, lr=0.1)) == "SGD with momentum"


def test_tf32_is_a_matter_of_cuda():
    assert set(tf32_in_force(torch.device("cpu")).values()) == {False}
