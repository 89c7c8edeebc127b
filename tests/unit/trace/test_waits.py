"""Waits in the traces of any job: clocks by the ends of operations, and reasons where none."""

from dataclasses import replace

import pytest

from scalebench.records.trace import ClockAlignment, TracedOperation
from scalebench.trace.intervals import intervals, subtract, union
from scalebench.trace.timeline import Operation, Timeline
from scalebench.trace.waits import RankWait, as_trace, clocks_by_ends, waits_of
from tests.builders.traced import make_operation, make_trace

MS = 1_000_000


def rank(*operations, compute=(), offset=0.0, world_size=2, steps=(), group_size=None):
    """A rank's timeline, in ms; its clock shows ``offset`` more than rank 0's."""

    def ns(time):
        return round((time + offset) * MS)

    return Timeline(
        operations=tuple(
            Operation("all_reduce", "x", ns(a), ns(b), num_bytes=8, group_size=group_size)
            for a, b in operations
        ),
        compute=union(intervals([(ns(a), ns(b)) for a, b in compute])),
        steps=intervals([(ns(a), ns(b)) for a, b in steps]),
        extent=(ns(0), ns(200)),
        world_size=world_size,
    )


def waits(*timelines):
    exposed = {r: subtract(t.communication, t.compute) for r, t in enumerate(timelines)}
    return waits_of(dict(enumerate(timelines)), exposed)


def test_the_wait_is_found_though_the_clocks_are_hours_apart():
    early = rank((10, 50), (100, 130), (150, 152), compute=[(0, 20)])
    late = rank((40, 50), (100, 130), (150, 152), offset=7.2e6)
    found = waits(early, late)
    assert found.reason is None
    assert found.ranks[0].wait_s == pytest.approx(0.020)
    assert found.ranks[0].exposed_transfer_s == pytest.approx(0.010 + 0.030 + 0.002)
    assert found.ranks[1].wait_s == pytest.approx(0.0)
    assert found.clock_error_s == 0


def test_ends_that_scatter_are_the_error_of_the_clocks():
    first = rank((10, 50), (60, 90), (100, 130), (140, 160))
    second = rank((10, 51), (60, 89), (100, 131), (140, 159))
    assert waits(first, second).clock_error_s == pytest.approx(0.001)


def test_the_kth_is_counted_within_a_step_where_there_are_steps():
    steps = [(0, 100), (100, 200)]
    first = rank((10, 50), (110, 150), steps=steps)
    second = rank((30, 50), (140, 150), steps=steps)
    assert waits(first, second).ranks[0].wait_s == pytest.approx(0.050)


@pytest.mark.parametrize(
    ("timelines", "reason"),
    [
        ([rank((10, 50))], "one rank does not show when the others arrived"),
        ([rank((10, 50)), rank()], "rank 0 has 1 all_reduce where rank 1 has 0"),
        ([rank((10, 50), world_size=128), rank((10, 50), world_size=128)], "no operation is in"),
        ([rank(), rank()], "no operation is known in which ranks wait for each other"),
        ([rank((1, 5), world_size=None)] * 2, "do not say how many ranks the job has"),
        ([replace(rank((1, 5)), num_groups=3)] * 2, "how many ranks the operations go between"),
    ],
)
def test_where_waits_cannot_be_told_the_reason_is(timelines, reason):
    found = waits(*timelines)
    assert (found.ranks, found.clock_error_s, found.stragglers) == ({}, 0.0, ())
    assert reason in found.reason


def test_a_timeline_as_a_trace_every_field():
    operations = (
        Operation(
            "all_reduce", "x", 40, 90, 35, 8, "float32", "g", 3, 7, phase="backward", stream=5
        ),
        Operation("broadcast", "y", 100, 120),
        Operation("barrier", "z", 250, 260, group_size=2),
    )
    timeline = Timeline(
        operations=operations,
        compute=intervals([]),
        steps=intervals([(100, 200), (200, 300)]),
        extent=(30, 310),
        world_size=4,
    )
    trace = as_trace(timeline)
    assert (trace.origin_ns, trace.steps) == (30, [(0, 280)] * 3)
    first, second, third = trace.operations
    assert first == TracedOperation(
        kind="all_reduce",
        name="x",
        step=0,
        ordinal=0,
        start_ns=10,
        end_ns=60,
        num_bytes=8,
        dtype="float32",
        group="g",
        group_size=3,
        phase="backward",
        sequence=7,
    )
    assert (second.step, second.start_ns, second.end_ns, second.group_size) == (1, 70, 90, 4)
    assert (third.step, third.group_size, third.num_bytes) == (2, 2, None)


def test_clocks_by_the_ends_of_operations():
    """Rank 1 ends 3, 5, 7 and 9 ms later; rank 2 always 20 earlier; rank 4 shares nothing."""
    ends = {0: (50, 60, 70, 80), 1: (53, 65, 77, 89), 2: (30, 40, 50, 60)}
    group = {"group": "g", "group_size": 3}
    traces = {
        rank: make_trace(
            [make_operation(end - 9, end, **group) for end in of], origin=1000 * rank + 500
        )
        for rank, of in ends.items()
    }
    traces[4] = make_trace([make_operation(1, 2, group="h", group_size=1)])
    clocks, error_s = clocks_by_ends(traces)
    # quartiles of 3, 5, 7, 9: 4.5 and 7.5
    assert clocks[1] == ClockAlignment(
        method="operations", at_ns=1500 * MS, offset_ns=1006 * MS, bound_ns=1_500_000
    )
    assert (clocks[2].offset_ns, clocks[2].bound_ns) == (1980 * MS, 0)
    assert (clocks[0].offset_ns, clocks[0].bound_ns) == (0, 0)
    assert set(clocks) == {0, 1, 2}
    assert error_s == pytest.approx(0.0015)


def test_operations_without_a_counterpart_are_counted_in_the_reason():
    """Rank 0 has an operation of a group of two, the other half of which was not given."""
    shared = [Operation("all_reduce", "x", 10, 20, num_bytes=8, group="all", group_size=2)]
    apart = [
        Operation("all_reduce", "x", i, i + 1, num_bytes=8, group="g", group_size=3)
        for i in (30, 40)
    ]
    first = Timeline((*shared, *apart), intervals([]), extent=(0, 50))
    second = Timeline(tuple(shared), intervals([]), extent=(0, 50))
    found = waits(first, second)
    assert (found.ranks, found.reason) == (
        {},
        "2 operations are not in the traces of all their ranks",
    )


def test_a_trace_that_begins_late_has_its_waits_at_the_same_moments():
    """The extents begin at 5 and 7 ms: waits are counted from there, and told from 0."""
    first, second = rank((10, 50), compute=[(0, 25)]), rank((40, 50))
    moved = [
        replace(timeline, extent=(begin * MS, 200 * MS))
        for timeline, begin in ((first, 5), (second, 7))
    ]
    found = waits(*moved)
    assert found.ranks[0] == RankWait(pytest.approx(0.010), pytest.approx(0.015))
    assert found.ranks[1] == RankWait(pytest.approx(0.010), 0.0)


def test_each_rank_shares_out_its_own_exposed_time():
    """Communication 10-50 and 40-50; the first computes until 25, the second from 45 on."""
    found = waits(rank((10, 50), compute=[(0, 25)]), rank((40, 50), compute=[(45, 60)]))
    assert found.ranks == {
        0: RankWait(pytest.approx(0.010), pytest.approx(0.015)),
        1: RankWait(pytest.approx(0.005), 0.0),
    }
    assert [(s.rank, s.count, s.median_late_s) for s in found.stragglers] == [(1, 1, 0.03)]


def test_ranks_that_share_no_operation_have_no_clocks():
    apart = {"group": "g", "group_size": 2}
    traces = {0: make_trace([make_operation(1, 2, **apart)]), 1: make_trace([])}
    assert clocks_by_ends(traces) == ({}, 0.0)
