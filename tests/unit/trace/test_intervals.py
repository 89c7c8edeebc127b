"""Interval algebra against a reference that paints every nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalebench.trace.intervals import divided, intersect, intervals, length, subtract, union

END = 40
PAIRS = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def painted(pairs):
    """Every nanosecond that one of the pairs covers."""
    return {moment for start, end in pairs for moment in range(start, end)}


def covered(a):
    return painted([(int(start), int(end)) for start, end in a])


def is_tidy(a):
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


@given(PAIRS, PAIRS, PAIRS)
def test_moments_are_divided_among_the_sets_that_cover_them(moments, first, second):
    found = divided(
        union(intervals(moments)),
        {"first": union(intervals(first)), "second": union(intervals(second))},
    )
    of, one, other = painted(moments), painted(first), painted(second)
    assert found["first"] == len(of & one - other) + len(of & one & other) / 2
    assert found["second"] == len(of & other - one) + len(of & one & other) / 2


def test_times_of_day_in_nanoseconds_are_exact():
    now = 1_795_246_991_239_749_685
    a = union(intervals([(now, now + 3), (now + 2, now + 5)]))
    assert length(subtract(a, intervals([(now + 1, now + 4)]))) == 2
