"""The workload that waits instead of computing waits as long as it says; real time."""

import time

import pytest
import torch

from tests.builders.paced import build, gradients_of

pytestmark = pytest.mark.timed


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_smaller_batch_takes_proportionally_less_time(world_size):
    workload = build(world_size=world_size)
    batch = next(iter(workload.batches))
    gradients_of(workload, batch)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        gradients_of(workload, batch)
        taken.append(time.perf_counter() - began)
    asked = 0.006 * 8 / world_size
    assert asked <= min(taken) < asked + 0.02


def test_forward_takes_a_third():
    workload = build()
    batch = next(iter(workload.batches))
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        with torch.no_grad():
            workload.loss(workload.module, batch)
        taken.append(time.perf_counter() - began)
    assert 0.016 <= min(taken) < 0.016 + 0.02
