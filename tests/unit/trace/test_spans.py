"""The innermost event around a moment is the one that looking at every event finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.trace.spans import Spans, named
from tests.builders.traces import US, events, op

NESTED = [("a", 0, 9, 1), ("b", 2, 6, 1), ("c", 3, 5, 1), ("d", 7, 8, 1), ("e", 4, 12, 5)]
MORE = [("f", 10, 11, 3), ("g", 0, 2, 6), ("h", 8, 9, 6), ("at the very end", 12, 12, 3)]


def spans(rows):
    made = events(*(op(name, begin, end, thread=thread) for name, begin, end, thread in rows))
    return Spans.of(made, np.arange(len(rows)))


def by_looking(rows, moment, thread):
    around = [
        (begin, i)
        for i, (_, begin, end, on) in enumerate(rows)
        if on == thread and begin <= moment <= end
    ]
    return max(around)[1] if around else -1


@given(st.lists(st.tuples(st.integers(-1, 14), st.integers(0, 6)), min_size=1))
def test_the_innermost_event_of_the_thread(asked):
    moments = np.array([moment * US for moment, _ in asked])
    threads = np.array([thread for _, thread in asked])
    found = spans(NESTED).containing(moments, threads)
    assert found.tolist() == [by_looking(NESTED, moment, thread) for moment, thread in asked]


def test_neighbours_that_have_ended_are_passed_over():
    rows = [("around", 0, 100, 1), *((f"{i}", 2 * i, 2 * i + 1, 1) for i in range(1, 8))]
    assert spans(rows).containing(np.array([50 * US]), np.array([1])).tolist() == [0]


def test_before_the_first_event_of_a_thread_there_is_none_though_another_thread_has_begun():
    rows = [("early", 0, 9, 2), ("late", 5, 9, 1)]
    assert spans(rows).containing(np.array([3 * US]), np.array([1])).tolist() == [-1]


def test_no_events_surround_nothing():
    made = events(op("a", 0, 1, thread=1))
    none = Spans.of(made, np.array([], dtype=np.int64))
    assert none.containing(np.array([0]), np.array([1])).tolist() == [-1]
    assert named(made, [False]).tolist() == [False] and named(made, [True]).tolist() == [True]


@pytest.mark.parametrize("first", [0, 100])
def test_every_moment_of_every_thread(first):
    """The first event begins there, and so do those of two threads; one thread ends last."""
    rows = [
        (name, first + begin, first + end, thread) for name, begin, end, thread in [*NESTED, *MORE]
    ]
    asked = [(first + moment, thread) for moment in range(-3, 18) for thread in range(8)]
    moments = np.array([moment * US for moment, _ in asked])
    found = spans(rows).containing(moments, np.array([thread for _, thread in asked]))
    assert found.tolist() == [by_looking(rows, moment, thread) for moment, thread in asked]


@pytest.mark.parametrize(("ended", "found"), [(7, 0), (8, -1)])
def test_eight_events_are_looked_at_and_no_more(ended, found):
    rows = [("around", 0, 100, 1), *((f"{i}", 2 * i, 2 * i + 1, 1) for i in range(1, ended + 1))]
    assert spans(rows).containing(np.array([50 * US]), np.array([1])).tolist() == [found]


def test_no_moment_lies_in_nothing_and_no_name_is_wanted():
    assert spans(NESTED).containing(np.array([], int), np.array([], int)).tolist() == []
    made = events(op("a", 0, 1), op("b", 2, 3), op("a", 4, 5))
    assert named(made, [True, False]).tolist() == [True, False, True]
    assert named(made, []).tolist() == [False, False, False]


def test_some_events_are_looked_at_and_found_by_their_own_index():
    made = events(*(op(name, begin, end, thread=t) for name, begin, end, t in NESTED))
    some = Spans.of(made, np.array([4, 1]))
    assert (some.indices.tolist(), some.threads.tolist()) == ([1, 4], [1, 5])
    asked = np.array([0, 2, 4, 7, 5]) * US
    assert some.containing(asked, np.array([1, 1, 1, 1, 5])).tolist() == [-1, 1, 1, -1, 4]
