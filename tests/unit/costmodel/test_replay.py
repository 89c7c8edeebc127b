"""A step with communication in it, replayed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.layers.replay import CommRequest, replay

times = st.floats(0.0, 10.0)


@st.composite
def steps(draw):
    """Requests that fit into a step, what each takes, and how long the step computes."""
    ready = sorted(draw(st.lists(times, max_size=6)))
    computing = draw(st.floats(10.0, 20.0))
    requests = [
        CommRequest("all_reduce", 8, moment, draw(st.floats(moment, computing))) for moment in ready
    ]
    return requests, [draw(times) for _ in requests], computing


def walk(requests, takes_s, computing_s, tick=0.125):
    """The same by letting time pass tick by tick, all durations multiples of a tick: slow, sure."""
    now, done, free_at, ends = 0.0, 0.0, 0.0, []
    asked = 0
    while True:
        while (
            asked < len(requests)
            and requests[asked].ready_s <= done
            and not any(
                r.needed_s <= done and end > now for r, end in zip(requests, ends, strict=False)
            )
        ):
            free_at = max(free_at, now) + takes_s[asked]
            ends.append(free_at)
            asked += 1
        held = any(r.needed_s <= done and end > now for r, end in zip(requests, ends, strict=False))
        if done >= computing_s and not held:
            return now
        now += tick
        done += 0.0 if held or done >= computing_s else tick


grid = st.integers(0, 40).map(lambda n: n * 0.125)


@st.composite
def steps_on_a_grid(draw):
    ready = sorted(draw(st.lists(grid, max_size=5)))
    computing = 5.0 + draw(grid)
    later = st.integers(0, 80).map(lambda n: n * 0.125)
    requests = [
        CommRequest("all_reduce", 8, moment, min(moment + draw(later), computing))
        for moment in ready
    ]
    return requests, [draw(grid) for _ in requests], computing


@given(steps_on_a_grid())
def test_it_goes_as_when_time_passes_tick_by_tick(step):
    assert replay(*step).step_s == pytest.approx(walk(*step))


@given(steps())
def test_a_step_is_no_shorter_than_its_computation_or_all_its_communication(step):
    requests, takes, computing = step
    found = replay(requests, takes, computing)
    assert found.step_s == pytest.approx(computing + found.stalled_s)
    assert found.step_s >= max([computing, *(end for _, end in found.spans_s if requests)]) - 1e-9
    assert found.stalled_s <= sum(takes) + 1e-9


@given(steps())
def test_the_link_does_one_at_a_time_and_nothing_before_it_is_asked(step):
    requests, takes, computing = step
    found = replay(requests, takes, computing)
    for (start, end), request, took in zip(found.spans_s, requests, takes, strict=True):
        assert start >= request.ready_s
        assert end - start == pytest.approx(took)
    for (_, end), (start, _) in zip(found.spans_s, found.spans_s[1:], strict=False):
        assert start >= end


@given(steps(), st.floats(1.0, 3.0))
def test_a_slower_link_never_makes_a_step_shorter(step, factor):
    requests, takes, computing = step
    slower = replay(requests, [factor * took for took in takes], computing)
    assert slower.step_s >= replay(requests, takes, computing).step_s - 1e-9
