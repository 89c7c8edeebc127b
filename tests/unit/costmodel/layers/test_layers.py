from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.rows.strategies.axes import wire_bytes_by_axis
from scalebench.costmodel.layers import tensor_layers
from scalebench.costmodel.layers.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.layers.expert_layers import ExpertModel, operations_of_expert_step
from scalebench.costmodel.layers.group_steps import MeshModel, operations_of_mesh_step
from scalebench.spec import Context, Expert, Mesh, Tensor
from scalebench.spec.presets import PRESETS, GptShape
from tests.examples import cases

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
SAMPLES = 2
ACTIVATIONS = 4 * SAMPLES * 4 * 8


def sent(strategy):
    model = tensor_layers.model_of_preset(GPT, SAMPLES)
    return tensor_layers.operations_of_step(strategy, model, 2, SAMPLES)


def sizes(operations, op):
    return [one.num_bytes for one in operations if one.op == op]


def test_a_divided_sequence_sends_the_same_bytes_between_the_layers():
    found = sent(Tensor(sequence=True, loss=True))
    places = 4 * 4 * 8
    assert sizes(found, "reduce_scatter") == [ACTIVATIONS, places] + [ACTIVATIONS] * (4 * 3 + 1)
    assert sorted(sizes(found, "all_gather")) == [places] + [ACTIVATIONS] * (4 * 3 + 2)
    norms = 4 * (2 * 3 + 1) * 2 * 8
    assert sizes(found, "all_reduce") == [4 * SAMPLES * 4] * 3 + [norms]


def test_there_is_no_law_under_autocast_and_with_recomputation():
    for setting, said in (("autocast", "bfloat16"), ("checkpointing", "recomputation")):
        with pytest.raises(tensor_layers.NoLaw, match=said):
            sent(Tensor(**{setting: True}))


@cases("facts", {"optimizer": "AdamW"}, {"expert_load": None, "x": 1}, {})
@cases("model", tensor_layers.DividedModel, ExpertModel, AttendingModel)
def test_facts_that_do_not_tell_of_layers_are_no_model(model, facts):
    with pytest.raises(tensor_layers.NoLaw, match="no step has shown"):
        model.of(facts)


@cases("name", "gpt-tiny", "gpt-124m", "mlp-tiny", "mlp-large")
@cases("sequence", False, True)
def test_a_ranks_parameters_add_up(name, sequence):
    shape = PRESETS[name]
    model = tensor_layers.model_of_preset(shape, 1, sequence)
    assert model.local_elements(1) == shape.num_parameters
    assert shape.num_parameters / 2 <= model.local_elements(2) < 0.6 * shape.num_parameters


def test_every_operation_of_a_step_by_hand():
    """Two layers with 6 and 9 rows of 10 bytes on 3 samples; 6 ranks in groups of 3; 5 samples."""
    model = ExpertModel(4, (6, 9), row_bytes=10, samples=3, replicated=70, in_experts=33)
    found = operations_of_expert_step(Expert(size=3, checkpointing=True), model, 6, 5)
    once = [32, 100, 100, 32, 150, 150]
    assert [tuple(one) for one in found] == [
        *(("all_to_all", size, "expert", 3, "forward") for size in once),
        *(("all_to_all", size, "expert", 3, "backward") for size in once),
        *(("all_to_all", size, "expert", 3, "backward") for size in (150, 150, 100, 100)),
        ("all_reduce", 280, "data", 6, "backward"),
        ("all_reduce", 4 * 33 // 3, "replicas", 2, "gradients"),
    ]


CONTEXT_GPT = GptShape(name="g", layers=3, heads=4, width=8, context=16, batch_size=2)
QUERIES = 4 * SAMPLES * 16 * 8
"""Bytes of b·s·h elements."""


@given(n=st.sampled_from([2, 4, 8]))
def test_a_rank_sends_less_with_ulysses_the_more_there_are_and_not_with_the_ring(n):
    model = AttendingModel.of_preset(CONTEXT_GPT, SAMPLES)
    sent = (
        operations_of_context_step(Context(method=method), model, n, SAMPLES)
        for method in ("ulysses", "ring")
    )
    ulysses, ring = (
        wire_bytes_by_axis(operations)["context"] - 2 * (n - 1) / n * 4 * CONTEXT_GPT.num_parameters
        for operations in sent
    )
    assert ulysses == pytest.approx(3 * 8 * (n - 1) / n * QUERIES / n)
    assert ring == pytest.approx(3 * 6 * (n - 1) * QUERIES / n)


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
