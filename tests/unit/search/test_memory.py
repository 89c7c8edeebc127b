"""Activations of a transformer without dropout as Korthikanti et al. 2022 count them, by hand."""

import numpy as np
import pytest

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
