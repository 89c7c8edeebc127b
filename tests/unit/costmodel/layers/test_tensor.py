"""What a tensor group sends, by hand and by laws that hold for any shape."""

import pytest

from scalebench.costmodel.layers.tensor_layers import (
    DividedModel,
    NoLaw,
    model_of_preset,
    operations_of_step,
)
from scalebench.spec import Tensor
from scalebench.spec.presets import PRESETS, GptShape

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
SAMPLES = 2
ACTIVATIONS = 4 * SAMPLES * 4 * 8


def sent(strategy, world_size=2, shape=GPT, samples=SAMPLES, batch=SAMPLES):
    return operations_of_step(strategy, model_of_preset(shape, samples), world_size, batch)


def sizes(operations, op):
    return [one.num_bytes for one in operations if one.op == op]


def test_a_divided_sequence_sends_the_same_bytes_between_the_layers():
    found = sent(Tensor(sequence=True, loss=True))
    places = 4 * 4 * 8
    assert sizes(found, "reduce_scatter") == [ACTIVATIONS, places] + [ACTIVATIONS] * (4 * 3 + 1)
    assert sorted(sizes(found, "all_gather")) == [places] + [ACTIVATIONS] * (4 * 3 + 2)
    norms = 4 * (2 * 3 + 1) * 2 * 8
    assert sizes(found, "all_reduce") == [4 * SAMPLES * 4] * 3 + [norms]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [(Tensor(autocast=True), "bfloat16"), (Tensor(checkpointing=True), "recomputation")],
)
def test_there_is_no_law_under_autocast_and_with_recomputation(strategy, said):
    with pytest.raises(NoLaw, match=said):
        sent(strategy)


def test_facts_that_do_not_tell_of_layers_are_no_model():
    with pytest.raises(NoLaw, match="no step has shown"):
        DividedModel.of({"optimizer": "AdamW"})


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-124m", "mlp-tiny", "mlp-large"])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_ranks_parameters_add_up(name, sequence):
    shape = PRESETS[name]
    model = model_of_preset(shape, 1, sequence)
    assert model.local_elements(1) == shape.num_parameters
    assert shape.num_parameters / 2 <= model.local_elements(2) < 0.6 * shape.num_parameters
