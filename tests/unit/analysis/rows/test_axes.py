"""A row's communication by the dimension of the mesh whose group carried it."""

from itertools import pairwise

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.at_one_rank import NO_SHARD, GroupAtOneRank
from scalebench.analysis.rows.axes import axes_of_row
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.memory_axes import NO_MESH, memory_by_axis
from scalebench.analysis.rows.prediction import predict_row
from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.links.times import LinkTime
from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.tensor_layers import model_of_preset, operations_of_step
from scalebench.records.rank import Memory
from scalebench.spec import Context, Ddp, Mesh, Plain, Tensor
from scalebench.spec.presets import GptShape
from tests.builders.predictions import SECONDS_PER_BYTE, the_link
from tests.builders.runs import make_cell, make_inspection, make_record, make_result
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result


def rank_of(rank, world_size):
    """Two steps of 80 ms, the first 40 computed; then two operations of 5 ms along tensor.

    All ranks come at the same time. Along data each is a group by itself.
    """
    operations = []
    tensor = {"axis": "tensor", "group": "all", "group_size": world_size}
    data = {"axis": "data", "group": f"ranks {rank}", "group_size": 1}
    for step, begin in enumerate((0, 80)):
        operations += [
            make_operation(begin + 45, begin + 50, step, ordinal=0, **tensor),
            make_operation(begin + 55, begin + 60, step, ordinal=1, **tensor),
            make_operation(begin + 70, begin + 74, step, **data),
        ]
    trace = make_trace(operations, [(0, 40), (80, 120)], [(0, 80), (80, 160)])
    return make_traced_record(rank, trace, 80)


def axes(world_size):
    records = [rank_of(rank, world_size) for rank in range(world_size)]
    strategy = Mesh(tensor=world_size)
    launch = LaunchAttribution(make_traced_result(*records, case="mesh", strategy=strategy))
    return axes_of_row([launch], 0)


def test_figures_are_those_of_one_step_and_of_groups_with_several_ranks():
    (tensor,) = axes(2)
    assert (tensor.axis, tensor.num_ranks, tensor.count) == ("tensor", 2, 2)
    assert (tensor.num_bytes, tensor.wire_bytes) == (2000, 2000)  # 2·(N−1)/N = 1 at N=2
    assert (tensor.total_s, tensor.exposed_s) == pytest.approx((0.01, 0.01))
    assert tensor.wait_s == pytest.approx(0)


def test_at_one_rank_every_group_is_shown():
    tensor, data = axes(1)
    assert (tensor.axis, tensor.count, tensor.wire_bytes) == ("tensor", 2, 0)
    assert (data.axis, data.count, data.total_s) == ("data", 1, pytest.approx(0.004))


ALONE = MeasuredBaseline(
    Plain(),
    32,
    Memory(
        rss_bytes=1,
        parameters_bytes=4000,
        gradients_bytes=0,
        optimizer_bytes=8000,
        activations_bytes=16000,
        activations_peak_bytes=16000,
        data_bytes=100,
    ),
)
"""1,000 parameters and AdamW; 500 bytes of activations for each of 32 samples."""
LAYERS = {"optimizer": "AdamW", "parameters": [[600, True], [400, False]]}


def result(strategy, world_size, facts=LAYERS):
    cell = make_cell("mesh", world_size, strategy=strategy, global_batch=32, rank_batch=32)
    ranks = [make_record(r, num_parameters=1000, facts=facts) for r in range(world_size)]
    return make_result(cell, ranks=ranks)


def savings(strategy, world_size, facts=LAYERS, inspection=None):
    found = memory_by_axis(result(strategy, world_size, facts), inspection, ALONE, ())
    assert found.one_process_bytes == 4000 + 8000 + 16000 + 100
    total = sum(one.total_bytes for one in found.savings)
    assert found.rank_bytes == found.one_process_bytes - total
    return {one.axis: (one.state_bytes, one.activations_bytes) for one in found.savings}


def test_replicas_and_tensor_groups():
    """Half of the samples; of 600 of the 1,000 parameters half."""
    found = savings(Mesh(tensor=2, sequence=True), 4)
    assert found == {"data": (0, 8000), "tensor": (3600, 4000)}


def test_without_a_divided_sequence_no_law_says_what_tensor_groups_do_to_activations():
    assert savings(Tensor(size=2), 4) == {"data": (0, 8000), "tensor": (3600, 0)}


def test_shards_divide_everything():
    assert savings(Mesh(shard=None), 4) == {"shard": (9000, 12000)}


def test_tokens_divide_activations_alone():
    assert savings(Context(), 4) == {"context": (0, 12000)}


def test_the_stage_of_the_fullest_rank_counts():
    """It has all 1,000 of 1,000 parameters, and of 4 microbatches it keeps two, or one."""
    mesh = Mesh(pipeline=2, data=1, microbatches=4)
    assert savings(mesh, 2) == {"pipeline": (0, 16000 - 4000)}
    inspection = make_inspection(result(mesh, 2).cell)  # its rank 1 is the fullest
    assert savings(mesh, 2, inspection=inspection) == {"pipeline": (0, 16000 - 2000)}


@pytest.mark.parametrize(
    ("strategy", "facts", "reason"),
    [
        (Ddp(), LAYERS, NO_MESH),
        (Mesh(tensor=2), {"optimizer": "AdamW"}, "no launch told which layers are divided"),
        (Mesh(expert=2), LAYERS, "experts"),
        (
            Mesh(pipeline=2, microbatches=4, chunks=2, schedule="interleaved-1f1b"),
            LAYERS,
            "interleaved-1f1b",
        ),
        (Mesh(tensor=2), {**LAYERS, "optimizer": "Adafactor"}, "Adafactor"),
    ],
)
def test_what_cannot_be_told_has_a_reason(strategy, facts, reason):
    with pytest.raises(Unavailable, match=reason):
        memory_by_axis(result(strategy, 2, facts), None, ALONE, ())


def test_without_a_baseline_and_on_one_rank_there_is_nothing_to_divide():
    with pytest.raises(Unavailable, match="baseline"):
        memory_by_axis(result(Mesh(tensor=2), 2), None, None, ())
    with pytest.raises(Unavailable, match="one rank"):
        memory_by_axis(result(Mesh(), 1), None, ALONE, ())


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
