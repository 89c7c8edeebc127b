from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.worker.workloads.batches import concatenate, map_tensors, split
from scalebench.worker.workloads.feed import endless
from tests.examples import examples

Pair = namedtuple("Pair", ["inputs", "targets"])
CPU = torch.device("cpu")


def samples(n, width=3):
    return torch.arange(n * width, dtype=torch.float32).reshape(n, width)


def same(left, right):
    """Equal in structure, types, shapes and values."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def structures(n):
    """Batches of n samples, nested in every way that is allowed."""
    shapes = st.lists(st.integers(1, 3), max_size=2)
    leaves = shapes.map(lambda shape: torch.randn(n, *shape)) | st.just(torch.arange(n))
    constants = st.sampled_from([None, 3, "text", 0.5])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner | constants, min_size=1, max_size=3),
            st.lists(inner | constants, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner | constants, min_size=1, max_size=3),
            st.tuples(inner, inner).map(lambda two: Pair(*two)),
        ),
        max_leaves=5,
    )


@settings(max_examples=examples(40))
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_joining_what_was_split_gives_the_batch_again(data, parts, rank_batch):
    batch = data.draw(structures(parts * rank_batch))
    pieces = split(batch, parts)
    assert len(pieces) == parts
    assert same(concatenate(pieces), batch)


@settings(max_examples=examples(40))
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_splitting_what_was_joined_gives_the_parts_again(data, parts, rank_batch):
    shape = data.draw(structures(rank_batch))
    pieces = [map_tensors(lambda t, k=k: t + k, shape) for k in range(parts)]
    again = split(concatenate(pieces), parts)
    assert all(map(same, again, pieces))


def test_parts_are_equal_consecutive_samples():
    batch = {"x": samples(6), "y": torch.arange(6)}
    pieces = split(batch, 3)
    assert [piece["y"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    assert [len(piece["x"]) for piece in pieces] == [2, 2, 2]


@pytest.mark.parametrize(("num_samples", "parts"), [(10, 4), (6, 4), (2, 4), (5, 2)])
def test_a_batch_that_cannot_be_cut_into_equal_parts_is_refused(num_samples, parts):
    with pytest.raises((ValueError, UsageError), match=str(parts)):
        split(samples(num_samples), parts)


def test_a_feed_that_ignores_the_batch_size_is_refused():
    with pytest.raises(UsageError, match="contain 64 samples, but 32 were requested"):
        next(endless([samples(64)], CPU, 32))


@pytest.mark.parametrize("batch", [(samples(2), samples(3)), [], {"name": "x"}])
def test_a_feed_whose_samples_cannot_be_counted_is_refused(batch):
    with pytest.raises(UsageError, match="cannot be counted"):
        next(endless([batch], CPU, 2))


def test_a_feed_asks_the_workload_anew_for_every_epoch():
    class Epochs:
        epoch = 0

        def __iter__(self):
            self.epoch += 1
            return iter([torch.tensor([self.epoch])])

    feed = endless(Epochs(), CPU, 1)
    assert [int(next(feed)) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("batches", [[], (), iter(())])
def test_a_feed_of_nothing_is_the_workloads_fault(batches):
    with pytest.raises(UsageError, match="ended without a single batch"):
        next(endless(batches, CPU, 1))


def test_a_feed_that_can_be_iterated_once_says_so_at_its_end():
    feed = endless((samples(1) for _ in range(2)), CPU, 1)
    next(feed), next(feed)
    with pytest.raises(UsageError, match="more than once"):
        next(feed)
