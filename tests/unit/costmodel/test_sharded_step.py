"""The operations of a sharded step on CPU, held against the strategy's traffic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.links.times import LinkTime
from scalebench.costmodel.sharded_step import with_sharding
from scalebench.costmodel.sharding import Groups, sharding_of
from scalebench.costmodel.step import StepShape, predict_step
from scalebench.costmodel.traffic import predict_traffic
from scalebench.spec import Fsdp

BARE = StepShape((), 0.1, 0.0, 32, {})
GROUPS = Groups((1000, 2000), 500)
SENT = {
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


def sharded(strategy, world_size):
    return with_sharding(BARE, sharding_of(strategy, world_size), GROUPS)


def test_a_group_is_gathered_twice_and_scattered_once_the_root_gathered_once():
    found = sharded(Fsdp(), 4).requests
    assert [r.size_bytes for r in found if r.op == "all_gather"] == [4000, 8000, 2000, 4000, 8000]
    assert [r.size_bytes for r in found if r.op == "reduce_scatter"] == [4000, 8000, 2000]
    assert {r.num_ranks for r in found} == {4}


def test_replicas_reduce_their_shards_among_themselves():
    found = [r for r in sharded(Fsdp(shard_size=2), 8).requests if r.op == "all_reduce"]
    assert [(r.size_bytes, r.num_ranks) for r in found] == [(2000, 4), (4000, 4), (1000, 4)]


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


def test_every_operation_is_waited_for():
    def millisecond(op, num_ranks, size_bytes):
        return LinkTime(1e-3, 1e-3, 1e-3, (num_ranks,))

    shape = sharded(Fsdp(), 4)
    found = predict_step(shape, millisecond, 4, 32)
    assert found.step_s == pytest.approx(0.1 + 1e-3 * len(shape.requests))
