"""A transformer's parameters and work, counted by hand and as papers name them."""

import pytest

from benchmarks.published import LLAMAS, MEGATRON
from scalebench.search.model import SearchModel, WholeModel

MIXTURE = SearchModel(
    name="mixture", layers=3, heads=2, width=8, context=16, vocabulary=100, kv_heads=2, inner=32,
    experts=4, top_k=2,
)  # fmt: skip


def test_a_mixture_by_hand():
    attention, router, expert = 4 * 8 * 8, 8 * 4, 2 * 8 * 32
    assert MIXTURE.block_parameters == attention + router
    assert MIXTURE.expert_parameters == 4 * expert
    assert MIXTURE.num_parameters == 100 * 8 + 3 * (attention + router + 4 * expert)
    assert MIXTURE.matrix_flops == 2 * (attention + router + 2 * expert) * 16


NAMED_BY_SIZE = [one for one in (*MEGATRON, *LLAMAS) if one.model.name.endswith("B")]


@pytest.mark.parametrize("published", NAMED_BY_SIZE, ids=lambda one: one.model.name)
def test_published_models_have_the_parameters_of_their_names(published):
    billions = float(published.model.name.rsplit(" ", 1)[1].removesuffix("B"))
    assert published.model.num_parameters == pytest.approx(1e9 * billions, rel=0.02, abs=6e7)


@pytest.mark.parametrize("published", [*MEGATRON, *LLAMAS], ids=lambda one: one.model.name)
def test_published_ranks_and_batches_divide(published):
    model_ranks = published.tensor * published.pipeline * published.context
    assert published.world_size % model_ranks == 0
    assert published.batch % (published.world_size // model_ranks) == 0


def test_a_workload_without_layers_has_the_work_that_was_counted_and_no_more():
    model = WholeModel.of("mine", parameters=1000, groups=4, flops=1200.0)
    assert model.flops_per_sample == 1200.0 and model.is_counted
    assert (model.matrix_flops, model.mixing_flops, model.head_flops) == (100.0, 0.0, 0.0)
    assert (model.num_parameters, model.block_parameters, model.table_parameters) == (1000, 250, 0)
    assert not WholeModel.of("mine").is_counted
