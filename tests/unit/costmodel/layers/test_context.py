"""What a context parallel group sends, by hand and by laws that hold for any shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.rows.strategies.axes import wire_bytes_by_axis
from scalebench.costmodel.layers.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.layers.tensor_layers import NoLaw
from scalebench.spec import Context
from scalebench.spec.presets import GptShape

GPT = GptShape(name="g", layers=3, heads=4, width=8, context=16, batch_size=2)
SAMPLES = 2
QUERIES = 4 * SAMPLES * 16 * 8
"""Bytes of b·s·h elements."""


def sent(strategy, world_size, samples=SAMPLES, **changes):
    model = AttendingModel.of_preset(GPT, SAMPLES)
    model = AttendingModel(**vars(model) | changes)
    return operations_of_context_step(strategy, model, world_size, samples)


@given(n=st.sampled_from([2, 4, 8]))
def test_a_rank_sends_less_with_ulysses_the_more_there_are_and_not_with_the_ring(n):
    ulysses, ring = (
        wire_bytes_by_axis(sent(Context(method=method), n))["context"]
        - 2 * (n - 1) / n * 4 * GPT.num_parameters
        for method in ("ulysses", "ring")
    )
    assert ulysses == pytest.approx(3 * 8 * (n - 1) / n * QUERIES / n)
    assert ring == pytest.approx(3 * 6 * (n - 1) * QUERIES / n)


def test_facts_that_do_not_tell_of_attention_are_no_model():
    with pytest.raises(NoLaw, match="no step has shown"):
        AttendingModel.of({"optimizer": "AdamW"})
