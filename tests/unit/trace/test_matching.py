"""Transfer and wait apart: who came last, and how long the others waited."""

from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.trace import ClockAlignment
from scalebench.trace.intervals import length_s
from scalebench.trace.matching import Arrival, Transfer, match, stragglers, transfers
from tests.builders.traced import MS, make_operation, make_trace


def spans(waiting):
    return [(start / MS, end / MS) for start, end in waiting.tolist()]


def test_the_early_rank_waits_for_the_late_one():
    early = make_trace([make_operation(10, 45)])
    late = make_trace([make_operation(40, 45)])
    found = match({0: early, 1: late})
    assert spans(found.waiting[0]) == [(10, 40)]
    assert spans(found.waiting[1]) == []
    assert found.arrivals == [Arrival(0, "all_reduce", 1, 0.03)]
    assert (found.mismatch, found.num_alone) == (None, 0)


def test_each_rank_waits_on_its_own_clock():
    """Rank 1's clock shows 5 s more; its trace begins 7 ms after rank 0's."""
    early = make_trace([make_operation(10, 45)], origin=1000)
    late = make_trace([make_operation(33, 38)], origin=6007)
    ahead = ClockAlignment(method="ping-pong", at_ns=0, offset_ns=5000 * MS, bound_ns=0)
    found = match({0: early, 1: late}, {1: ahead})
    assert spans(found.waiting[0]) == [(10, 40)]
    assert spans(found.waiting[1]) == []


def test_the_kth_of_a_kind_and_size_is_held_against_the_kth():
    first = make_trace([make_operation(10, 21), make_operation(30, 33)])
    second = make_trace([make_operation(20, 21), make_operation(29, 33)])
    found = match({0: first, 1: second})
    assert spans(found.waiting[0]) == [(10, 20)]
    assert spans(found.waiting[1]) == [(29, 30)]
    assert [arrival.rank for arrival in found.arrivals] == [1, 0]


def test_numbers_that_the_trace_carries_go_before_sizes():
    def numbered(*starts_and_numbers):
        return make_trace(
            [make_operation(start, 90, sequence=number) for start, number in starts_and_numbers]
        )

    found = match({0: numbered((10, 7), (20, 8)), 1: numbered((15, 8), (25, 7))})
    assert spans(found.waiting[0]) == [(10, 25)]
    assert spans(found.waiting[1]) == [(15, 20)]


def test_the_first_step_in_which_ranks_differ_is_named():
    steps = ((0, 50), (50, 100))
    whole = [make_operation(10, 20), make_operation(60, 70, step=1), make_operation(80, 90, step=1)]
    found = match({0: make_trace(whole, steps=steps), 1: make_trace(whole[:2], steps=steps)})
    assert found.mismatch == "in traced step 1, rank 0 has 2 all_reduce where rank 1 has 1"
    assert found.num_alone == 3
    assert len(found.arrivals) == 1


@given(st.lists(st.lists(st.floats(0, 50), min_size=3, max_size=3), min_size=1, max_size=6))
def test_in_every_operation_the_last_waits_for_nobody_and_the_others_for_it(arrivals):
    """Steps of 100 ms, one operation in each, over by 60 ms."""
    steps = [(100 * i, 100 * (i + 1)) for i in range(len(arrivals))]
    traces = {
        rank: make_trace(
            [
                make_operation(100 * i + starts[rank], 100 * i + 60, step=i, group_size=3)
                for i, starts in enumerate(arrivals)
            ],
            steps=steps,
        )
        for rank in range(3)
    }
    found = match(traces)
    for rank in range(3):
        expected = sum(max(starts) - starts[rank] for starts in arrivals) / 1e3
        assert abs(length_s(found.waiting[rank]) - expected) < 1e-8 * len(arrivals)


def test_stragglers_by_how_often_how_late_and_how_many_in_a_row():
    late = [(1, 0.03), (1, 0.05), (0, 0.001), (1, 0.04)]
    found = stragglers([Arrival(0, "all_reduce", rank, by) for rank, by in late])
    assert [(s.rank, s.count, s.share, s.median_late_s, s.longest_run) for s in found] == [
        (1, 3, 0.75, 0.04, 2),
        (0, 1, 0.25, 0.001, 1),
    ]
    assert found[0].stands_out(2) and not found[1].stands_out(2)
    assert stragglers([]) == []


def test_a_transfer_is_from_the_last_arrival_to_the_last_end():
    early = make_trace([make_operation(10, 45), make_operation(50, 61)])
    late = make_trace([make_operation(40, 46), make_operation(52, 60)])
    assert transfers({0: early, 1: late}) == [
        Transfer(0, "all_reduce", 1000, 0, 0.006),
        Transfer(0, "all_reduce", 1000, 1, 0.009),
    ]


def test_ranks_that_broadcast_in_turn_are_each_waited_for():
    """Two broadcasts of the optimizer: rank 0's, which is prompt, and rank 1's, 20 ms late."""
    mine = {"kind": "broadcast", "phase": "optimizer"}

    def ranks(first, second):
        return make_trace([make_operation(*first, **mine), make_operation(*second, **mine)])

    traces = {0: ranks((10, 15), (11, 35)), 1: ranks((30, 31), (31, 35))}
    found = match(traces, root="in turn")
    assert spans(found.waiting[0]) == [(11, 31)]  # for rank 1; of its own broadcast it waits not
    assert spans(found.waiting[1]) == []
    assert [arrival.rank for arrival in found.arrivals] == [1]
    assert spans(match(traces, root=0).waiting[0]) == []
