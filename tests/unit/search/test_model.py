import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published import MEGATRON, efficiency_of, matrix_efficiency, whole_efficiency
from scalebench.search.model import SearchModel

MIXTURE = SearchModel(
    name="mixture", layers=3, heads=2, width=8, context=16, vocabulary=100, kv_heads=2, inner=32,
    experts=4, top_k=2,
)  # fmt: skip
DEVICE = {"peak_flops": 312e12, "byte_per_s": 2e12}


def test_a_mixture_by_hand():
    attention, router, expert = 4 * 8 * 8, 8 * 4, 2 * 8 * 32
    assert MIXTURE.block_parameters == attention + router
    assert MIXTURE.expert_parameters == 4 * expert
    assert MIXTURE.num_parameters == 100 * 8 + 3 * (attention + router + 4 * expert)
    assert MIXTURE.matrix_flops == 2 * (attention + router + 2 * expert) * 16


@given(st.sampled_from(MEGATRON), st.floats(0.05, 0.6))
def test_the_efficiency_of_a_block_is_found_again_from_that_of_its_products(row, efficiency):
    of_products = matrix_efficiency(row.model, row.tensor, efficiency, **DEVICE)
    assert of_products > efficiency
    again = whole_efficiency(row.model, row.tensor, of_products, **DEVICE)
    assert again == pytest.approx(efficiency)


def test_the_published_rows_start_from_the_first_rows_efficiency_alone():
    found = [efficiency_of(row) for row in MEGATRON]
    assert found[0] == pytest.approx(0.45)
    assert found == sorted(found) and found[-1] < 0.62


def test_published_rows_have_the_size_in_their_name_and_fit_their_machines():
    """Parameters by the paper's own formula (eq. 2); nodes have eight GPUs."""
    for row in MEGATRON:
        model = row.model
        hidden, rest = 12 * model.layers * model.width**2, (model.vocabulary + model.context)
        billions = (hidden * (1 + 13 / (12 * model.width)) + rest * model.width) / 1e9
        assert model.name == f"GPT {billions:.1f}B"
        assert row.tensor <= 8 and model.heads % row.tensor == 0
        assert row.pipeline == 1 or row.tensor == 8, "stages come when a node is full"
        assert model.layers % row.pipeline == 0
        assert row.batch % (row.world_size / (row.tensor * row.pipeline)) == 0
