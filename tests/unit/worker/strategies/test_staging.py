"""A worker's messages: pinned for a GPU alone, and what happens in which order there.

A stand-in for the GPU: its name, the CPU's memory, and a record of what was asked for.
"""

import pytest
import torch

from scalebench.worker.strategies.asynchronous.staging import Staging, host_vector

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")
SIZES = [3, 0, 2]


class Recorded:
    """Makes memory of the CPU, and notes what was asked for."""

    def __init__(self):
        self.asked = []
        self.waits = []

    def empty(self, *size, pin_memory=False, device=CPU, dtype=torch.float32):
        """Note a request for memory; it holds no numbers yet."""
        self.asked.append((size[0], pin_memory, device))
        return torch.full(size, float("nan"), dtype=dtype)

    def wait(self, device):
        """Note a wait."""
        self.waits.append(device)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_memory_is_pinned_for_a_gpu_alone(device):
    recorded = Recorded()
    host_vector(5, device, torch.float64, recorded.empty)
    Staging(SIZES, device, recorded.empty, recorded.wait)
    sizes = [5, 4, 1, 3, 4, 1, 3]
    assert recorded.asked == [(size, device is GPU, CPU) for size in sizes]


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_gradient_is_divided_among_the_servers_once_its_copies_are_there(device):
    recorded = Recorded()
    staging = Staging(SIZES, device, recorded.empty, recorded.wait)
    staging.stage(torch.arange(5.0), kind=7.0)
    assert [one.tolist() for one in staging.pushes] == [[0, 1, 2, 7], [7], [3, 4, 7]]
    assert recorded.waits == ([GPU] if device is GPU else [])


@pytest.mark.parametrize("device", [CPU, GPU])
def test_answers_become_parameters_on_the_device_in_memory_of_their_own(device):
    recorded = Recorded()
    staging = Staging(SIZES, device, recorded.empty, recorded.wait)
    for pull, values in zip(staging.pulls, ([1.0, 2, 3, 9], [9.0], [4.0, 5, 9]), strict=True):
        pull.copy_(torch.tensor(values))
    recorded.asked.clear()
    found = staging.parameters()
    for pull in staging.pulls:
        pull.zero_()
    assert found.tolist() == [1, 2, 3, 4, 5]
    assert recorded.asked == ([(5, False, GPU)] if device is GPU else [])
    assert recorded.waits == [], "the next push waits"
