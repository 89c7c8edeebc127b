"""A step's shape where its computation takes longer: everything moves, nothing falls out."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalebench.costmodel.layers.context_layers import (
    AttendingModel,
    RingWork,
    operations_of_context_step,
    ring_requests,
)
from scalebench.costmodel.layers.group_steps import with_sharding
from scalebench.costmodel.layers.replay import CommRequest, replay
from scalebench.costmodel.sharding import Groups, sharding_of
from scalebench.costmodel.step import StepShape
from scalebench.costmodel.traffic import predict_traffic
from scalebench.spec import Context, Fsdp

MOMENTS = st.floats(0, 1)


@example(moments=[], factor=1.0, num_samples=8)
@given(
    moments=st.lists(st.tuples(MOMENTS, MOMENTS), max_size=6),
    factor=st.floats(0.2, 5.0),
    num_samples=st.sampled_from((8, 16)),
)
def test_a_slowed_step_is_as_much_longer_and_can_be_replayed(moments, factor, num_samples):
    pairs = sorted((min(pair), max(pair)) for pair in moments)
    requests = tuple(CommRequest("all_reduce", 100, ready, needed) for ready, needed in pairs)
    shape = StepShape(requests, 0.8, 0.2, 16, {8: 0.55})
    slowed = shape.slowed(factor, num_samples)
    bare = shape.with_batch(num_samples)
    assert slowed.computing_s == pytest.approx(factor * bare.computing_s)
    assert slowed.with_batch(num_samples).computing_s == pytest.approx(slowed.computing_s)
    replay(
        slowed.requests, [0.0] * len(requests), slowed.computing_s
    )  # raises what is out of order
    for before, after in zip(bare.requests, slowed.requests, strict=True):
        assert after.ready_s == pytest.approx(factor * before.ready_s)


def test_a_part_of_the_batch_that_was_shorter_than_the_optimizer_can_be_predicted_from():
    """Noise does it where the model is tiny; the batch's share of the step is nothing then."""
    requests = (CommRequest("all_reduce", 100, 0.1, 0.15),)
    shape = StepShape(requests, 0.2, 0.8, 16, {8: 0.7})
    for factor in (1.0, 1.3):
        slowed = shape.slowed(factor, 8)
        again = slowed.with_batch(8)
        assert again.computing_s == pytest.approx(factor * 0.7)
        assert again.batch_s == 0
        replay(again.requests, [0.0], again.computing_s)  # raises what is out of order


def shape(*requests):
    return StepShape(tuple(requests), 0.1, 0.02, 32, {16: 0.07})


BARE = StepShape((), 0.1, 0.0, 32, {})
GROUPS = Groups((1000, 2000), 500)
SENT = {
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


def sharded(strategy, world_size):
    return with_sharding(BARE, sharding_of(strategy, world_size), GROUPS)


@given(
    st.sampled_from([Fsdp(), Fsdp(reshard_after_forward=False), Fsdp(shard_size=2)]),
    st.sampled_from([2, 4, 8]),
)
def test_all_operations_together_send_what_the_law_says(strategy, world_size):
    sent = sum(
        SENT[request.op](request.num_ranks) * request.size_bytes
        for request in sharded(strategy, world_size).requests
    )
    expected = predict_traffic(strategy, 3500, world_size, (1000, 2000, 500))
    assert sent == pytest.approx(expected.total_bytes)


WORK = RingWork(forward_s=1.0, backward_s=2.0)
ranks = st.sampled_from([2, 3, 4, 8])


def model(layers=2, again=0):
    return AttendingModel((4800,) * layers, (4800,) * again, 100, samples=2)


@given(ranks, st.integers(0, 2))
def test_the_messages_are_those_of_the_law(num_ranks, again):
    law = operations_of_context_step(Context(method="ring"), model(2, again), num_ranks, 2)
    found = ring_requests(model(2, again), num_ranks, 2, WORK, 1000.0)
    wanted = Counter(op.num_bytes for op in law if op.op == "send_recv_ring")
    assert Counter(request.size_bytes for request in found) == wanted
    assert {(one.op, one.num_ranks) for one in found} == {("send_recv_ring", num_ranks)}
