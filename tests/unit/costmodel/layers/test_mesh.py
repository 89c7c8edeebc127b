"""What the ranks of a mesh send along each dimension, by hand and beside the laws of each alone."""

from dataclasses import replace

import pytest

from scalebench.costmodel.layers.group_steps import MeshModel, operations_of_mesh_step
from scalebench.costmodel.layers.tensor_layers import DividedModel, NoLaw, model_of_preset
from scalebench.spec import Mesh
from scalebench.spec.presets import GptShape

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
SAMPLES = 2
GATHERED = (
    (((3 * 8, 8), 0), ((8,), None)),  # a block: a matrix by columns, a norm
    (((5, 8), None),),  # the rest: five rows
)
DIVIDED = replace(model_of_preset(GPT, SAMPLES, sequence=True), gathered=GATHERED)


def sent(mesh, world_size, model=None, batch=SAMPLES):
    return operations_of_mesh_step(mesh, model or MeshModel(DIVIDED), world_size, batch)


def along(found, axis):
    return [(one.op, one.num_bytes, one.num_ranks) for one in found if one.axis == axis]


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
