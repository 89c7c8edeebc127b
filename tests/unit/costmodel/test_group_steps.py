"""The model behind a grouped step, before anything ran: which laws there are."""

import pytest

from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.expert_layers import ExpertModel
from scalebench.costmodel.group_steps import MeshModel, model_of_workload
from scalebench.costmodel.tensor_layers import model_of_preset
from scalebench.spec import Context, Expert, Mesh, Tensor
from scalebench.spec.presets import PRESETS, GptShape, MoeShape

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
