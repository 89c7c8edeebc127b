"""Expert groups as data: what can be divided, and why the rest cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.spec import Expert
from scalebench.spec.presets import (
    PRESETS,
    CustomTarget,
    divisible,
    resolve_workload,
    routed_workload,
)

TINY = PRESETS["gpt-moe-tiny"]


@given(size=st.integers(1, 9) | st.none(), world_size=st.integers(1, 64))
def test_groups_and_their_ranks_make_up_the_world_or_the_size_is_refused(size, world_size):
    strategy = Expert(size=size)
    if strategy.why_not("cpu", world_size) is None:
        assert world_size % strategy.ranks_per_group(world_size) == 0
    else:
        assert size is not None and world_size > size and world_size % size
    assert strategy.num_shards(world_size) == world_size  # every rank has a batch of its own


@pytest.mark.parametrize(
    ("strategy", "ranks", "said"),
    [
        (Expert(), 8, None),
        (Expert(), 3, "gpt-moe-tiny: 8 experts cannot be divided among 3 ranks"),
        (Expert(experts=6), 4, "6 experts cannot be divided among 4 ranks"),
        (Expert(size=2), 16, None),
        (Expert(top_k=9), 2, "top_k is 9 and there are 8 experts; choose at most 8"),
        (Expert(experts=1), 1, "top_k is 2 and there are 1 experts"),
        (Expert(top_k=0), 2, "a token needs an expert"),
    ],
)
def test_what_the_experts_cannot_do_is_named(strategy, ranks, said):
    reason = strategy.why_not_divided(divisible(TINY), ranks)
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Expert(capacity_factor=0), "a capacity_factor of 0 lets no token through"),
        (Expert(capacity_factor=-1.5), "a capacity_factor of -1.5"),
        (Expert(capacity_factor=1, dropless=True), "give one of the two"),
        (Expert(capacity_factor=0.5), None),
    ],
)
def test_a_capacity_that_lets_nothing_through_is_refused(strategy, said):
    reason = strategy.why_not("cpu", 2)
    assert reason is None if said is None else said in reason


def test_a_workload_without_experts_is_refused():
    assert "gpt-tiny has no experts" in Expert().why_not_divided(divisible(PRESETS["gpt-tiny"]), 2)
    own = divisible(CustomTarget(name="m:f", module="m", function="f"))
    assert Expert().why_not_divided(own, 2) is None
    assert "leave capacity_factor, top_k out" in Expert(top_k=1, capacity_factor=1).why_not_divided(
        own, 2
    )
    assert "leave dropless out" in Expert(dropless=True).why_not_divided(own, 2)


def test_what_the_router_does_is_part_of_the_workloads_name():
    strategy = Expert(experts=4, top_k=1, capacity_factor=1.5)
    name = routed_workload(strategy, "gpt-moe", "cpu")
    assert name == "gpt-moe+experts-4+top-1+capacity-1.5"
    shape = resolve_workload(name, "cpu")
    assert shape.name == "gpt-moe-tiny+experts-4+top-1+capacity-1.5"
    assert (shape.experts, shape.top_k, shape.capacity_factor) == (4, 1, 1.5)
    dropless = resolve_workload(routed_workload(Expert(dropless=True), "gpt-moe", "cpu"), "cpu")
    assert dropless.capacity is None
    assert routed_workload(Expert(size=2), "gpt-moe", "cpu") == "gpt-moe"
    assert routed_workload(Expert(top_k=9), "gpt-moe", "cpu") == "gpt-moe"  # refused by the plan
    assert routed_workload(Expert(capacity_factor=0), "gpt-moe", "cpu") == "gpt-moe"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt-moe+top1", "+top1 is none of"),
        ("gpt-moe+capacity-0", "+capacity-0 is none of"),
        ("gpt-moe+experts-0", "+experts-0 is none of"),
        ("gpt+top-1", "gpt has no experts"),
        ("gpt-moe+top-9", "cannot have more experts than there are"),
        ("gpt-mo+top-1", "Did you mean 'gpt-moe'?"),
    ],
)
def test_a_name_that_asks_for_what_cannot_be_is_answered(name, said):
    with pytest.raises(UsageError) as error:
        resolve_workload(name, "cpu")
    assert said in str(error.value)
