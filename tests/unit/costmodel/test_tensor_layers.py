"""What a tensor group sends, by hand and by laws that hold for any shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.rows.axes import wire_bytes_by_axis
from scalebench.costmodel.tensor_layers import (
    DividedLayer,
    DividedModel,
    NoLaw,
    model_of_preset,
    operations_of_step,
)
from scalebench.spec import Tensor
from scalebench.spec.presets import PRESETS, GptShape, MlpShape

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=4, batch_size=2)
SAMPLES = 2
ACTIVATIONS = 4 * SAMPLES * 4 * 8


def sent(strategy, world_size=2, shape=GPT, samples=SAMPLES, batch=SAMPLES):
    return operations_of_step(strategy, model_of_preset(shape, samples), world_size, batch)


def sizes(operations, op):
    return [one.num_bytes for one in operations if one.op == op]


def test_a_transformer_by_hand():
    found = sent(Tensor())
    assert sizes(found, "all_reduce") == [ACTIVATIONS] * (4 * 3 + 2)
    assert sizes(found, "all_gather") == [4 * SAMPLES * 4 * 256]
    assert [one.phase for one in found].count("backward") == 2 * 3 + 1


def test_a_divided_sequence_sends_the_same_bytes_between_the_layers():
    found = sent(Tensor(sequence=True, loss=True))
    places = 4 * 4 * 8
    assert sizes(found, "reduce_scatter") == [ACTIVATIONS, places] + [ACTIVATIONS] * (4 * 3 + 1)
    assert sorted(sizes(found, "all_gather")) == [places] + [ACTIVATIONS] * (4 * 3 + 2)
    norms = 4 * (2 * 3 + 1) * 2 * 8
    assert sizes(found, "all_reduce") == [4 * SAMPLES * 4] * 3 + [norms]


def test_groups_average_the_gradients_of_a_ranks_parameters():
    (across,) = [one for one in sent(Tensor(size=2), 8) if one.axis == "data"]
    whole = 3 * (2 * 2 * 8 + 8 + 8) + 2 * 8 + 4 * 8  # norms, biases by rows, and places
    divided = GPT.num_parameters - whole
    assert (across.op, across.num_ranks) == ("all_reduce", 4)
    assert across.num_bytes == 4 * (divided // 2 + whole)


@given(
    batch=st.integers(1, 6),
    world_size=st.sampled_from([2, 4]),
    sequence=st.booleans(),
    loss=st.booleans(),
)
def test_what_carries_activations_grows_with_the_batch_and_the_rest_does_not(
    batch, world_size, sequence, loss
):
    strategy = Tensor(sequence=sequence, loss=loss)
    once, more = sent(strategy, world_size, batch=1), sent(strategy, world_size, batch=batch)
    fixed = {one.num_bytes for one in once if one.phase == "gradients"} | {4 * 4 * 8}
    for a, b in zip(once, more, strict=True):
        assert b.num_bytes in (batch * a.num_bytes, *fixed)


@given(world_size=st.sampled_from([2, 4, 8]))
def test_a_divided_loss_never_sends_more(world_size):
    for sequence in (False, True):
        gathered, divided = (
            wire_bytes_by_axis(sent(Tensor(sequence=sequence, loss=loss), world_size))["tensor"]
            for loss in (False, True)
        )
        assert divided < gathered


def test_one_rank_sends_nothing():
    assert sent(Tensor(sequence=True, loss=True), 1) == []
    assert sent(Tensor(size=1), 1) == []


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


@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_has_the_matrix_of_its_inputs_and_outputs_and_a_norm_has_none(sequence):
    for layer in model_of_preset(GPT, SAMPLES, sequence).layers:
        width = GPT.width
        if layer.parameters == (width, width):
            assert (layer.inputs, layer.outputs) == (0, 0)
        else:
            assert layer.inputs * layer.outputs == layer.parameters[0] > 0


def test_a_transformer_layer_by_layer():
    """One block 6 wide, of 5 tokens, 256 words; 3 samples."""
    shape = GptShape(name="g", layers=1, heads=2, width=6, context=5, vocabulary=256, batch_size=2)
    tokens, norm = 15, (6, 6)

    def linear(name, split, inputs, outputs):
        own = (inputs * outputs, outputs)
        return DividedLayer(f"blocks.0.{name}", split, inputs, outputs, own, tokens, inputs, True)

    def by_token(name, split="tokens"):
        return DividedLayer(name, split, 0, 0, norm, tokens, 6, True)

    layers = (
        DividedLayer("tokens", "vocabulary", 256, 6, (1536,), tokens, 0, False),
        DividedLayer("positions", "positions", 5, 6, (30,), 5, 0, False),
        by_token("blocks.0.attention_norm"),
        linear("attention.qkv", "columns", 6, 18),
        linear("attention.output", "rows", 6, 6),
        by_token("blocks.0.mlp_norm"),
        linear("mlp.expand", "columns", 6, 24),
        linear("mlp.output", "rows", 24, 6),
        by_token("norm", "last"),
    )
    for sequence in (False, True):
        parameters = (
            *((1536, True), (30, sequence), (6, False), (6, False)),
            *((108, True), (18, True), (36, True), (6, False)),
            *((6, False), (6, False), (144, True), (24, True), (144, True), (6, False)),
            *((6, False), (6, False)),
        )
        found = model_of_preset(shape, 3, sequence)
        assert found == DividedModel(layers, 3, True, parameters)


def test_a_perceptron_layer_by_layer():
    """Two hidden layers make a pair; the one on top is whole on every rank."""
    shape = MlpShape(name="m", layers=2, width=6, features=4, classes=3, batch_size=2)
    layers = (
        DividedLayer("blocks.0.0", "columns", 4, 6, (24, 6), 5, 4, False),
        DividedLayer("blocks.1.0", "rows", 6, 6, (36, 6), 5, 6, True),
    )
    parameters = ((24, True), (6, True), (36, True), (6, False), (18, False), (3, False))
    assert model_of_preset(shape, 5) == DividedModel(layers, 5, False, parameters)


def test_the_model_of_a_ranks_facts():
    layer = DividedLayer("a", "rows", 6, 7, (42, 7), 5, 6, True)
    told = {**vars(layer), "parameters": [42, 7]}
    facts = {
        "divided_layers": [told],
        "divided_samples": 3,
        "divided_logits": True,
        "parameters": [[42, 1], [7, 0]],
    }
    parameters = ((42, True), (7, False))
    assert DividedModel.of(facts) == DividedModel((layer,), 3, True, parameters)
    gathered = DividedModel.of({**facts, "gathered": [[[[6, 7], 1], [[7], None]], []]}).gathered
    assert gathered == ((((6, 7), 1), ((7,), None)), ())


LAYERS = (
    DividedLayer("words", "vocabulary", 11, 2, (22,), 6, 0, False),
    DividedLayer("places", "positions", 3, 2, (6,), 3, 0, False),
    DividedLayer("norm", "tokens", 0, 0, (2, 2), 6, 2, True),
    DividedLayer("up", "columns", 2, 8, (16, 8), 6, 2, True),
    DividedLayer("down", "rows", 8, 2, (16, 2), 6, 8, True),
    DividedLayer("norm", "tokens", 0, 0, (2, 2), 6, 2, True),  # called once more
    DividedLayer("top", "last", 0, 0, (5, 3), 6, 2, True),
)
MODEL = DividedModel(LAYERS, 2, True, ((22, True), (7, False)))


def test_every_operation_by_hand():
    """6 vectors of 2 samples; 10 on 3 samples' worth more: 4 bytes · 15 vectors · their width."""
    found = operations_of_step(Tensor(size=3), MODEL, 6, 5)
    assert [tuple(one) for one in found] == [
        ("all_reduce", 4 * 15 * 2, "tensor", 3, "forward"),  # words
        ("all_reduce", 4 * 15 * 2, "tensor", 3, "forward"),  # down
        ("all_gather", 4 * 15 * 11, "tensor", 3, "forward"),  # logits of 11 words
        ("all_reduce", 4 * 15 * 2, "tensor", 3, "backward"),  # top
        ("all_reduce", 4 * 15 * 2, "tensor", 3, "backward"),  # up
        ("all_reduce", 4 * (7 + 7), "data", 2, "gradients"),  # 22 // 3 and 7
    ]


def test_every_operation_of_a_divided_sequence_by_hand():
    found = operations_of_step(Tensor(size=3, sequence=True, loss=True), MODEL, 3, 5)
    wide = 4 * 15 * 2
    assert [tuple(one) for one in found] == [
        ("reduce_scatter", wide, "tensor", 3, "forward"),  # words
        ("reduce_scatter", 4 * 3 * 2, "tensor", 3, "forward"),  # places: of no batch
        ("all_gather", wide, "tensor", 3, "forward"),  # up
        ("reduce_scatter", wide, "tensor", 3, "forward"),  # down
        ("all_gather", wide, "tensor", 3, "forward"),  # top
        *[("all_reduce", 4 * 15, "tensor", 3, "forward")] * 3,  # loss
        ("reduce_scatter", wide, "tensor", 3, "backward"),
        ("all_gather", wide, "tensor", 3, "backward"),
        ("reduce_scatter", wide, "tensor", 3, "backward"),
        ("all_gather", 4 * 3 * 2, "tensor", 3, "backward"),
        ("all_gather", wide, "tensor", 3, "backward"),
        # the norm's parameters once, though it was called twice
        ("all_reduce", 4 * (2 + 2 + 5 + 3), "tensor", 3, "gradients"),
    ]


def test_a_linear_layer_on_top_gives_as_many_logits_as_outputs():
    output = DividedLayer("out", "output", 2, 9, (18, 9), 6, 2, False)
    model = DividedModel((output, output), 2, True, ())
    found = operations_of_step(Tensor(), model, 2, 2)
    assert [tuple(one) for one in found] == [
        *[("all_gather", 4 * 6 * 9, "tensor", 2, "forward")] * 2  # one for each call
    ]
    divided = operations_of_step(Tensor(loss=True), model, 2, 2)
    assert sizes(divided, "all_reduce") == [4 * 6] * (3 * 2)
    elsewhere = DividedModel(LAYERS[:1], 2, True, ())
    assert [one.op for one in operations_of_step(Tensor(), elsewhere, 2, 2)] == ["all_reduce"]
