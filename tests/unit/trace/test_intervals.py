"""Interval algebra against a reference that paints every nanosecond."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.trace.intervals import (
    clip,
    divided,
    intersect,
    intervals,
    length,
    length_s,
    none,
    subtract,
    union,
)

END = 40
PAIRS = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def painted(pairs) -> set[int]:
    """Every nanosecond that one of the pairs covers."""
    return {moment for start, end in pairs for moment in range(start, end)}


def covered(a) -> set[int]:
    return painted([(int(start), int(end)) for start, end in a])


def is_tidy(a) -> bool:
    return bool(np.all(a[:, 0] < a[:, 1]) and np.all(a[1:, 0] > a[:-1, 1]))


@given(PAIRS, PAIRS)
def test_union(first, second):
    both = union(intervals(first), intervals(second))
    assert covered(both) == painted(first) | painted(second)
    assert is_tidy(both)
    assert length(both) == len(painted(first) | painted(second))


@given(PAIRS, PAIRS)
def test_intersect(first, second):
    both = intersect(union(intervals(first)), union(intervals(second)))
    assert covered(both) == painted(first) & painted(second)
    assert is_tidy(both)


@given(PAIRS, PAIRS)
def test_subtract(first, second):
    rest = subtract(union(intervals(first)), union(intervals(second)))
    assert covered(rest) == painted(first) - painted(second)
    assert is_tidy(rest)


@given(PAIRS, st.integers(-5, END + 5), st.integers(-5, END + 5))
def test_clip(pairs, start, end):
    part = clip(union(intervals(pairs)), start, end)
    assert covered(part) == {moment for moment in painted(pairs) if start <= moment < end}
    assert is_tidy(part)


@given(PAIRS, PAIRS)
def test_the_parts_add_up(first, second):
    a, b = union(intervals(first)), union(intervals(second))
    assert length(intersect(a, b)) + length(subtract(a, b)) == length(a)
    assert length(union(a, b)) + length(intersect(a, b)) == length(a) + length(b)


@given(PAIRS, PAIRS, PAIRS)
def test_moments_are_divided_among_the_sets_that_cover_them(moments, first, second):
    found = divided(
        union(intervals(moments)),
        {"first": union(intervals(first)), "second": union(intervals(second))},
    )
    of, one, other = painted(moments), painted(first), painted(second)
    assert found["first"] == len(of & one - other) + len(of & one & other) / 2
    assert found["second"] == len(of & other - one) + len(of & one & other) / 2


def test_among_no_sets_nothing_is_divided():
    assert divided(intervals([(0, 5)]), {}) == {}
    assert divided(none(), {"one": none()}) == {"one": 0.0}


def test_nothing_at_all():
    assert len(union()) == len(union(none())) == len(intersect(none(), none())) == 0
    assert length_s(none()) == 0
    assert length_s(intervals([(0, 1_500_000_000)])) == pytest.approx(1.5)


def test_times_of_day_in_nanoseconds_are_exact():
    now = 1_795_246_991_239_749_685
    a = union(intervals([(now, now + 3), (now + 2, now + 5)]))
    assert length(subtract(a, intervals([(now + 1, now + 4)]))) == 2


def test_a_million_intervals():
    n = 1_000_000
    order = np.random.default_rng(1).permutation(n)
    begin = 10 * np.arange(n, dtype=np.int64)
    a = np.column_stack((begin, begin + 7))[order]
    b = np.column_stack((begin + 5, begin + 9))
    tracemalloc.start()
    tidy = union(a, a[: n // 2] + 1)  # half of the intervals reach one nanosecond further
    both = intersect(tidy, b)
    rest = subtract(tidy, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert length(tidy) == 7 * n + n // 2
    assert length(both) == 2 * n + n // 2
    assert length(rest) == 5 * n
    assert len(tidy) == len(both) == len(rest) == n
    assert peak < 500e6


def test_sets_in_any_order_are_joined():
    assert union(intervals([(5, 9), (3, 7)])).tolist() == [[3, 9]]
    assert union(intervals([(3, 4), (3, 9), (10, 10), (9, 12)])).tolist() == [[3, 12]]
    assert union(intervals([(20, 30), (3, 9), (4, 5)])).tolist() == [[3, 9], [20, 30]]


SUBSETS = [{i for i in range(5) if number >> i & 1} for number in range(32)]


@pytest.mark.parametrize("first", SUBSETS, ids=str)
def test_every_pair_of_small_sets(first):
    a = union(intervals([(moment, moment + 1) for moment in first]))
    assert covered(a) == first and is_tidy(a)
    for second in SUBSETS:
        b = union(intervals([(moment, moment + 1) for moment in second]))
        for found, expected in (
            (intersect(a, b), first & second),
            (subtract(a, b), first - second),
            (union(a, b), first | second),
        ):
            assert covered(found) == expected and is_tidy(found)


def test_what_is_left_of_a_set_to_the_left_and_right_of_another():
    assert subtract(intervals([(2, 9)]), intervals([(4, 5)])).tolist() == [[2, 4], [5, 9]]
    assert subtract(intervals([(2, 9)]), intervals([(0, 3), (8, 12)])).tolist() == [[3, 8]]
    assert subtract(intervals([(2, 9)]), intervals([(1, 10)])).tolist() == []


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (3, 6, [[3, 4], [5, 6]]),
        (4, 5, []),
        (3, 3, []),
        (3, 2, []),
        (0, 99, [[2, 4], [5, 8]]),
    ],
)
def test_a_clipped_set(start, end, expected):
    assert clip(intervals([(2, 4), (5, 8)]), start, end).tolist() == expected


def test_three_sets_share_a_moment_by_thirds():
    sets = {"a": intervals([(0, 6)]), "b": intervals([(2, 9)]), "c": intervals([(4, 5)])}
    found = divided(intervals([(1, 5), (8, 20)]), sets)
    # 1-2 a; 2-4 a and b; 4-5 all; 8-9 b; 9-20 nobody
    assert found == pytest.approx({"a": 1 + 1 + 1 / 3, "b": 1 + 1 / 3 + 1, "c": 1 / 3})
