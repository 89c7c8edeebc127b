"""Tensor parallel groups as data: what can be divided, and why the rest cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec import Tensor
from scalebench.spec.presets import PRESETS, divisible
from scalebench.spec.workload import TensorPlan


@given(size=st.integers(1, 9) | st.none(), world_size=st.integers(1, 64))
def test_groups_and_their_ranks_make_up_the_world_or_the_size_is_refused(size, world_size):
    strategy = Tensor(size=size)
    if strategy.why_not("cpu", world_size) is None:
        ranks, groups = strategy.ranks_per_group(world_size), strategy.num_shards(world_size)
        assert ranks * groups == world_size
        assert ranks == (world_size if size is None else min(size, world_size))
    else:
        assert size is not None and world_size > size and world_size % size


def test_a_size_that_does_not_divide_the_ranks_is_named():
    reason = Tensor(size=2).why_not("cpu", 3)
    assert reason == "3 ranks cannot be divided into groups of 2 (size); choose a multiple of 2"


def test_what_torch_compiles_wrongly_is_refused():
    assert Tensor(compile=True, loss=True).why_not("cuda", 2) is None
    assert "give --no-compile" in Tensor(compile=True, sequence=True).why_not("cuda", 2)


@pytest.mark.parametrize(
    ("strategy", "ranks", "said"),
    [
        (Tensor(), 3, "4 (heads) cannot be divided among 3 ranks"),
        (Tensor(), 8, "4 (heads) cannot be divided among 8 ranks"),
        (Tensor(sequence=True), 4, None),
        (Tensor(loss=True), 2, None),
    ],
)
def test_gpt_is_divided_by_heads_vocabulary_and_sequence(strategy, ranks, said):
    reason = strategy.why_not_plan(PRESETS["gpt-tiny"].tensor_plan, ranks)
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize(
    ("changes", "strategy", "said"),
    [
        ({"divisors": {"vocabulary": 50257}}, Tensor(), "50257 (vocabulary) cannot"),
        ({"sequence": 9}, Tensor(sequence=True), "9 (tokens) cannot be divided among 2 ranks"),
        ({"sequence": 9}, Tensor(), None),
        ({}, Tensor(sequence=True), "the workload has none"),
        ({}, Tensor(loss=True), "the workload divides none"),
    ],
)
def test_what_a_plan_does_not_have_is_refused(changes, strategy, said):
    reason = strategy.why_not_plan(TensorPlan({"layer": "columns"}, **changes), 2)
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize("name", PRESETS)
def test_perceptrons_and_transformers_have_a_plan(name):
    shape = PRESETS[name]
    plan = divisible(shape).tensor_plan
    assert (plan is not None) == (shape.kind in ("gpt", "mlp"))
    if plan is not None:
        splits = list(plan.modules.values())
        assert splits.count("columns") == splits.count("rows")
        assert all(number % 2 == 0 for number in plan.divisors.values())
