"""A step with communication in it, replayed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.rehearsed_step import (
    longer_than_replayed_s,
    rehearsal_of_step,
    stalled_of,
)
from scalebench.costmodel.replay import CommRequest, replay
from scalebench.costmodel.step import StepShape
from scalebench.records.probes import RehearsedStep
from scalebench.spec import Ddp, Mesh

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


def test_buckets_hide_behind_backward_but_for_the_last():
    backward = [CommRequest("all_reduce", 8, ready, 10.0) for ready in (4.0, 7.0, 10.0)]
    found = replay(backward, [2.0, 5.0, 1.0], 11.0)
    assert found.spans_s == ((4.0, 6.0), (7.0, 12.0), (12.0, 13.0))
    assert (found.stalled_s, found.step_s) == (3.0, 14.0)


def test_what_is_needed_at_once_hides_nothing():
    gathers = [CommRequest("all_gather", 8, ready, ready) for ready in (0.0, 3.0)]
    assert replay(gathers, [1.0, 2.0], 5.0).step_s == 8.0


HIDDEN = CommRequest("all_reduce", 1000, 0.002, 0.010)
AT_ONCE = CommRequest("all_gather", 500, 0.012, 0.012)


def shape(*requests: CommRequest) -> StepShape:
    return StepShape(requests, 0.010, 0.004, 8)


def link(op: str, num_ranks: int, size_bytes: int) -> LinkTime:
    """3 us a byte, whatever the operation."""
    return LinkTime(3e-6 * size_bytes, 0.0, 0.0, (num_ranks,))


def test_what_is_played_is_the_shape_of_the_step() -> None:
    plan = rehearsal_of_step(shape(HIDDEN, AT_ONCE), Ddp(), 2)
    assert plan.computing_s == pytest.approx(0.014)
    told = [(o.op, o.size_bytes, o.ready_s, o.needed_s) for o in plan.operations]
    assert told == [tuple(HIDDEN)[:4], tuple(AT_ONCE)[:4]]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ((), "nothing is sent"),
        ((HIDDEN._replace(num_ranks=2, axis="data"),), "meshes alone"),
        ((HIDDEN._replace(op="coalesced"),), "no collective|not all"),
    ],
)
def test_what_cannot_be_played_is_said(requests: tuple[CommRequest, ...], told: str) -> None:
    with pytest.raises(NoFit, match=told):
        rehearsal_of_step(shape(*requests), Ddp(), 4)


MESH = Mesh(shard=4, tensor=2)
ALONG_TENSOR = AT_ONCE._replace(op="all_reduce", num_ranks=2, axis="tensor")
ALONG_SHARD = AT_ONCE._replace(num_ranks=4, axis="shard")


def test_groups_of_a_mesh_play_by_themselves() -> None:
    requests = (ALONG_TENSOR, ALONG_SHARD, AT_ONCE._replace(num_ranks=8), AT_ONCE)
    along_tensor, along_shard, *among_all = rehearsal_of_step(shape(*requests), MESH, 8).operations
    assert along_tensor.groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert along_shard.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert [one.groups for one in among_all] == [None, None]
    assert [one.num_ranks for one in (along_tensor, along_shard, *among_all)] == [2, 4, None, None]


@pytest.mark.parametrize(
    ("request_", "strategy"),
    [
        (ALONG_TENSOR._replace(num_ranks=4), MESH),
        (ALONG_TENSOR._replace(axis=None), MESH),
        (ALONG_TENSOR._replace(op="broadcast"), MESH),
        (ALONG_TENSOR._replace(axis="data"), Mesh(data=None, expert=2)),
    ],
)
def test_groups_that_no_mesh_has_are_not_played(request_: CommRequest, strategy: Mesh) -> None:
    with pytest.raises(NoFit):
        rehearsal_of_step(shape(request_), strategy, 8)


def test_the_replay_of_a_group_has_the_link_of_so_many_ranks() -> None:
    plan = rehearsal_of_step(shape(ALONG_TENSOR, ALONG_SHARD, AT_ONCE), MESH, 8)
    played = RehearsedStep(suite="s", case="c", world_size=8, plan=plan, exposed_s=(0.020,))

    def by_ranks(op: str, num_ranks: int, size_bytes: int) -> LinkTime:
        return LinkTime(1e-3 * num_ranks, 0.0, 0.0, (num_ranks,))

    assert stalled_of(plan, 8, by_ranks) == pytest.approx(0.014)
    assert longer_than_replayed_s(played, by_ranks) == pytest.approx(0.006)


@pytest.mark.parametrize(
    ("exposed_s", "expected_s"),
    [
        # 3 ms of the hidden message fit into 8 ms of work; of the other 1.5 ms nothing is hidden
        ((0.0025, 0.0015, 0.0020), 0.0005),
        ((0.0005,), -0.001),
        ((0.0015,), 0.0),
    ],
)
def test_what_messages_took_longer_is_against_the_replay(
    exposed_s: tuple[float, ...], expected_s: float
) -> None:
    plan = rehearsal_of_step(shape(HIDDEN, AT_ONCE), Ddp(), 2)
    played = RehearsedStep(suite="s", case="c", world_size=2, plan=plan, exposed_s=exposed_s)
    assert longer_than_replayed_s(played, link) == pytest.approx(expected_s, abs=1e-9)
