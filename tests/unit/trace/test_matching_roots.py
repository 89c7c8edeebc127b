"""Broadcasts, groups and uneven traces: every field of what is matched, by hand."""

import pytest

from scalebench.trace.matching import (
    Arrival,
    Transfer,
    first_mismatch,
    match,
    stragglers,
    together,
    transfers,
)
from tests.builders.traced import MS, make_operation, make_trace

BROADCAST = {"kind": "broadcast", "group_size": 3}


def spans(waiting):
    return [(start / MS, end / MS) for start, end in waiting.tolist()]


def three(*rows, **changes):
    """Rank → its trace, of rows of (start, end) on each of three ranks."""
    return {
        rank: make_trace([make_operation(*row[rank], **{**BROADCAST, **changes}) for row in rows])
        for rank in range(3)
    }


@pytest.mark.parametrize(
    ("root", "waiting", "arrivals"),
    [
        (0, {0: [], 1: [], 2: [(5, 10)]}, [Arrival(0, "broadcast", 0, 0.005)]),
        (1, {0: [(10, 30)], 1: [], 2: [(5, 30)]}, [Arrival(0, "broadcast", 1, 0.025)]),
        (2, {0: [], 1: [], 2: []}, []),  # the root is first: nobody waits
        (7, {0: [], 1: [], 2: []}, []),  # of another group
        (None, {0: [], 1: [], 2: []}, []),
    ],
)
def test_in_a_broadcast_everybody_waits_for_the_root(root, waiting, arrivals):
    found = match(three([(10, 40), (30, 41), (5, 42)]), root=root)
    assert {rank: spans(spent) for rank, spent in found.waiting.items()} == waiting
    assert found.arrivals == arrivals
    assert (found.mismatch, found.num_alone) == (None, 0)


def test_ranks_that_own_parameters_broadcast_in_turn_in_each_step():
    """Four broadcasts of the optimizer by three ranks, 0, 1, 2 and 0 again; then a step with one.

    In each the last is another than the root, so that every root shows.
    """
    rows = [
        [(12, 19), (11, 19), (10, 19)],
        [(22, 29), (21, 29), (20, 29)],
        [(30, 39), (31, 39), (32, 39)],
        [(42, 49), (41, 49), (40, 49)],
    ]
    traces = {
        rank: make_trace(
            [
                *(make_operation(*row[rank], phase="optimizer", **BROADCAST) for row in rows),
                make_operation(113 - rank, 119, step=1, phase="optimizer", **BROADCAST),
            ],
            steps=[(0, 100), (100, 200)],
        )
        for rank in range(3)
    }
    found = match(traces, root="in turn")
    assert [(one.step, one.rank, round(1e3 * one.late_s)) for one in found.arrivals] == [
        (0, 0, 2),
        (0, 1, 1),
        (0, 2, 2),
        (0, 0, 2),
        (1, 0, 2),
    ]
    assert spans(found.waiting[1]) == [(11, 12), (31, 32), (41, 42), (112, 113)]


def test_what_is_broadcast_outside_of_the_optimizer_is_rank_0s():
    """And other operations of the optimizer are nobody's turn."""
    traces = {
        rank: make_trace(
            [
                make_operation(5, 9, phase="optimizer", group_size=3),
                make_operation(13 - rank, 19, phase="forward", **BROADCAST),
                make_operation(33 - rank, 39, phase="optimizer", **BROADCAST),
                make_operation(43 + rank, 49, phase="optimizer", **BROADCAST),
            ]
        )
        for rank in range(3)
    }
    found = match(traces, root="in turn")
    assert [(one.kind, one.rank) for one in found.arrivals] == [
        ("all_reduce", 0),
        ("broadcast", 0),
        ("broadcast", 0),
        ("broadcast", 1),
    ]
    assert spans(found.waiting[2]) == [(11, 13), (31, 33)]
    assert spans(found.waiting[0]) == [(43, 44)]


def test_waits_along_each_dimension():
    def rank(first, second):
        return make_trace(
            [
                make_operation(first, 20, axis="data"),
                make_operation(second, 60, axis="tensor", kind="all_gather"),
                make_operation(70, 80),
            ]
        )

    found = match({0: rank(10, 50), 1: rank(13, 45)})
    along = found.waiting_along
    assert {axis: spans(spent) for axis, spent in along[0].items()} == {
        "data": [(10, 13)],
        "tensor": [],
        None: [],
    }
    assert spans(along[1]["tensor"]) == [(45, 50)]
    assert spans(found.waiting[0]) == [(10, 13)]


def test_what_has_no_counterpart_on_every_rank_is_alone():
    """Two groups of two, one of which has an operation more on one rank, and a group of one."""
    pair = {"group": "a", "group_size": 2}
    other = {"group": "b", "group_size": 2}
    traces = {
        0: make_trace([make_operation(1, 2, **pair), make_operation(3, 4, **pair)]),
        1: make_trace([make_operation(1, 2, **pair), make_operation(3, 4, **pair)]),
        2: make_trace([make_operation(1, 2, **other), make_operation(3, 4, **other)]),
        3: make_trace(
            [make_operation(1, 2, **other), make_operation(5, 6, group="c", group_size=1)]
        ),
    }
    matched, num_alone = together(traces)
    assert [sorted(operation) for operation in matched] == [[0, 1], [0, 1], [3]]
    assert num_alone == 3


def test_sizes_tell_operations_apart_but_for_all_to_alls():
    def rank(kind, *sizes):
        return make_trace(
            [
                make_operation(10 * i, 10 * i + 5, kind=kind, num_bytes=size)
                for i, size in enumerate(sizes)
            ]
        )

    for kind, alone in (("all_reduce", 4), ("all_to_all", 0)):
        matched, num_alone = together({0: rank(kind, 8, 9), 1: rank(kind, 7, 6)})
        assert (len(matched), num_alone) == (2 - alone // 2, alone)


def test_transfers_of_known_size_in_the_order_of_time():
    def rank(*rows):
        return make_trace([make_operation(a, b, **more) for a, b, more in rows])

    unknown, empty = {"num_bytes": None}, {"num_bytes": 0}
    gather, sent = {"kind": "all_gather"}, {"kind": "broadcast"}
    first = rank(
        *((50, 61, {}), (10, 45, {}), (62, 63, unknown)),
        *((64, 65, empty), (66, 67, sent), (70, 79, gather), (90, 91, {})),
    )
    second = rank(
        *((52, 60, {}), (40, 46, {}), (62, 63, unknown)),
        *((64, 65, empty), (66, 67, sent), (72, 77, gather), (95, 96, {})),
    )
    assert transfers({0: first, 1: second}) == [
        Transfer(0, "all_reduce", 1000, 0, 0.006),
        Transfer(0, "all_reduce", 1000, 1, 0.009),
        Transfer(0, "all_gather", 1000, 0, 0.007),
        Transfer(0, "all_reduce", 1000, 2, 0.001),
    ]


def test_a_transfer_that_ended_before_the_last_came_took_no_time():
    """Clocks that are not quite aligned: the second rank's ends a whole second early."""
    first = make_trace([make_operation(50, 60)])
    whole = {"group_size": 2, "num_bytes": 1000}
    early = make_trace([make_operation(10, 20, **whole)])
    assert transfers({0: first, 1: early}) == [Transfer(0, "all_reduce", 1000, 0, 0.01)]
    instant = make_trace([make_operation(50, 50)])
    (found,) = transfers({0: instant, 1: instant})
    assert found.transfer_s == 0


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({}, True),
        ({"group_size": None}, True),
        ({"group_size": 2}, False),
        ({"kind": "broadcast"}, False),
        ({"kind": "send"}, False),
    ],
)
def test_only_what_all_ranks_must_have_alike_is_compared(changes, compared):
    more = [make_operation(10, 20, **{"group_size": 3, **changes})]
    told = first_mismatch({0: [], 1: more, 2: []})
    assert told == (
        "in traced step 0, rank 1 has 1 all_reduce where rank 0 has 0" if compared else None
    )


def test_the_earliest_step_and_the_ranks_furthest_apart_are_named():
    def ranks(step, *counts):
        return [[make_operation(1, 2, step=step, group_size=3)] * count for count in counts]

    later, earlier = ranks(2, 5, 1, 1), ranks(1, 2, 2, 4)
    found = first_mismatch({r: [*later[r], *earlier[r]] for r in range(3)})
    assert found == "in traced step 1, rank 2 has 4 all_reduce where rank 0 has 2"


def test_ranks_that_came_last_equally_often_stand_by_number():
    late = [(2, 0.02), (2, 0.06), (0, 0.01), (0, 0.03), (1, 0.5), (2, 0.04), (0, 0.05)]
    found = stragglers([Arrival(0, "all_reduce", rank, by) for rank, by in late])
    assert [(one.rank, one.count, one.longest_run) for one in found] == [
        (0, 3, 2),
        (2, 3, 2),
        (1, 1, 1),
    ]
    assert [one.share for one in found] == [3 / 7, 3 / 7, 1 / 7]
    assert [one.median_late_s for one in found] == [0.03, 0.04, 0.5]
