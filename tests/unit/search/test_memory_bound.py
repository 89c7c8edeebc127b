"""Efficiency of whole blocks from that of matrix products and the memory that others move."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published import (
    MEGATRON,
    block_flops,
    efficiency_of,
    matrix_efficiency,
    moved_bytes,
    whole_efficiency,
)

MODEL = replace(MEGATRON[0].model, heads=2, width=8, context=4, inner=32)
DEVICE = {"peak_flops": 312e12, "byte_per_s": 2e12}


def test_bytes_and_flops_of_a_small_block_counted_by_hand() -> None:
    hidden, scores = 4 * 8, 2 * 4 * 4
    assert moved_bytes(MODEL, 1) == pytest.approx(7 * (34 * hidden + 5 * scores))
    assert moved_bytes(MODEL, 2) == pytest.approx(7 * (22 * hidden + 5 * scores / 2))
    projections, mixing = 2 * 12 * 8 * 8 * 4, 2 * 2 * 4 * 4 * 8
    assert block_flops(MODEL, 1) == 4 * (projections + mixing)
    assert block_flops(MODEL, 2) == 2 * (projections + mixing)


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
