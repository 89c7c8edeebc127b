"""Context parallel groups as data: which sequences can be divided, and why others cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec import Context
from scalebench.spec.presets import PRESETS, divisible
from scalebench.spec.workload import ContextPlan


@given(size=st.integers(1, 9) | st.none(), world_size=st.integers(1, 64))
def test_groups_and_their_ranks_make_up_the_world_or_the_size_is_refused(size, world_size):
    strategy = Context(size=size)
    if strategy.why_not("cpu", world_size) is None:
        ranks, groups = strategy.ranks_per_group(world_size), strategy.num_shards(world_size)
        assert ranks * groups == world_size
    else:
        assert size is not None and world_size > size and world_size % size


def plan(heads=4, sequence=64):
    return ContextPlan(attention=("mix",), heads=heads, sequence=sequence)


@pytest.mark.parametrize(
    ("method", "ranks", "changes", "said"),
    [
        ("ulysses", 4, {}, None),
        ("ulysses", 8, {}, "4 (heads) cannot be divided among 8 ranks with method='ulysses'"),
        ("ulysses", 2, {"sequence": 63}, "63 (tokens) cannot be divided among 2 ranks with"),
        ("ring", 8, {}, None),
        ("ring", 2, {"heads": 3}, None),
        ("ring", 2, {"sequence": 62}, "62 (tokens) cannot be divided among 2 ranks, two parts"),
        ("ring", 3, {}, "64 (tokens) cannot be divided among 3 ranks, two parts for each, with"),
    ],
)
def test_ulysses_divides_heads_and_the_ring_two_parts_for_each_rank(method, ranks, changes, said):
    reason = Context(method=method).why_not_plan(plan(**changes), ranks)
    assert reason is None if said is None else said in reason


def test_the_ring_computes_in_16_bits_on_a_gpu():
    assert "autocast=True" in Context(method="ring").why_not("cuda", 2)
    assert Context(method="ring", autocast=True).why_not("cuda", 2) is None
    assert Context(method="ulysses").why_not("cuda", 2) is None


@pytest.mark.parametrize("name", PRESETS)
def test_transformers_say_what_of_them_is_attention(name):
    shape = PRESETS[name]
    found = divisible(shape).context_plan
    assert (found is not None) == (shape.kind == "gpt")
    if found is None:
        assert f"{name} has no context_plan" in Context().why_not_divided(divisible(shape), 2)
    else:
        assert (found.heads, found.sequence) == (shape.heads, shape.context)


def test_the_workload_of_the_suite_has_a_long_context_on_both_devices():
    for name in ("gpt-long-tiny", "gpt-long-124m"):
        assert PRESETS[name].context >= 4096
