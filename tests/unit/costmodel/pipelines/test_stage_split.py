"""Cutting a sequence of layers into stages."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.pipelines.stage_split import (
    balanced_split,
    even_split,
    layers_of_stages,
    unbalanced_split,
)

costs = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def dearest(costs: list[int], sizes: list[int]) -> float:
    left, found = list(costs), []
    for size in sizes:
        found.append(sum(left[:size]))
        del left[:size]
    return max(found)


@given(costs.flatmap(lambda c: st.tuples(st.just(c), st.integers(1, len(c)))))
def test_no_other_cut_has_a_cheaper_dearest_stage(given: tuple[list[int], int]) -> None:
    layers, stages = given
    sizes = balanced_split(layers, stages)
    assert len(sizes) == stages and sum(sizes) == len(layers) and min(sizes) >= 1
    others = (
        [b - a for a, b in zip((0, *cuts), (*cuts, len(layers)), strict=True)]
        for cuts in combinations(range(1, len(layers)), stages - 1)
    )
    assert dearest(layers, sizes) == min(dearest(layers, other) for other in others)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_every_split_has_all_layers_and_no_empty_stage(given: tuple[int, int]) -> None:
    layers, stages = given
    even, uneven = even_split(layers, stages), unbalanced_split(layers, stages)
    for sizes in (even, uneven):
        assert sum(sizes) == layers and len(sizes) == stages and min(sizes) >= 1
    assert max(even) - min(even) <= 1
    assert uneven[0] == layers - stages + 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("balanced", [(0, 1), (1, 5)]),
        ("measured", [(0, 1), (1, 5)]),
        ("even", [(0, 3), (3, 5)]),
        ("unbalanced", [(0, 4), (4, 5)]),
    ],
)
def test_stages_are_from_the_first_layer_to_before_the_last(how, expected) -> None:
    assert layers_of_stages(how, (4.0, 1.0, 1.0, 1.0, 1.0), 2) == expected


def test_there_may_be_as_many_stages_as_layers_and_no_more() -> None:
    assert layers_of_stages("balanced", (1.0, 2.0), 2) == [(0, 1), (1, 2)]
    with pytest.raises(ValueError, match="3 stages need as many layers, and there are 2"):
        layers_of_stages("balanced", (1.0, 2.0), 3)
