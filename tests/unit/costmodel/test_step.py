"""A step's shape where its computation takes longer: everything moves, nothing falls out."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalebench.costmodel.context_layers import (
    AttendingModel,
    RingWork,
    operations_of_context_step,
    ring_requests,
)
from scalebench.costmodel.expert_layers import ExpertModel
from scalebench.costmodel.group_steps import MeshModel, model_of_workload, with_sharding
from scalebench.costmodel.links.times import LinkTime
from scalebench.costmodel.replay import CommRequest, replay
from scalebench.costmodel.sharding import Groups, sharding_of
from scalebench.costmodel.step import StepShape, predict_step, with_messages
from scalebench.costmodel.tensor_layers import model_of_preset
from scalebench.costmodel.traffic import predict_traffic
from scalebench.spec import Context, Expert, Fsdp, Mesh, Tensor
from scalebench.spec.presets import PRESETS, GptShape, MoeShape

MOMENTS = st.floats(0, 1)


@example(moments=[], factor=1.0, num_samples=8)
@given(
    moments=st.lists(st.tuples(MOMENTS, MOMENTS), max_size=6),
    factor=st.floats(0.2, 5.0),
    num_samples=st.sampled_from((8, 16)),
)
def test_a_slowed_step_is_as_much_longer_and_can_be_replayed(
    moments: list[tuple[float, float]], factor: float, num_samples: int
) -> None:
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


def test_a_part_of_the_batch_that_was_shorter_than_the_optimizer_can_be_predicted_from() -> None:
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


def test_gathered_messages_grow_with_the_ranks_and_so_does_their_decoding():
    one = shape(CommRequest("all_gather", 100, 0.05, 0.1), CommRequest("all_reduce", 8, 0.1, 0.1))
    four = with_messages(one, 4, decode_s=0.01)
    assert [r.size_bytes for r in four.requests] == [400, 8]
    assert four.computing_s == pytest.approx(one.computing_s + 3 * 0.01)
    assert four.computing_of(16) == pytest.approx(0.07 + 3 * 0.01)
    assert with_messages(one, 1, decode_s=0.01) == one


def test_what_is_all_reduced_stays_as_it_is():
    one = shape(CommRequest("all_reduce", 100, 0.05, 0.1))
    assert with_messages(one, 4, decode_s=0.01) is one


GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
MOE = next(shape for shape in PRESETS.values() if isinstance(shape, MoeShape))
CNN = PRESETS["cnn-8"]


@pytest.mark.parametrize("sequence", [False, True])
def test_replicas_of_tensor_groups_are_divided_as_one_group_is(sequence):
    divided = model_of_preset(GPT, 2, sequence)
    of_mesh = model_of_workload(Mesh(data=2, tensor=2, sequence=sequence), GPT, 2)
    assert of_mesh == MeshModel(divided)
    assert model_of_workload(Tensor(sequence=sequence), GPT, 2) == divided


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(shard=2, tensor=2),
        Mesh(pipeline=2, tensor=2, microbatches=2),
        Mesh(data=2, context=2),
        Mesh(tensor=2, context=2),
    ],
)
def test_other_divisions_are_known_from_the_first_step_alone(mesh):
    assert model_of_workload(mesh, GPT, 2) is None


def test_each_strategy_has_the_model_of_what_it_divides():
    assert model_of_workload(Context(), GPT, 2) == AttendingModel.of_preset(GPT, 2)
    assert model_of_workload(Expert(), MOE, 2) == ExpertModel.of_preset(MOE, 2)
    for strategy in (Tensor(), Context(), Expert(), Mesh(data=2, tensor=2)):
        assert model_of_workload(strategy, CNN, 2) is None


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


WORK = RingWork(forward_s=1.0, backward_s=2.0)
ranks = st.sampled_from([2, 3, 4, 8])


def model(layers=2, again=0):
    return AttendingModel((4800,) * layers, (4800,) * again, 100, samples=2)


def stalled_s(num_ranks, message_s, layers=2):
    step_s = layers * num_ranks * 3.0 + 1
    requests = ring_requests(model(layers), num_ranks, 2, WORK, step_s)
    return replay(requests, [message_s] * len(requests), step_s).stalled_s


@given(ranks, st.integers(0, 2))
def test_the_messages_are_those_of_the_law(num_ranks, again):
    law = operations_of_context_step(Context(method="ring"), model(2, again), num_ranks, 2)
    found = ring_requests(model(2, again), num_ranks, 2, WORK, 1000.0)
    wanted = Counter(op.num_bytes for op in law if op.op == "send_recv_ring")
    assert Counter(request.size_bytes for request in found) == wanted
    assert {(one.op, one.num_ranks) for one in found} == {("send_recv_ring", num_ranks)}


@given(ranks)
def test_what_is_shorter_than_a_turn_is_hidden_but_for_the_last_gradients(num_ranks):
    assert stalled_s(num_ranks, 0.5) == pytest.approx(2 * 0.5)


def test_two_ranks_by_hand():
    # Forward: a message of 1.5 over a turn of 1. Backward: the same over a turn of 2, hidden; the
    # gradients behind the last turn are not.
    assert stalled_s(2, 1.5, layers=1) == pytest.approx(0.5 + 1.5)


@given(ranks, st.floats(0.01, 10))
def test_longer_turns_never_wait_longer(num_ranks, message_s):
    step_s = 1000.0
    took = []
    for turns in (WORK, WORK.slowed(2.0)):
        requests = ring_requests(model(), num_ranks, 2, turns, step_s)
        took.append(replay(requests, [message_s] * len(requests), step_s).stalled_s)
    assert took[1] <= took[0] + 1e-9
