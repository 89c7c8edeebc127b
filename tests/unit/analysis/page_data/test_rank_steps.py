"""Grid, course and autocorrelation of steps, number by number."""

import numpy as np
import pytest

from scalebench.analysis.page_data.rank_steps import (
    autocorrelation,
    autocorrelation_of,
    extremes,
    rank_grid,
    shrunk,
    step_series_of,
)
from scalebench.records.rank import Block
from tests.builders.runs import make_cell, make_record, make_result

BLOCKS = [
    Block(phase="warmup", first=0, count=3),
    Block(phase="clean", first=3, count=4),
    Block(phase="clean", first=7, count=3),
    Block(phase="paired", first=10, count=2),
]
"""Steps 4, 5, 6, 8 and 9 count; 10 and 11 came after the clean window."""
STEP_S = {
    0: [9, 8, 7, 50, 4, 6, 5, 60, 4, 4, 1, 1],
    1: [9, 8, 7, 50, 4, 6, 6, 60, 4, 3, 1, 1],
    2: [9, 8, 9, 50, 4, 5, 6, 60, 3, 8, 1, 1],
}


def launch(order=(0, 1, 2)):
    """A launch of three ranks; how steps were grouped stands with the lowest one alone."""
    ranks = [
        make_record(
            rank,
            step_s=STEP_S[rank],
            loss=[1.0] * 12,
            blocks=BLOCKS if rank == 0 else [],
            steady=rank == 0,
        )
        for rank in order
    ]
    return make_result(make_cell("ddp", 3, repeat=5, rank_batch=11), ranks=ranks)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_every_field_of_a_grid(order):
    grid = rank_grid(launch(order))
    assert (grid.suite, grid.case, grid.world_size, grid.repeat) == ("ddp", "ddp", 3, 5)
    assert (grid.median_s, grid.steady_from, grid.num_ranks, grid.num_steps) == (4.0, 3, 3, 10)
    assert (grid.ranks, grid.steps) == ((0, 1, 2), tuple(range(10)))
    nan = float("nan")
    expected = [
        [1.25, 1, 0.75, nan, 0, 0.5, 0.25, nan, 0, 0],
        [1.25, 1, 0.75, nan, 0, 0.5, 0.5, nan, 0, -0.25],
        [1.25, 1, 1.25, nan, 0, 0.25, 0.5, nan, -0.25, 1],
    ]
    np.testing.assert_array_equal(grid.deviation, np.array(expected, dtype=np.float32))
    assert grid.deviation.dtype == np.float32


def test_every_field_of_a_course():
    found = step_series_of(launch())
    assert (found.suite, found.case, found.world_size, found.repeat) == ("ddp", "ddp", 3, 5)
    assert found.step_s == (9, 8, 9, 50, 4, 6, 6, 60, 4, 8)
    assert found.steps == tuple(range(10))
    assert (found.steady_from, found.steady) == (3, True)


def long_launch(num_ranks, num_steps):
    """A launch of equal ranks whose step i takes 1 s and i µs, all of it clean."""
    steps = [1 + i * 1e-6 for i in range(num_steps)]
    clean = [Block(phase="clean", first=0, count=num_steps)]
    ranks = [
        make_record(rank, step_s=steps, loss=[1.0] * num_steps, blocks=clean)
        for rank in range(num_ranks)
    ]
    return make_result(make_cell("ddp", num_ranks, rank_batch=1), ranks=ranks)


def test_a_grid_has_at_most_160_rows_and_400_columns():
    grid = rank_grid(long_launch(161, 401))
    assert grid.deviation.shape == (160, 400)
    assert (grid.num_ranks, grid.num_steps, grid.steady_from) == (161, 401, 0)
    assert (grid.ranks[0], grid.ranks[-1], grid.steps[-1]) == (0, 159, 399)
    assert rank_grid(long_launch(160, 400)).deviation.shape == (160, 400)


def test_a_course_of_800_steps_is_whole_and_of_801_is_not():
    assert step_series_of(long_launch(1, 800)).steps == tuple(range(800))
    found = step_series_of(long_launch(1, 801))
    assert len(found.steps) == 800  # one stretch of three steps, 399 of two
    assert found.steps[:3] == (0, 2, 3)


def test_without_a_clean_block_the_steady_state_begins_behind_the_last_step():
    warm = [Block(phase="warmup", first=0, count=6)]
    result = make_result(make_cell("ddp", 1), ranks=[make_record(blocks=warm)])
    assert step_series_of(result).steady_from == 6


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (5, list(range(10))),  # twice as many as there are
        (4, [0, 1, 2, 3, 4, 6, 7, 8, 9]),  # stretches of 3, 3, 2 and 2
        (2, [0, 1, 3, 8, 9]),
        (1, [0, 3, 8, 9]),
    ],
)
def test_the_extremes_of_each_stretch_and_both_ends_are_kept(most, kept):
    series = np.array([5.0, 2.0, 7.0, 9.0, 4.0, 6.0, 3.0, 5.5, 1.0, 8.0])
    assert list(extremes(series, most)) == kept


def test_a_series_that_fits_is_whole_even_where_its_values_are_equal():
    assert list(extremes(np.ones(4), 2)) == [0, 1, 2, 3]
    assert list(extremes(np.ones(5), 2)) == [0, 3, 4]


NAN = float("nan")
GRID = np.array(
    [
        [1, -2, 0, 3, NAN, NAN, 1],
        [0, 1, 2, -3, NAN, NAN, NAN],
        [-4, 3, 5, 1, 0, 2, -1],
        [2, 2, -6, 0, 1, 1, 1],
        [NAN, 1, 2, 0, NAN, 0, -7],
    ]
)
"""Two rows of two and three, three columns of two, two and three."""


def test_a_field_of_a_smaller_grid_is_what_is_furthest_from_zero():
    small, rows, columns = shrunk(GRID, 2, 3)
    assert (list(rows), list(columns)) == ([0, 2], [0, 2, 4])
    # 3 against -3: the lower; one known value among unknown ones counts.
    np.testing.assert_array_equal(small, [[-2, -3, 1], [-4, -6, -7]])


def test_only_a_field_without_any_known_value_is_unknown():
    small, _, columns = shrunk(GRID[:2, 2:6], 1, 2)
    assert list(columns) == [0, 2]
    np.testing.assert_array_equal(small, [[-3, NAN]])


@pytest.mark.parametrize(
    ("most_rows", "most_columns", "expected"),
    [
        (1, 2, [[-4, 5]]),
        (3, 1, [[-2], [2], [5]]),
        (2, 2, [[1, -2], [-4, 5]]),
        (3, 2, [[1, -2], [0, 2], [-4, 5]]),
    ],
)
def test_rows_and_columns_shrink_by_themselves(most_rows, most_columns, expected):
    """Of three the last two are one field."""
    grid = np.array([[1.0, -2.0, 0.0], [0.0, 1.0, 2.0], [-4.0, 3.0, 5.0]])
    small, rows, columns = shrunk(grid, most_rows, most_columns)
    assert (len(rows), len(columns)) == (most_rows, most_columns)
    np.testing.assert_array_equal(small, expected)


def test_a_grid_that_fits_is_left_as_it_is():
    small, rows, columns = shrunk(GRID, 5, 7)
    assert small is GRID and list(rows) == [0, 1, 2, 3, 4] and list(columns) == list(range(7))


def r(series, lag):
    """The autocorrelation by its definition, in loops."""
    mean = sum(series) / len(series)
    above = sum((a - mean) * (b - mean) for a, b in zip(series, series[lag:], strict=False))
    return above / sum((x - mean) ** 2 for x in series)


def test_the_autocorrelation_is_its_definition_at_every_lag():
    series = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    expected = [r(series, lag) for lag in (1, 2, 3, 4)]
    assert list(autocorrelation(np.array(series), 4)) == pytest.approx(expected)
    # A series without deviation has none; one with little has.
    assert list(autocorrelation(np.full(5, 2.0), 3)) == [0, 0, 0]
    assert autocorrelation(np.array([1.0, 2.0, 1.0]), 1)[0] == pytest.approx(-4 / 6)


def clean_launch(step_s, case="ddp"):
    """One rank whose clean steps are these, behind one that does not count."""
    return make_result(make_cell(case, 1), ranks=[make_record(clean_s=step_s)])


def test_every_field_of_an_autocorrelation():
    """Launches of 20 and 17 clean steps; one of 15 has too few, and 8 is half of the fewest."""
    a = [1 + (i * i % 7) / 10 for i in range(20)]
    b = [2 + (i * i % 5) / 10 for i in range(17)]
    found = autocorrelation_of([clean_launch(a), clean_launch(b, "x"), clean_launch(a[:15], "y")])
    assert (found.suite, found.case, found.world_size, found.num_steps) == ("ddp", "ddp", 1, 37)
    assert found.band == pytest.approx(1.96 / 37**0.5, rel=1e-12)
    assert len(found.values) == 8
    expected = [(r(a, lag) + r(b, lag)) / 2 for lag in range(1, 9)]
    assert found.values == pytest.approx(expected)


def test_sixteen_steps_are_enough_and_fifteen_are_not():
    steps = [1.0, 2.0] * 8
    assert autocorrelation_of([clean_launch(steps[:15])]) is None
    found = autocorrelation_of([clean_launch(steps)])
    assert found.num_steps == 16 and len(found.values) == 8


def test_forty_lags_are_the_most():
    steps = [1.0, 2.0, 4.0] * 27
    assert len(autocorrelation_of([clean_launch(steps[:78])]).values) == 39
    assert len(autocorrelation_of([clean_launch(steps[:80])]).values) == 40
    assert len(autocorrelation_of([clean_launch(steps + steps)]).values) == 40
