"""What an expert group sends, by hand."""

import pytest

from scalebench.costmodel.layers.expert_layers import ExpertModel, operations_of_expert_step
from scalebench.costmodel.layers.tensor_layers import NoLaw
from scalebench.spec import Expert


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
