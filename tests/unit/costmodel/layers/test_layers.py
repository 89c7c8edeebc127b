from dataclasses import replace

import pytest

from scalebench.costmodel import tensor_layers
from scalebench.costmodel.context_layers import AttendingModel, ExpertModel
from scalebench.costmodel.group_steps import MeshModel, operations_of_mesh_step
from scalebench.spec import Mesh, Tensor
from scalebench.spec.presets import GptShape
from tests.examples import cases

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
SAMPLES = 2


def sent(strategy):
    model = tensor_layers.model_of_preset(GPT, SAMPLES)
    return tensor_layers.operations_of_step(strategy, model, 2, SAMPLES)


def test_there_is_no_law_under_autocast_and_with_recomputation():
    for setting, said in (("autocast", "bfloat16"), ("checkpointing", "recomputation")):
        with pytest.raises(tensor_layers.NoLaw, match=said):
            sent(Tensor(**{setting: True}))


@cases("facts", {"optimizer": "AdamW"}, {"expert_load": None, "x": 1}, {})
@cases("model", tensor_layers.DividedModel, ExpertModel, AttendingModel)
def test_facts_that_do_not_tell_of_layers_are_no_model(model, facts):
    with pytest.raises(tensor_layers.NoLaw, match="no step has shown"):
        model.of(facts)


GATHERED = (
    (((3 * 8, 8), 0), ((8,), None)),  # a block: a matrix by columns, a norm
    (((5, 8), None),),  # the rest: five rows
)
DIVIDED = replace(tensor_layers.model_of_preset(GPT, SAMPLES, sequence=True), gathered=GATHERED)


def mesh_sent(mesh, world_size, model=None):
    return operations_of_mesh_step(mesh, model or MeshModel(DIVIDED), world_size, SAMPLES)


def test_a_pipeline_has_no_law_where_no_stage_was_seen():
    with pytest.raises(tensor_layers.NoLaw, match="does not follow from N=1"):
        mesh_sent(Mesh(pipeline=2, microbatches=2), 2)


def test_every_operation_of_shards_and_replicas_by_hand():
    """Groups of 2 ranks with half of 10 rows of 3, and a vector of 5; 3 shards; 2 replicas.

    Of the matrix 5 rows are padded to 6, of the vector 5 elements to 6: 18 + 6 of 4 bytes. The last
    group, 4 elements padded to 6, is gathered once.
    """
    layers = tensor_layers.DividedModel(
        (), 2, False, (), gathered=((((10, 3), 0), ((5,), None)), (((4,), None),))
    )
    found = mesh_sent(Mesh(data=2, shard=3, tensor=2), 12, MeshModel(layers))
    assert [tuple(one) for one in found] == [
        ("all_gather", 96, "shard", 3, "forward"),
        ("all_gather", 24, "shard", 3, "forward"),
        ("all_gather", 96, "shard", 3, "backward"),
        ("reduce_scatter", 96, "shard", 3, "backward"),
        ("all_reduce", 32, "data", 2, "backward"),
        ("reduce_scatter", 24, "shard", 3, "backward"),
        ("all_reduce", 8, "data", 2, "backward"),
    ]
