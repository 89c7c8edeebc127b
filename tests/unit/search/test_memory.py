"""Activations of a transformer without dropout as Korthikanti et al. 2022 count them, by hand."""

from dataclasses import replace

import numpy as np
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
from scalebench.search.choice import Choice, columns_of
from scalebench.search.memory import (
    activation_bytes,
    activations_in_flight,
    fits,
)
from tests.unit.search.jobs import SMALL, job

HIDDEN = 4 * 128 * 256
"""Elements of a microbatch's residual stream: 4 samples of 128 tokens, 256 wide."""
LOGITS = 2 * 4 * 4 * 128 * 512
LAYERS = np.array([4.0])


def kept(model=SMALL, **choice):
    """Return the bytes at the peak of 8 replicas with 4 samples each, without the logits."""
    given = {"data": 8, "checkpointing": "none", "precision": "bfloat16"} | choice
    asked = job(8, 32, model=model, activation_ratio=1.0)
    (found,) = activation_bytes(asked, columns_of([Choice(**given)]), LAYERS)
    return (found - LOGITS) / HIDDEN


def test_of_full_checkpoints_the_inputs_stay_and_one_layer_is_done_again():
    assert kept(checkpointing="full") == pytest.approx(4 * 2 + 32)


@pytest.mark.parametrize(
    ("schedule", "chunks", "kept_microbatches"),
    [("gpipe", 1, 4), ("1f1b", 1, 2), ("interleaved-1f1b", 2, 2 * (1 + 1 / 4))],
)
def test_what_a_pipeline_of_two_keeps_of_four_microbatches(schedule, chunks, kept_microbatches):
    choice = Choice(data=4, pipeline=2, schedule=schedule, chunks=chunks, microbatches=4)
    assert activations_in_flight(columns_of([choice])) == pytest.approx(kept_microbatches)


def test_a_peak_that_fills_the_limit_with_its_margin_fits():
    asked = job(memory_limit_bytes=100, margin=0.25)
    assert fits(asked, np.array([79.0, 80.0, 81.0])).tolist() == [True, True, False]
    assert fits(job(), np.array([1e30, 0.0])).tolist() == [True, True]


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
