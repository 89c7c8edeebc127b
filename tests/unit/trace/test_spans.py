"""The innermost event around a moment is the one that looking at every event finds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalebench.trace.spans import Spans
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
