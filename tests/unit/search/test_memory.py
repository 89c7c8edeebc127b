"""Activations of a transformer without dropout as Korthikanti et al. 2022 count them, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from scalebench.search.choice import Choice, columns_of
from scalebench.search.memory import (
    activation_bytes,
    activations_in_flight,
    fits,
    gathered_bytes,
    stage_table,
)
from tests.unit.search.jobs import ROUTED, SMALL, job

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


def test_without_checkpoints_a_layer_keeps_32_bytes_an_element():
    assert kept() == pytest.approx(4 * 32)
    assert kept(precision="float32") == pytest.approx(2 * 4 * 32)


def test_of_full_checkpoints_the_inputs_stay_and_one_layer_is_done_again():
    assert kept(checkpointing="full") == pytest.approx(4 * 2 + 32)


def test_of_selective_checkpoints_the_products_stay():
    assert kept(checkpointing="selective") == pytest.approx(4 * (8 + 4 + 8 + 2) + 32)


def test_a_token_is_kept_by_each_of_its_experts():
    routed = replace(ROUTED, width=256)
    assert kept(routed) == pytest.approx(4 * (32 + 16))
    assert kept(routed, checkpointing="selective") == pytest.approx(
        4 * (8 + 4 + 2 * 8 + 2) + 32 + 16
    )


def test_a_wider_mlp_keeps_more():
    assert kept(replace(SMALL, inner=2048)) == pytest.approx(4 * (16 + 2 * 16))
    assert kept(replace(SMALL, gated=True)) == pytest.approx(4 * (16 + 1.5 * 16))


@pytest.mark.parametrize(
    ("schedule", "chunks", "kept_microbatches"),
    [("gpipe", 1, 4), ("1f1b", 1, 2), ("interleaved-1f1b", 2, 2 * (1 + 1 / 4))],
)
def test_what_a_pipeline_of_two_keeps_of_four_microbatches(schedule, chunks, kept_microbatches):
    choice = Choice(data=4, pipeline=2, schedule=schedule, chunks=chunks, microbatches=4)
    assert activations_in_flight(columns_of([choice])) == pytest.approx(kept_microbatches)


@pytest.mark.parametrize(("sequence", "inputs", "whole"), [(True, 1, 16), (False, 2, 8 + 12)])
def test_a_tensor_group_divides_the_inputs_only_with_sequences(sequence, inputs, whole):
    choice = Choice(data=8, tensor=2, checkpointing="full", precision="bfloat16")
    asked = job(16, 32, sequence=sequence, activation_ratio=1.0)
    (found,) = activation_bytes(asked, columns_of([choice]), LAYERS)
    assert (found - LOGITS / 2) / HIDDEN == pytest.approx(4 * inputs + whole)


def test_two_experts_are_a_mixture_and_one_is_none():
    one = replace(ROUTED, experts=1, top_k=3)
    assert kept(one) == kept()
    assert kept(one, checkpointing="selective") == kept(checkpointing="selective")
    two = replace(ROUTED, experts=2, top_k=2)
    assert kept(two) == pytest.approx(4 * (32 + 16))
    assert kept(two, checkpointing="selective") == pytest.approx(4 * (8 + 4 + 2 * 8 + 2) + 32 + 16)


def test_a_peak_that_fills_the_limit_with_its_margin_fits():
    asked = job(memory_limit_bytes=100, margin=0.25)
    assert fits(asked, np.array([79.0, 80.0, 81.0])).tolist() == [True, True, False]
    assert fits(job(), np.array([1e30, 0.0])).tolist() == [True, True]


def test_one_layer_of_a_sharded_rank_is_gathered_with_its_tables():
    """Of a model of one layer in shards of 3: its parameters P are a table T and a block B."""
    model = replace(SMALL, layers=1)
    table, block = 512 * 256, 12 * 256 * 256
    asked = job(3, 6, model=model, gathered_bytes_each=2)
    made = columns_of([Choice(data=1, shard=3, zero=zero) for zero in (1, 2, 3)])
    layers, _ = stage_table(asked, made)
    assert layers.tolist() == [1, 1, 1]
    found = gathered_bytes(asked, made, layers)
    two = 4 * block - 2 * 2 / 3 * (table + block)
    assert found == pytest.approx([0, two, 2 * (2 * table + 2 * block) + 4 * block])
