"""What an expert group sends, by hand."""

import pytest

from scalebench.analysis.rows.axes import wire_bytes_by_axis
from scalebench.costmodel.expert_layers import ExpertModel, operations_of_expert_step
from scalebench.costmodel.tensor_layers import NoLaw
from scalebench.spec import Expert
from scalebench.spec.presets import MoeShape

MOE = MoeShape(name="m", layers=3, heads=2, width=8, context=4, experts=4, top_k=2, batch_size=2)
ROWS = 4 * 2 * 2 * 4 * 8
"""Bytes: 4 of an element, 2 experts a token, 2 samples of 4 tokens, 8 wide."""


def sent(strategy, world_size=2, batch=2):
    model = ExpertModel.of_preset(MOE, 2)
    return operations_of_expert_step(strategy, model, world_size, batch)


def of_rows(operations):
    return [one for one in operations if one.num_bytes == ROWS]


def test_a_layer_sends_its_tokens_there_and_back_and_their_gradients_too():
    found = sent(Expert())
    assert [one.phase for one in of_rows(found)] == ["forward"] * 6 + ["backward"] * 6
    counts = [one for one in found if one.num_bytes == 8 * 4]
    assert [one.phase for one in counts] == ["forward"] * 3
    (gradients,) = [one for one in found if one.axis == "data"]
    assert gradients.num_bytes == 4 * (MOE.num_parameters - 3 * 4 * MOE.expert_parameters)


def test_recomputation_sends_the_tokens_once_more():
    assert len(of_rows(sent(Expert(checkpointing=True)))) == 6 + 12


def test_groups_sum_the_gradients_of_their_copies():
    (copies,) = [one for one in sent(Expert(size=2), 8) if one.axis == "replicas"]
    assert copies.num_ranks == 4
    assert copies.num_bytes == 4 * 3 * 4 * MOE.expert_parameters // 2


def test_one_rank_sends_nothing_and_copies_on_every_rank_no_tokens():
    assert sent(Expert(), 1) == []
    assert {one.axis for one in sent(Expert(size=1), 2)} == {"data", "replicas"}


def test_another_batch_sends_in_proportion():
    once, twice = (wire_bytes_by_axis(sent(Expert(), 4, batch)) for batch in (2, 4))
    counts = 3 * 8 * 4 * 3 / 4
    assert once["expert"] == pytest.approx(12 * ROWS * 3 / 4 + counts)
    assert twice["expert"] - counts == pytest.approx(2 * (once["expert"] - counts))
    assert twice["data"] == once["data"]


def test_facts_without_a_step_tell_nothing():
    with pytest.raises(NoLaw, match="no step has shown"):
        ExpertModel.of({"expert_load": {"chosen": []}})
