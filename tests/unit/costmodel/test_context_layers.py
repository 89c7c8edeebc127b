"""What a context parallel group sends, by hand and by laws that hold for any shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.rows.axes import wire_bytes_by_axis
from scalebench.costmodel.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.tensor_layers import NoLaw
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


def sizes(operations, op, phase):
    return [one.num_bytes for one in operations if (one.op, one.phase) == (op, phase)]


def test_ulysses_sends_the_volume_of_four_in_forward_and_of_four_in_backward():
    found = sent(Context(method="ulysses"), 4)
    part = QUERIES // 4
    assert sizes(found, "all_to_all", "forward") == [3 * part, part] * 3
    assert sizes(found, "all_to_all", "backward") == [part, 3 * part] * 3
    assert sizes(found, "all_reduce", "gradients") == [4 * GPT.num_parameters]
    assert len(found) == 4 * 3 + 1


def test_a_ring_passes_on_keys_and_values_and_in_backward_their_gradients_too():
    found = sent(Context(method="ring"), 4)
    assert sizes(found, "send_recv_ring", "forward") == [2 * QUERIES // 4] * (3 * 3)
    assert sizes(found, "send_recv_ring", "backward") == [2 * QUERIES // 4] * (2 * 3 * 3)
    assert len(found) == 9 * 3 + 1


@given(n=st.sampled_from([2, 4, 8]))
def test_a_rank_sends_less_with_ulysses_the_more_there_are_and_not_with_the_ring(n):
    ulysses, ring = (
        wire_bytes_by_axis(sent(Context(method=method), n))["context"]
        - 2 * (n - 1) / n * 4 * GPT.num_parameters
        for method in ("ulysses", "ring")
    )
    assert ulysses == pytest.approx(3 * 8 * (n - 1) / n * QUERIES / n)
    assert ring == pytest.approx(3 * 6 * (n - 1) * QUERIES / n)


def test_groups_average_gradients_over_all_ranks():
    found = sent(Context(size=2, method="ring"), 8, samples=1)
    (gradients,) = [one for one in found if one.phase == "gradients"]
    assert (gradients.op, gradients.axis, gradients.num_ranks) == ("all_reduce", "data_context", 8)
    assert {one.num_ranks for one in found if one.axis == "context"} == {2}
    assert sizes(found, "send_recv_ring", "forward") == [QUERIES // 2] * 3  # half of the samples


def test_one_rank_sends_nothing():
    assert sent(Context(method="ring"), 1) == sent(Context(method="ulysses"), 1) == []


def test_facts_that_do_not_tell_of_attention_are_no_model():
    with pytest.raises(NoLaw, match="no step has shown"):
        AttendingModel.of({"optimizer": "AdamW"})
