"""What an expert group sends, by hand."""

import pytest

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


@pytest.mark.parametrize("facts", [{}, {"expert_load": None}, {"expert_load": {}}])
def test_facts_without_experts_tell_nothing(facts):
    with pytest.raises(NoLaw, match="no step has shown"):
        ExpertModel.of(facts)


def test_every_operation_of_a_step_by_hand():
    """Two layers with 6 and 9 rows of 10 bytes on 3 samples; 6 ranks in groups of 3; 5 samples."""
    model = ExpertModel(4, (6, 9), row_bytes=10, samples=3, replicated=70, in_experts=33)
    found = operations_of_expert_step(Expert(size=3, checkpointing=True), model, 6, 5)
    once = [32, 100, 100, 32, 150, 150]
    assert [tuple(one) for one in found] == [
        *(("all_to_all", size, "expert", 3, "forward") for size in once),
        *(("all_to_all", size, "expert", 3, "backward") for size in once),
        *(("all_to_all", size, "expert", 3, "backward") for size in (150, 150, 100, 100)),
        ("all_reduce", 280, "data", 6, "backward"),
        ("all_reduce", 4 * 33 // 3, "replicas", 2, "gradients"),
    ]
