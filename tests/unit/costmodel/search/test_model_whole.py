"""Every number of a model, by hand, and its stages against every way to cut the layers."""

from dataclasses import replace
from itertools import product

import pytest

from scalebench.costmodel.search.model import SearchModel
from scalebench.costmodel.search.whole_model import WholeModel
from scalebench.spec.presets import GptShape, MoeShape

GIVEN = {"name": "odd", "layers": 5, "heads": 6, "width": 12, "context": 10}
GATED = SearchModel(**GIVEN, vocabulary=70, kv_heads=2, inner=20, gated=True, tied=False)
PLAIN = SearchModel(**GIVEN, vocabulary=70, kv_heads=2, inner=20)
MIXTURE = replace(GATED, experts=3, top_k=2)
ATTENTION = 2 * 12 * 12 + 2 * 12 * (12 // 3)
"""Queries and output, keys and values of a third of the heads."""


@pytest.mark.parametrize(
    ("model", "block", "experts", "tables", "active"),
    [
        (GATED, ATTENTION + 3 * 12 * 20, 0, 2, ATTENTION + 3 * 12 * 20),
        (PLAIN, ATTENTION + 2 * 12 * 20, 0, 1, ATTENTION + 2 * 12 * 20),
        (MIXTURE, ATTENTION + 12 * 3, 3 * 720, 2, ATTENTION + 12 * 3 + 2 * 720),
        (replace(MIXTURE, experts=2), ATTENTION + 12 * 2, 2 * 720, 2, ATTENTION + 24 + 2 * 720),
    ],
)
def test_parameters_and_flops_by_hand(
    model: SearchModel, block: int, experts: int, tables: int, active: int
) -> None:
    assert (model.block_parameters, model.expert_parameters) == (block, experts)
    assert model.table_parameters == 70 * 12
    assert model.num_parameters == tables * 840 + 5 * (block + experts)
    assert model.matrix_flops == 2 * active * 10
    assert model.mixing_flops == 4 * 10 * 10 * 12
    assert model.head_flops == 2 * 10 * 12 * 70
    assert model.block_flops == 20 * active + 4800
    assert model.flops_per_sample == 3 * (5 * (20 * active + 4800) + 16800)


def test_a_preset_is_a_model_with_four_times_the_width_inside() -> None:
    given = {"name": "mine", "layers": 5, "heads": 6, "width": 12, "context": 10}
    dense = SearchModel.of_preset(GptShape(**given, vocabulary=300, batch_size=9))
    assert dense == SearchModel(
        **given, vocabulary=300, kv_heads=6, inner=48, gated=False, tied=True, experts=1, top_k=1
    )
    mixture = MoeShape(**given, vocabulary=300, batch_size=9, experts=4, top_k=3)
    assert SearchModel.of_preset(mixture) == replace(dense, experts=4, top_k=3)


@pytest.mark.parametrize(("rows", "given"), [(70, 256), (255, 256), (256, 256), (257, 257)])
def test_a_model_as_a_preset_of_one_sample(rows: int, given: int) -> None:
    """A preset has 256 rows in its embedding at least."""
    model = replace(MIXTURE, vocabulary=rows)
    expected = {**GIVEN, "vocabulary": given, "batch_size": 1}
    assert model.as_gpt == GptShape(**expected)
    assert model.as_mixture == MoeShape(**expected, experts=3, top_k=2, capacity_factor=None)


def fullest_of_all_cuts(model: SearchModel, stages: int) -> tuple[float, int]:
    """Try every number of layers on every stage; only the last, with the logits, may have none."""
    tried = []
    for cut in product(range(model.layers + 1), repeat=stages):
        if sum(cut) == model.layers and all(cut[:-1]):
            work = [layers * model.block_flops for layers in cut]
            work[-1] += model.head_flops
            tried.append((max(work), max(cut)))
    return min(tried)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("layers", [6, 7])
@pytest.mark.parametrize("vocabulary", [1, 70, 112, 600])
def test_the_fullest_stage_is_that_of_the_best_cut(
    stages: int, layers: int, vocabulary: int
) -> None:
    """Logits of next to nothing, of less than a layer, of one layer exactly, and of five."""
    model = replace(GATED, layers=layers, vocabulary=vocabulary)
    work, most = fullest_of_all_cuts(model, stages)
    assert model.fullest_stage(stages) == (most, pytest.approx(work))


def test_there_are_as_many_stages_as_layers_at_most() -> None:
    assert GATED.fullest_stage(5) == (1, 26880 + 16800)  # a layer, and with the last the logits
    with pytest.raises(ValueError, match="6 stages need as many layers, and there are 5"):
        GATED.fullest_stage(6)


def test_a_whole_model_has_what_it_was_given_and_one_of_all_else() -> None:
    model = WholeModel.of("mine", parameters=1000, groups=3, flops=1800.0)
    assert model == WholeModel(
        name="mine", layers=3, heads=1, width=1, context=1, vocabulary=1, kv_heads=1, inner=4,
        gated=False, tied=True, experts=1, top_k=1, parameters=1000, sample_flops=1800.0,
    )  # fmt: skip
    assert (model.block_parameters, model.expert_parameters) == (333, 0)
    assert (model.table_parameters, model.num_parameters) == (0, 1000)
    assert (model.matrix_flops, model.mixing_flops, model.head_flops) == (200.0, 0.0, 0.0)
    assert (model.flops_per_sample, model.fullest_stage(2)) == (1800.0, (2, 400.0))


def test_a_whole_model_that_is_not_measured_has_one_group_and_one_flop() -> None:
    model = WholeModel.of("mine")
    assert (model.parameters, model.layers, model.sample_flops) == (0, 1, 1.0)
    assert not model.is_counted and WholeModel.of("mine", flops=2.0).is_counted
    bare = WholeModel("mine", 1, 1, 1, 1, 1, 1, 4)
    assert bare == model
