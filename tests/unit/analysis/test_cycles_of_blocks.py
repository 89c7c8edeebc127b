"""Blocks of rows that take turns: cycles, levels and variances by hand."""

import math

import numpy as np
import pytest

from scalebench.analysis.paired_blocks import (
    LEAST_KNOWN,
    Block,
    _by_cycle,
    _shared,
    levels_of_round,
    own_variances,
    trimmed_mean,
    variances_in_turns,
)

A, B, C, D = (("ddp", case, n) for case, n in (("a", 1), ("b", 1), ("c", 2), ("d", 4)))


def block(start, log):
    return Block(start, start + 3, math.exp(log))


def cycles(*logs):
    """Blocks of rows in turns of 10, a column for each cycle; None: the row missed its turn."""
    return {
        key: [
            block(100 * cycle + 10 * turn, log) for cycle, log in enumerate(row) if log is not None
        ]
        for turn, (key, row) in enumerate(zip((A, B, C, D), logs, strict=False))
    }


def test_a_cycle_ends_where_a_row_would_have_a_second_block():
    """In the order of their beginnings: A B C | B A | A C B | B."""
    rows = {
        A: [block(0, 1), block(40, 2), block(50, 3)],
        B: [block(70, 6), block(10, 4), block(30, 5), block(80, 7)],
        C: [block(60, 9), block(20, 8)],
    }
    found = _by_cycle(rows)
    assert {key: list(one) for key, one in found.items()} == {
        A: [0, 1, 2],
        B: [0, 1, 2, 3],
        C: [0, 2],
    }
    assert found[A] == pytest.approx({0: 1, 1: 2, 2: 3})
    assert found[B] == pytest.approx({0: 4, 1: 5, 2: 6, 3: 7})
    assert found[C] == pytest.approx({0: 8, 2: 9})
    assert (_shared(found, A, C), _shared(found, C, B)) == ([0, 2], [0, 2])


@pytest.mark.parametrize("bad", [Block(5, 5, 1.0), Block(5, 9, math.inf), Block(5, 9, -1.0)])
def test_a_block_has_to_last_and_its_steps_to_take_a_time(bad):
    with pytest.raises(ValueError, match="has to be a positive number of seconds"):
        levels_of_round({A: [bad], B: [Block(0, 1, 1.0)]})


def test_the_shortest_block_and_the_shortest_step_are_blocks_too():
    found = levels_of_round({A: [Block(0, 1, 1e-9)], B: [Block(1, 2, 1.0)]})
    assert found[A][0] - found[B][0] == pytest.approx(math.log(1e-9))


def test_levels_and_variances_of_three_rows_by_hand():
    """Two cycles. Differences of A and B: 1 and 3; of A and C: 4 and 4; of B and C: 3 and 1.

    Their means are 2, 4 and 2 and the variances of these 1, 0 and 1. By Grubbs the rows have
    (1 - 2/2)/1 = 0, (2 - 1)/1 = 1 and 0; the least is a tenth of the mean of a third.
    """
    found = levels_of_round(cycles([5, 7], [4, 4], [1, 3]))
    assert {key: level for key, (level, _) in found.items()} == pytest.approx({A: 2, B: 0, C: -2})
    variances = {key: variance for key, (_, variance) in found.items()}
    assert variances == pytest.approx({A: 1 / 30, B: 1, C: 1 / 30})


def test_a_row_alone_has_no_level_and_no_variance():
    assert levels_of_round(cycles([5, 7, 9])) == {A: (0.0, 0.0)}


def test_with_one_block_each_rows_have_levels_and_no_variance():
    found = levels_of_round(cycles([5], [3], [1]))
    assert found == {A: (pytest.approx(2), 0), B: (pytest.approx(0), 0), C: (pytest.approx(-2), 0)}


def test_of_rows_without_a_common_cycle_the_one_with_fewer_cycles_is_left_out():
    found = levels_of_round(cycles([1, 2, 3, 4], [5, None, None, 1], [None, 3, 3, None]))
    assert found.keys() == {A, C}, "of equals the first goes"
    found = levels_of_round(cycles([1, 2, 3, 4], [5, 6, None, 1], [None, None, 3, None]))
    assert found.keys() == {A, B}
    # B, C and D share no cycle with one another: first B goes, then one of the others.
    apart = [[5, None, None, None, None], [None, 1, 2, None, None], [None, None, None, 3, 4]]
    assert levels_of_round(cycles([1, 2, 3, 4, 5], *apart)).keys() == {A, D}


def test_a_round_counts_with_two_rows_or_more_and_a_row_by_the_rounds_that_it_was_in():
    """Of two rows each has half of the variance of their difference."""
    first = cycles([5, 7], [4, 4])  # differences 1 and 3: variance of their mean 1
    third = cycles([0, 6], [0, 0], [0, 0])
    rows = {
        A: {1: first[A], 3: third[A]},
        B: {1: first[B], 3: third[B]},
        C: {2: third[C], 3: third[C], 4: []},
    }
    of_third = {key: variance for key, (_, variance) in levels_of_round(third).items()}
    # Differences from A vary by 9, the others by nothing: A has 9, the others the least.
    assert of_third == pytest.approx({A: 9, B: 0.3, C: 0.3})
    assert variances_in_turns(rows) == pytest.approx({A: (0.5 + 9) / 2, B: (0.5 + 0.3) / 2, C: 0.3})
    assert variances_in_turns({C: {2: third[C]}}) == {}


@pytest.mark.parametrize(
    ("values", "kept", "moved"),
    [
        ([4.0, 9.0], [4, 9], [4, 9]),
        ([4.0, 9.0, 2.0], [2, 4, 9], [2, 4, 9]),
        ([4.0, 9.0, 2.0, 30.0], [4, 9], [4, 4, 9, 9]),
        ([4.0, 9.0, 2.0, 30.0, 5.0], [4, 5, 9], [4, 4, 5, 9, 9]),
        ([1.0, 2, 3, 5, 8, 13, 21], [2, 3, 5, 8, 13], [2, 2, 3, 5, 8, 13, 13]),
        ([1.0, 2, 3, 5, 8, 13, 21, 34], [3, 5, 8, 13], [3, 3, 3, 5, 8, 13, 13, 13]),
    ],
)
def test_a_quarter_is_trimmed_on_either_side_as_far_as_it_is_whole(values, kept, moved):
    n = len(values)
    share = len(kept) / n
    mean, variance = trimmed_mean(np.array(values))
    assert mean == pytest.approx(sum(kept) / len(kept))
    assert variance == pytest.approx(np.var(moved, ddof=1) / (share**2 * n))


def test_rows_variances_by_hand():
    """v₁ + v₂ = 3, v₁ + v₃ = 5, v₂ + v₃ = 6: 1, 2 and 4. With a fourth of 8: 9, 10 and 12."""
    three = np.array([[0, 3, 5], [3, 0, 6], [5, 6, 0.0]])
    assert own_variances(three) == pytest.approx([1, 2, 4])
    four = np.array([[0, 3, 5, 9], [3, 0, 6, 10], [5, 6, 0, 12], [9, 10, 12, 0.0]])
    assert own_variances(four) == pytest.approx([1, 2, 4, 8])
    assert own_variances(np.array([[0, 6.0], [6, 0]])) == pytest.approx([3, 3])


def test_a_row_is_known_to_a_tenth_of_the_mean_at_best():
    """Of 1, 20 and 30 the mean is 17."""
    sums = np.array([[0, 21, 31], [21, 0, 50], [31, 50, 0.0]])
    assert LEAST_KNOWN == 0.1
    assert own_variances(sums) == pytest.approx([1.7, 20, 30])
