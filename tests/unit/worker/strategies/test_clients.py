"""Samples divided among clients: each sample once, evenly or by a known distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.spec.workload import Shard
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.asynchronous.fedavg import (
    classes_of,
    divide_by_class,
    divide_evenly,
    resident,
)
from scalebench.worker.workloads.order import ResidentBatches

CLASSES = np.arange(2000) % 10
CPU = torch.device("cpu")


def batches_with(targets):
    shard = Shard(rank=0, world_size=1, batch_size=2, seed=0, device=CPU)
    return ResidentBatches("mine", len(targets), shard, lambda i: (targets[i], targets[i]))


@given(samples=st.integers(8, 300), clients=st.integers(1, 8), seed=st.integers(0, 9))
def test_even_clients_have_each_sample_once(samples, clients, seed):
    divided = divide_evenly(samples, clients, seed)
    assert sorted(np.concatenate(divided)) == list(range(samples))
    sizes = [len(one) for one in divided]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("concentration", [0.3, 1.0, 100.0])
def test_uneven_clients_have_each_sample_once(concentration):
    divided = divide_by_class(CLASSES, 8, concentration, seed=1)
    assert sorted(np.concatenate(divided)) == list(range(2000))


def largest_share(concentration):
    """The largest part that one client has of a class, mean over the classes."""
    divided = divide_by_class(CLASSES, 8, concentration, seed=1)
    counts = np.array([np.bincount(CLASSES[one], minlength=10) for one in divided])
    return (counts / counts.sum(0)).max(0).mean()


def test_the_smaller_the_concentration_the_more_one_client_has_of_a_class():
    shares = [largest_share(concentration) for concentration in (0.3, 1.0, 10.0, 1000.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.45
    assert shares[-1] == pytest.approx(1 / 8, abs=0.02)


def test_a_client_without_samples_is_told():
    with pytest.raises(UsageError, match=r"of 64 clients have no samples .*Choose fewer clients"):
        divide_by_class(CLASSES, 64, 0.001, seed=0)
    with pytest.raises(UsageError, match="1 of 9 clients have no samples"):
        divide_evenly(8, 9, seed=0)


def test_classes_are_labels_or_parts_of_a_text():
    labels = torch.tensor([3, 1, 2, 3])
    assert classes_of(batches_with(labels), CPU).tolist() == [3, 1, 2, 3]
    text = classes_of(batches_with(torch.zeros(20, 5, dtype=torch.int64)), CPU)
    assert text.tolist() == [part for part in range(10) for _ in range(2)]
    with pytest.raises(Unsupported, match="a workload with classes"):
        classes_of(batches_with(torch.zeros(4)), CPU)


def test_batches_that_cannot_be_divided_are_refused():
    with pytest.raises(Unsupported, match="built-in workload"):
        resident([torch.zeros(2)])
