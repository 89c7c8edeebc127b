from collections import namedtuple
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from scalebench.errors import UsageError
from scalebench.spec import Loader
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import batches as feeds
from scalebench.worker.workloads.flops import count_flops
from scalebench.worker.workloads.loaded import LoadedBatches
from scalebench.worker.workloads.transformers import route
from tests.examples import cases, examples

Pair = namedtuple("Pair", ["inputs", "targets"])
CPU = torch.device("cpu")


def samples(n, width=3):
    return torch.arange(n * width, dtype=torch.float32).reshape(n, width)


def same(left, right):
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
    pieces = feeds.split(batch, parts)
    assert len(pieces) == parts
    assert same(feeds.concatenate(pieces), batch)


@cases("num_samples, parts", (10, 4), (6, 4), (2, 4), (5, 2))
def test_a_batch_that_cannot_be_cut_into_equal_parts_is_refused(num_samples, parts):
    with pytest.raises((ValueError, UsageError), match=str(parts)):
        feeds.split(samples(num_samples), parts)


@cases(
    "batches, told",
    ([samples(64)], "contain 64 samples, but 32 were requested"),
    *(([batch], "cannot be counted") for batch in ((samples(2), samples(3)), [], {"name": "x"})),
    *((nothing, "ended without a single batch") for nothing in ([], (), iter(()))),
)
def test_a_feed_of_another_size_uncounted_or_of_nothing_is_refused(batches, told):
    with pytest.raises(UsageError, match=told):
        next(feeds.endless(batches, CPU, 32))


def test_a_feed_that_can_be_iterated_once_says_so_at_its_end():
    feed = feeds.endless((samples(1) for _ in range(2)), CPU, 1)
    next(feed), next(feed)
    with pytest.raises(UsageError, match="more than once"):
        next(feed)


@settings(max_examples=examples(30))
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 7), st.integers(0, 1000))
def test_epochs_follow_one_another_as_resident_ones_do(world_size, batch_size, extra, seed):
    num_samples = 2 * world_size * batch_size + extra
    for rank in range(world_size):
        shard = Shard(rank, world_size, batch_size, seed, CPU)
        resident = feeds.ResidentBatches("w", num_samples, shard, lambda index: (index, -index))
        loaded = LoadedBatches(resident, Loader(), CPU)
        for _ in range(2):  # every iteration starts at the first epoch
            pairs = islice(zip(resident, loaded, strict=True), 3 * (2 + extra))
            assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def test_attention_costs_the_same_by_whatever_kernel():
    """Two products forward, four backward: what a kernel recomputes is its own business."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def cost(backend):
        q, k, v = (torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))
        with sdpa_kernel(backend), count_flops() as flops:
            F.scaled_dot_product_attention(q, k, v).sum().backward()
        return flops.total

    by_hand = 3 * 2 * (2 * 2 * 4 * 32 * 32 * 16)
    assert cost(SDPBackend.FLASH_ATTENTION) == cost(SDPBackend.MATH) == by_hand


@st.composite
def routings(draw):
    samples, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    experts = draw(st.integers(1, 6))
    top_k = draw(st.integers(1, experts))
    capacity = draw(st.none() | st.integers(1, 8))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(samples, tokens, experts, generator=random)
    logits[..., 0] += draw(st.sampled_from([0.0, 3.0]))  # an expert that most tokens choose
    return logits, top_k, capacity, route(logits, top_k, capacity)


def experts_of(routing):
    numbers = torch.arange(len(routing.counts))
    return numbers.repeat_interleave(torch.tensor(routing.counts))


@given(routings())
def test_every_choice_is_carried_out_once_or_is_a_dropped_one(found):
    logits, top_k, capacity, routing = found
    samples, tokens, num_experts = logits.shape
    assert sum(routing.chosen) == samples * tokens * top_k
    rows = list(zip(routing.token.tolist(), experts_of(routing).tolist(), strict=True))
    assert len(rows) == len(set(rows)) == sum(routing.counts)
    chosen = logits.flatten(0, 1).topk(top_k).indices
    assert all(expert in chosen[token] for token, expert in rows)
    for sample in range(samples):
        here = [(t, e) for t, e in rows if t // tokens == sample]
        of_sample = chosen[sample * tokens : (sample + 1) * tokens].flatten().tolist()
        for expert in range(num_experts):
            wanted = of_sample.count(expert)
            limit = wanted if capacity is None else min(wanted, capacity)
            assert sum(e == expert for _, e in here) == limit


@given(routings())
def test_weights_are_the_routers_probabilities(found):
    logits, top_k, capacity, routing = found
    probabilities = logits.softmax(-1).flatten(0, 1)
    expected = probabilities[routing.token, experts_of(routing)]
    if top_k > 1:
        expected = expected / probabilities.topk(top_k).values.sum(-1)[routing.token]
    assert torch.allclose(routing.weight, expected)
    if capacity is None:
        sums = torch.zeros(len(probabilities)).index_add(0, routing.token, routing.weight)
        assert top_k == 1 or torch.allclose(sums, torch.ones_like(sums))
