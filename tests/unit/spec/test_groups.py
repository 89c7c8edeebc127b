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


def layers(**changes):
    return TensorPlan({"layer": "columns"}, **changes)


def attention(sequence=64):
    return ContextPlan(attention=("mix",), heads=4, sequence=sequence)


ULYSSES, RING = Context(method="ulysses"), Context(method="ring")


@pytest.mark.parametrize(
    ("strategy", "plan", "ranks", "said"),
    [
        (Tensor(), layers(divisors={"vocabulary": 50257}), 2, "50257 (vocabulary) cannot"),
        (
            Tensor(sequence=True),
            layers(sequence=9),
            2,
            "9 (tokens) cannot be divided among 2 ranks",
        ),
        (Tensor(), layers(sequence=9), 2, None),
        (Tensor(sequence=True), layers(), 2, "the workload has none"),
        # Ulysses divides heads, the ring two parts for each rank.
        (ULYSSES, attention(), 4, None),
        (
            ULYSSES,
            attention(),
            8,
            "4 (heads) cannot be divided among 8 ranks with method='ulysses'",
        ),
        (ULYSSES, attention(63), 2, "63 (tokens) cannot be divided among 2 ranks with"),
        (RING, attention(62), 2, "62 (tokens) cannot be divided among 2 ranks, two parts"),
        (
            RING,
            attention(),
            3,
            "64 (tokens) cannot be divided among 3 ranks, two parts for each, with",
        ),
        (Expert(), None, 8, None),
        (Expert(), None, 3, "gpt-moe-tiny: 8 experts cannot be divided among 3 ranks"),
        (Expert(size=2), None, 16, None),
        (Expert(top_k=9), None, 2, "top_k is 9 and there are 8 experts; choose at most 8"),
        (Expert(top_k=0), None, 2, "a token needs an expert"),
        (Expert(capacity_factor=0), None, 2, "a capacity_factor of 0 lets no token through"),
        (Expert(capacity_factor=1, dropless=True), None, 2, "give one of the two"),
        (Expert(capacity_factor=0.5), None, 2, None),
    ],
)
def test_what_a_strategy_cannot_divide_is_refused_with_the_reason(strategy, plan, ranks, said):
    reason = strategy.why_not("cpu", ranks)
    if reason is None:
        experts = divisible(PRESETS["gpt-moe-tiny"])
        ask = strategy.why_not_plan if plan else strategy.why_not_divided
        reason = ask(plan or experts, ranks)
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
