"""Activations of a transformer without dropout as Korthikanti et al. 2022 count them, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published import MEGATRON, efficiency_of, matrix_efficiency, whole_efficiency

DEVICE = {"peak_flops": 312e12, "byte_per_s": 2e12}


@given(st.sampled_from(MEGATRON), st.floats(0.05, 0.6))
def test_the_efficiency_of_a_block_is_found_again_from_that_of_its_products(
    row: object, efficiency: float
) -> None:
    of_products = matrix_efficiency(row.model, row.tensor, efficiency, **DEVICE)  # type: ignore[attr-defined]
    assert of_products > efficiency
    again = whole_efficiency(row.model, row.tensor, of_products, **DEVICE)  # type: ignore[attr-defined]
    assert again == pytest.approx(efficiency)


def test_the_published_rows_start_from_the_first_rows_efficiency_alone() -> None:
    found = [efficiency_of(row) for row in MEGATRON]
    assert found[0] == pytest.approx(0.45)
    assert found == sorted(found) and found[-1] < 0.62


def test_published_rows_have_the_size_in_their_name_and_fit_their_machines() -> None:
    """Parameters by the paper's own formula (eq. 2); nodes have eight GPUs."""
    for row in MEGATRON:
        model = row.model
        hidden, rest = 12 * model.layers * model.width**2, (model.vocabulary + model.context)
        billions = (hidden * (1 + 13 / (12 * model.width)) + rest * model.width) / 1e9
        assert model.name == f"GPT {billions:.1f}B"
        assert row.tensor <= 8 and model.heads % row.tensor == 0
        assert row.pipeline == 1 or row.tensor == 8, "stages come when a node is full"
        assert model.layers % row.pipeline == 0
        replicas = row.world_size / (row.tensor * row.pipeline)
        assert row.batch % replicas == 0
