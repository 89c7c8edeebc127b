"""A tensor group's step: the shard's computation, and every message of the law waited for."""

from itertools import pairwise

import pytest

from scalebench.analysis.rows.at_one_rank import NO_SHARD, GroupAtOneRank
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import predict_row
from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.links.times import LinkTime
from scalebench.costmodel.tensor_layers import model_of_preset, operations_of_step
from scalebench.spec import Context, Tensor
from scalebench.spec.presets import GptShape
from tests.builders.runs import make_cell, make_record, make_result
from tests.unit.analysis.rows.test_prediction import SECONDS_PER_BYTE, the_link

GPT = GptShape(name="g", layers=2, heads=4, width=64, context=64, batch_size=8)
MODEL = model_of_preset(GPT, 8)
FACTS = {
    "divided_layers": [vars(layer) | {"parameters": [*layer.parameters]} for layer in MODEL.layers],
    "divided_samples": 8,
    "divided_logits": True,
    "parameters": [[*one] for one in MODEL.parameters],
}


DIVIDED = Tensor(loss=True)  # sends nothing but all-reduces, which the link knows


def cell(world_size, strategy=DIVIDED, batch=8, **changes):
    return make_cell(
        case="tensor", strategy=strategy, workload=GPT, world_size=world_size,
        global_batch=batch, rank_batch=batch, **changes,
    )  # fmt: skip


def at_one(**changes):
    result = make_result(cell(1), ranks=[make_record(0, facts=FACTS)], **changes)
    return Launches(cell(1), measured={0: result})


def shard(step_s, repeat=0):
    of = cell(2, purpose="shard", repeat=repeat)
    return make_result(of, ranks=[make_record(0, clean_s=(step_s,) * 4)])


def test_a_step_is_the_shard_and_all_that_is_waited_for():
    bytes_sent = sum(op.num_bytes for op in operations_of_step(DIVIDED, MODEL, 2, 8))
    row = Launches(cell(2), shards=(shard(0.03), shard(0.03, 1)))
    found = predict_row(row, at_one(), the_link(2), 0.05, contention=1.1)
    told = found["prediction"]
    assert told.computing_s == pytest.approx(0.033)
    assert told.exposed_comm_s == pytest.approx(bytes_sent * SECONDS_PER_BYTE, rel=0.02)
    assert found["predicted_step_s"] == pytest.approx(told.computing_s + told.exposed_comm_s)
    assert (told.base_world_size, told.contention) == (1, 1.1)
    assert (told.launch_spread, told.launch_dof) == (pytest.approx(0), 1)
    assert len(told.operations) == 4 * 2 + 2 + 3


def test_without_a_shard_there_is_no_prediction_and_the_reason():
    found = predict_row(Launches(cell(2)), at_one(), the_link(2), 0.05)
    assert str(found["predicted_step_s"]) == NO_SHARD


def test_layers_send_within_the_step_and_gradients_are_summed_behind_it():
    strategy = Tensor(sequence=True)
    operations = operations_of_step(strategy, MODEL, 2, 8)
    shape = GroupAtOneRank(model=MODEL, shard_s=0.03, contention=1.5).shape_of(cell(2, strategy))
    assert shape.computing_s == 0.03, "of a rank that has the machine to itself"
    behind = [r for r in shape.requests if r.ready_s == 0.03]
    assert len(behind) == sum(op.phase == "gradients" for op in operations) > 0
    within = [r.ready_s for r in shape.requests if r.ready_s < 0.03]
    gaps = {round(after - before, 12) for before, after in pairwise(within)}
    assert len(gaps) == 1 and within[0] > 0
    assert {request.axis for request in shape.requests} == {"tensor"}


def ring_at_one(turns_s=None):
    """Return a ring with its shard's launches: a step of 1 s, and turns if they were timed."""
    of = cell(2, RING, purpose="shard")
    told = {"context": {} if turns_s is None else {"turns_s": turns_s}}
    alone = make_result(of, ranks=[make_record(0, facts=told, clean_s=(1.0,) * 4)])
    return GroupAtOneRank(model=AttendingModel.of_preset(GPT, 8)).with_shards([alone])


def by_size(op, world_size, size_bytes):
    """Return a link that takes a tenth of a second for what a ring hands on, nothing else."""
    took_s = 0.1 if op == "send_recv_ring" else 0.0
    return LinkTime(took_s, took_s, took_s, (world_size,))


RING = Context(method="ring")


def test_a_ring_hides_messages_behind_its_turns_but_for_the_last_gradients():
    hidden = ring_at_one({"forward": 0.1, "backward": 0.2}).predict(cell(2, RING), by_size)
    assert hidden.stalled_s == pytest.approx(GPT.layers * 0.1)
    assert hidden.step_s == pytest.approx(1 + GPT.layers * 0.1)
    assert len(hidden.requests) == GPT.layers * 3 + 1


def test_the_textbook_adds_every_byte_to_the_shard_and_no_latency():
    """By the ring's law a rank of two sends each byte once."""
    bytes_sent = sum(op.num_bytes for op in operations_of_step(DIVIDED, MODEL, 2, 8))
    bare, link = GroupAtOneRank(model=MODEL, shard_s=0.03), the_link(2)
    told_s = bare.textbook_s(cell(2), bare.predict(cell(2), link.time), link)
    assert told_s == pytest.approx(0.03 + bytes_sent * SECONDS_PER_BYTE)
