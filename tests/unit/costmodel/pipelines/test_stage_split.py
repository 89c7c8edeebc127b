"""Cutting a sequence of layers into stages."""

from itertools import combinations, product

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


def test_of_equal_cuts_the_more_even_one_is_taken() -> None:
    assert balanced_split([4, 1, 1, 1, 1], 3) == [1, 2, 2]


def test_sixty_four_stages_of_a_thousand_layers_are_cut_at_once() -> None:
    assert len(balanced_split([1.0] * 128, 64)) == 64


def costs_of(layers: tuple[float, ...], sizes: list[int]) -> tuple[float, float]:
    """Return the dearest stage, and the sum of squares."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    stages = [sum(layers[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    return max(stages), sum(cost**2 for cost in stages)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_every_small_row_of_layers_is_cut_as_trying_all_cuts_would(stages: int) -> None:
    """Costs of quarters: also where all stages together cost less than one."""
    for layers in product((0.0, 0.25, 0.5, 1.25), repeat=4):
        sizes = balanced_split(layers, stages)
        others = [
            [b - a for a, b in zip((0, *cuts), (*cuts, 4), strict=True)]
            for cuts in combinations(range(1, 4), stages - 1)
        ]
        assert sizes in others
        assert costs_of(layers, sizes) == min(costs_of(layers, other) for other in others)


def test_the_dearest_stage_counts_and_not_the_sum_of_squares() -> None:
    """5, 5 and 1 have the larger squares than 2, 3 and 6, but no stage of 6."""
    assert balanced_split([1, 1, 3, 5, 1], 3) == [3, 1, 1]


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


def test_splits_by_number() -> None:
    assert even_split(11, 4) == [3, 3, 3, 2]
    assert unbalanced_split(11, 4) == [8, 1, 1, 1]
