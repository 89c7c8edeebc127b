"""What DataLoaders hand over is counted for the training and for nothing else."""

from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from scalebench.worker.attach.batches import Batches, size_of
from scalebench.worker.attach.clocks import HostClock

NEXT = _BaseDataLoaderIter.__next__


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (torch.zeros(8, 3), 8, 0),
        ((torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)), 8, 0),
        ({"input_ids": torch.zeros(4, 16, dtype=torch.long), "mask": torch.ones(4, 16)}, 4, 64),
        (UserDict(x=torch.zeros(5, 2)), 5, 0),
        (SimpleNamespace(x=torch.zeros(6, 2)), 6, 0),
        ([{"x": [torch.zeros(7)]}], 7, 0),
        ({"scale": torch.tensor(2.0), "x": torch.zeros(3, 1)}, 3, 0),
        (["a", "b"], 0, 0),
        (None, 0, 0),
    ],
)
def test_the_size_of_a_batch_is_that_of_its_first_tensor(batch, samples, tokens):
    assert size_of(batch) == (samples, tokens)


def loader(num_samples: int, batch_size: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(num_samples, 2)), batch_size=batch_size)


def test_microbatches_are_added_up_and_evaluation_is_not():
    counted = Batches(HostClock())
    train, evaluation = iter(loader(32, 4)), iter(loader(30, 10))
    for _ in range(2):
        counted.next_of(train, NEXT)
        counted.backward()
    fed = counted.take()
    assert (fed.samples, fed.batches) == (8, 2)
    for _ in range(3):
        counted.next_of(evaluation, NEXT)
    counted.next_of(train, NEXT)
    counted.backward()
    assert counted.take().samples == 4


def test_the_end_of_an_epoch_is_no_beginning_of_a_step():
    counted = Batches(HostClock())
    train = iter(loader(4, 4))
    counted.next_of(train, NEXT)
    counted.backward()
    counted.take()
    with pytest.raises(StopIteration):
        counted.next_of(train, NEXT)
    before = HostClock().now()
    again = iter(loader(4, 4))
    counted.next_of(again, NEXT)
    counted.backward()
    assert counted.take().began >= before


def test_without_a_loader_nothing_is_known():
    fed = Batches(HostClock()).take()
    assert (fed.began, fed.samples, fed.batches) == (None, 0, 0)


def test_what_a_prefetcher_reads_without_gradients_feeds_the_training():
    counted = Batches(HostClock())
    counted.next_of(iter(loader(32, 16)), NEXT)  # a look at the data
    loaders = loader(32, 4), loader(30, 10)
    for _ in range(2):
        train, evaluation = map(iter, loaders)
        samples = []
        for _ in range(4):
            with torch.no_grad():
                counted.next_of(train, NEXT)
            for _ in range(2):
                counted.backward()
            samples.append(counted.take().samples)
        with torch.no_grad():
            counted.next_of(evaluation, NEXT)
    assert samples == [4] * 4  # from the second epoch on; of the first, one step is not known


def test_an_evaluation_before_a_batch_of_a_queue_is_none_that_feeds_the_training():
    counted = Batches(HostClock())
    train = iter(loader(64, 4))
    for _ in range(3):
        counted.next_of(train, NEXT)
        counted.next_of(train, NEXT)  # read ahead
        with torch.no_grad():
            counted.next_of(iter(loader(30, 10)), NEXT)
        counted.backward()
        counted.take()
        counted.next_of(train, NEXT)
        counted.backward()
        assert counted.take().samples == 4


def test_bare_steps_leave_loaders_alone():
    counted = Batches(HostClock())
    counted.off = True
    train = iter(loader(4, 4))
    counted.next_of(train, NEXT)
    counted.backward()
    assert counted.take().samples == 0
