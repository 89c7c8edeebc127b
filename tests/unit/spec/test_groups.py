"""Groups of ranks as data: what they can divide, and why the rest cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.spec import Context, Expert, Fsdp, LayerWise, Tensor
from scalebench.spec.presets import PRESETS, CustomTarget, divisible, resolve_workload
from scalebench.spec.workload import ContextPlan, TensorPlan


@pytest.mark.parametrize("kind", [Tensor, Context, Expert])
@given(size=st.integers(1, 9) | st.none(), world_size=st.integers(1, 64))
def test_groups_and_their_ranks_make_up_the_world_or_the_size_is_refused(kind, size, world_size):
    strategy = kind(size=size)
    ranks = strategy.ranks_per_group(world_size)
    assert ranks == (world_size if size is None else min(size, world_size))
    if strategy.why_not("cpu", world_size) is None:
        parts = world_size if kind is Expert else world_size // ranks  # experts: a batch each
        assert world_size % ranks == 0 and strategy.num_shards(world_size) == parts
    else:
        assert size is not None and world_size > size and world_size % size


@pytest.mark.parametrize("strategy", [Tensor(size=2), LayerWise(size=2), Expert(size=2)])
def test_a_size_that_does_not_divide_the_ranks_is_named(strategy):
    reason = strategy.why_not("cpu", 3)
    assert reason == "3 ranks cannot be divided into groups of 2 (size); choose a multiple of 2"
    assert "(shard_size)" in Fsdp(shard_size=2).why_not("cpu", 3)


@pytest.mark.parametrize(
    ("changes", "strategy", "said"),
    [
        ({"divisors": {"vocabulary": 50257}}, Tensor(), "50257 (vocabulary) cannot"),
        ({"sequence": 9}, Tensor(sequence=True), "9 (tokens) cannot be divided among 2 ranks"),
        ({"sequence": 9}, Tensor(), None),
        ({}, Tensor(sequence=True), "the workload has none"),
    ],
)
def test_what_a_plan_does_not_have_is_refused(changes, strategy, said):
    reason = strategy.why_not_plan(TensorPlan({"layer": "columns"}, **changes), 2)
    assert reason is None if said is None else said in reason


def plan(heads=4, sequence=64):
    return ContextPlan(attention=("mix",), heads=heads, sequence=sequence)


@pytest.mark.parametrize(
    ("method", "ranks", "changes", "said"),
    [
        ("ulysses", 4, {}, None),
        ("ulysses", 8, {}, "4 (heads) cannot be divided among 8 ranks with method='ulysses'"),
        ("ulysses", 2, {"sequence": 63}, "63 (tokens) cannot be divided among 2 ranks with"),
        ("ring", 2, {"sequence": 62}, "62 (tokens) cannot be divided among 2 ranks, two parts"),
        ("ring", 3, {}, "64 (tokens) cannot be divided among 3 ranks, two parts for each, with"),
    ],
)
def test_ulysses_divides_heads_and_the_ring_two_parts_for_each_rank(method, ranks, changes, said):
    reason = Context(method=method).why_not_plan(plan(**changes), ranks)
    assert reason is None if said is None else said in reason


TINY = PRESETS["gpt-moe-tiny"]


@pytest.mark.parametrize(
    ("strategy", "ranks", "said"),
    [
        (Expert(), 8, None),
        (Expert(), 3, "gpt-moe-tiny: 8 experts cannot be divided among 3 ranks"),
        (Expert(size=2), 16, None),
        (Expert(top_k=9), 2, "top_k is 9 and there are 8 experts; choose at most 8"),
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt-moe+top1", "+top1 is none of"),
        ("gpt+top-1", "gpt has no experts"),
        ("gpt-moe+top-9", "cannot have more experts than there are"),
        ("gpt-mo+top-1", "Did you mean 'gpt-moe'?"),
    ],
)
def test_a_name_that_asks_for_what_cannot_be_is_answered(name, said):
    with pytest.raises(UsageError) as error:
        resolve_workload(name, "cpu")
    assert said in str(error.value)
