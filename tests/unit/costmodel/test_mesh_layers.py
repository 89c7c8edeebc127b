"""What the ranks of a mesh send along each dimension, by hand and beside the laws of each alone."""

from dataclasses import replace

import pytest

from scalebench.analysis.rows.axes import wire_bytes_by_axis
from scalebench.costmodel.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.group_steps import (
    MeshModel,
    StageModel,
    operations_of_mesh_step,
)
from scalebench.costmodel.tensor_layers import (
    DividedModel,
    NoLaw,
    model_of_preset,
    operations_of_step,
)
from scalebench.spec import Context, Mesh, Tensor
from scalebench.spec.presets import GptShape

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
SAMPLES = 2
GATHERED = (
    (((3 * 8, 8), 0), ((8,), None)),  # a block: a matrix by columns, a norm
    (((5, 8), None),),  # the rest: five rows
)
BLOCK, REST = 4 * (12 * 8 + 8), 4 * 6 * 8  # rows are padded to a multiple of two shards
DIVIDED = replace(model_of_preset(GPT, SAMPLES, sequence=True), gathered=GATHERED)
SHARDED = {"shard": 2, "tensor": 2, "sequence": True, "loss": True}


def sent(mesh, world_size, model=None, batch=SAMPLES):
    return operations_of_mesh_step(mesh, model or MeshModel(DIVIDED), world_size, batch)


def along(found, axis):
    return [(one.op, one.num_bytes, one.num_ranks) for one in found if one.axis == axis]


def test_shards_of_tensor_groups_are_gathered_twice_but_for_the_rest():
    found = along(sent(Mesh(**SHARDED), 4), "shard")
    assert [size for op, size, _ in found if op == "all_gather"] == [BLOCK, REST, BLOCK]
    assert [size for op, size, _ in found if op == "reduce_scatter"] == [BLOCK, REST]
    assert {ranks for *_, ranks in found} == {2}


def test_with_shards_the_gradients_of_norms_are_summed_one_by_one():
    found = sent(Mesh(**SHARDED), 4)
    norms = [size for op, size, _ in along(found, "tensor") if (op, size) == ("all_reduce", 4 * 8)]
    assert len(norms) >= 2 * (2 * 3 + 1)
    assert "gradients" not in {one.phase for one in found}


def test_operations_stand_in_the_order_of_a_step():
    stages = StageModel((100,), (60,), (40,), 2)
    mesh = Mesh(pipeline=2, microbatches=2, **SHARDED)
    phases = [one.phase for one in sent(mesh, 16, MeshModel(DIVIDED, stages=stages))]
    assert phases == sorted(phases, key=("forward", "backward", "gradients").index)


def test_replicas_of_shards_average_each_blocks_own_part():
    found = along(sent(Mesh(**SHARDED), 12), "data")
    assert found == [("all_reduce", BLOCK // 2, 3), ("all_reduce", REST // 2, 3)]


def test_a_stage_gathers_once_a_step_and_hands_on_every_microbatch():
    stages = StageModel((100,), (60,), (40,), 2)
    mesh = Mesh(pipeline=4, microbatches=4, **SHARDED)
    found = sent(mesh, 16, MeshModel(DIVIDED, stages=stages))
    gathers = [size for op, size, _ in along(found, "shard") if op == "all_gather"]
    assert gathers == [BLOCK, REST]
    assert along(found, "pipeline") == [("send", 100, 4)] * 4 + [("send", 60, 4)] * 4
    assert along(found, "pipeline_tied") == [("all_reduce", 40, 2)]
    assert wire_bytes_by_axis(found)["pipeline"] == 640


@pytest.mark.parametrize("method", ["ulysses", "ring"])
def test_tokens_and_heads_divided_send_a_part_of_what_tokens_alone_send(method):
    attention = AttendingModel.of_preset(GPT, SAMPLES)
    alone = operations_of_context_step(Context(method=method), attention, 2, SAMPLES)
    mesh = Mesh(context=2, tensor=2, method=method)
    both = sent(mesh, 4, MeshModel(DIVIDED, attention))
    of_one = [size for op, size, _ in along(alone, "context") if op != "all_reduce"]
    halved = [size for op, size, _ in along(both, "context") if op != "all_reduce"]
    assert [2 * size for size in halved] == of_one
    (gradients,) = [one for one in along(both, "context") if one[0] == "all_reduce"]
    assert gradients == ("all_reduce", 4 * DIVIDED.local_elements(2), 2)


def test_replicas_of_tensor_groups_send_what_several_tensor_groups_do():
    model = model_of_preset(GPT, SAMPLES)
    mesh = sent(Mesh(data=2, tensor=2, sequence=True), 4, MeshModel(model))
    assert mesh == operations_of_step(Tensor(size=2, sequence=True), model, 4, SAMPLES)


def test_a_pipeline_has_no_law_where_no_stage_was_seen():
    with pytest.raises(NoLaw, match="does not follow from N=1"):
        sent(Mesh(pipeline=2, microbatches=2), 2)


def test_every_operation_of_shards_and_replicas_by_hand():
    """Groups of 2 ranks with half of 10 rows of 3, and a vector of 5; 3 shards; 2 replicas.

    Of the matrix 5 rows are padded to 6, of the vector 5 elements to 6: 18 + 6 of 4 bytes. The last
    group, 4 elements padded to 6, is gathered once.
    """
    layers = DividedModel(
        (), 2, False, (), gathered=((((10, 3), 0), ((5,), None)), (((4,), None),))
    )
    found = sent(Mesh(data=2, shard=3, tensor=2), 12, MeshModel(layers))
    assert [tuple(one) for one in found] == [
        ("all_gather", 96, "shard", 3, "forward"),
        ("all_gather", 24, "shard", 3, "forward"),
        ("all_gather", 96, "shard", 3, "backward"),
        ("reduce_scatter", 96, "shard", 3, "backward"),
        ("all_reduce", 32, "data", 2, "backward"),
        ("reduce_scatter", 24, "shard", 3, "backward"),
        ("all_reduce", 8, "data", 2, "backward"),
    ]
