"""Which law a grouped strategy has: the one of what it divides, also where a mesh does."""

import pytest

from scalebench.costmodel.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.expert_layers import ExpertModel, operations_of_expert_step
from scalebench.costmodel.group_steps import (
    group_operations,
    model_of_facts,
    model_of_workload,
    why_no_group_law,
)
from scalebench.costmodel.mesh_layers import MeshModel, operations_of_mesh_step
from scalebench.costmodel.tensor_layers import (
    DividedModel,
    model_of_preset,
    operations_of_step,
)
from scalebench.spec import Context, Expert, Mesh, Tensor
from scalebench.spec.presets import GptShape, MoeShape

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
MOE = MoeShape(name="m", layers=3, heads=2, width=8, context=4, experts=4, top_k=2, batch_size=2)
LAYERS = {"divided_layers": [], "parameters": [[6, True]], "divided_samples": 3}
FACTS = {
    **LAYERS,
    "divided_logits": False,
    "context": {
        "attention_bytes": [5, 7],
        "recomputed_bytes": [3],
        "gradient_bytes": 11,
        "samples": 2,
    },
    "expert_load": {"chosen": [[[1, 2]]], "row_bytes": 8, "samples": 2, "ranks": 2},
    "replicated_elements": 9,
    "expert_elements": 4,
}
ATTENDING = AttendingModel((5, 7), (3,), 11, 2)
DIVIDED = DividedModel((), 3, False, ((6, True),))
WITH_EXPERTS = ExpertModel(2, (3,), 8, 2, 9, 8)
EXPERT_MESH = Mesh(data=4, expert=2)


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        (Mesh(tensor=2), MeshModel(DIVIDED, ATTENDING)),
        (Tensor(), DIVIDED),
        (Expert(), WITH_EXPERTS),
        (EXPERT_MESH, WITH_EXPERTS),
        (Context(), ATTENDING),
    ],
)
def test_the_model_of_a_ranks_facts_is_that_of_what_is_divided(strategy, model):
    assert model_of_facts(strategy, FACTS) == model


def test_the_model_of_a_mesh_with_experts_is_that_of_experts():
    assert model_of_workload(EXPERT_MESH, MOE, 2) == ExpertModel.of_preset(MOE, 2)


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(shard=2, tensor=2),
        Mesh(shard=None, tensor=2),
        Mesh(pipeline=2, tensor=2, microbatches=2),
        Mesh(context=2, tensor=2),
        Mesh(data=2),  # no layer is divided
    ],
)
def test_a_mesh_with_any_other_division_has_no_model_before_it_ran(mesh):
    assert model_of_workload(mesh, GPT, 2) is None
    assert model_of_workload(Mesh(tensor=2), GPT, 2) is not None


def test_the_operations_are_those_of_the_law():
    layers, attending = model_of_preset(GPT, 2), AttendingModel.of_preset(GPT, 2)
    experts = ExpertModel.of_preset(MOE, 2)
    for strategy, model, law in (
        (Mesh(tensor=2), MeshModel(layers), operations_of_mesh_step),
        (Tensor(size=2), layers, operations_of_step),
        (Context(size=2), attending, operations_of_context_step),
        (Expert(size=2), experts, operations_of_expert_step),
    ):
        found = group_operations(strategy, model, 4, 6)
        assert found == law(strategy, model, 4, 6) != []
    by_mesh = group_operations(EXPERT_MESH, experts, 4, 6)
    assert by_mesh == operations_of_expert_step(EXPERT_MESH.as_expert(), experts, 4, 6)


@pytest.mark.parametrize(
    ("strategy", "word"),
    [(Tensor(autocast=True), "bfloat16"), (Mesh(tensor=2, checkpointing=True), "recomputation")],
)
def test_divided_layers_under_autocast_and_with_recomputation_have_no_law(strategy, word):
    assert word in why_no_group_law(strategy)


def test_what_divides_no_layers_has_a_law():
    for strategy in (Context(autocast=True), Expert(checkpointing=True), Tensor()):
        assert why_no_group_law(strategy) is None
