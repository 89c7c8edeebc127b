"""The innermost event around a moment is the one that looking at every event finds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalebench.trace.spans import Spans, named
from tests.builders.traces import US, events, op

NESTED = [("a", 0, 9, 1), ("b", 2, 6, 1), ("c", 3, 5, 1), ("d", 7, 8, 1), ("e", 4, 12, 5)]


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
