"""Transfer and wait apart: who came last, and how long the others waited."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.trace import ClockAlignment, Trace, TracedOperation
from scalebench.trace.causality import ends_apart, launches_between, shows_no_gpu
from scalebench.trace.intervals import length_s
from scalebench.trace.kineto import read_kineto
from scalebench.trace.matching import Arrival, Transfer, match, stragglers, transfers
from tests.builders.traced import MS, make_operation, make_trace
from tests.builders.traces import US, annotation, events, kernel, launch, op


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


GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def record(size):
    details = {"Collective name": "allreduce", "Group size": size, "In msg nelems": 4}
    return op("record_param_comms", 30, 31, **{**details, "dtype": "Float"})


def steps(lost=(), early=(), count=10):
    """Launches at 0, 10, 20, … µs, each with a kernel 5 µs later."""
    for n in range(count):
        yield launch(10 * n, n + 1)
        if n not in lost:
            yield kernel("gemm", 10 * n + (-1 if n in early else 5), 10 * n + 8, n + 1)


@pytest.mark.parametrize(
    ("rows", "num", "num_impossible"),
    [
        (steps(), 10, 0),
        (steps(lost=[3, 4]), 10, 2),
        (steps(early=[3, 5, 6]), 10, 3),
        (steps(lost=[0], early=[9]), 10, 2),
        ([*steps(), record(1)], 10, 0),  # one rank: in place, NCCL launches nothing
        ([*steps(), record(2)], 11, 1),
        ([*steps(), record(2), kernel(ALL_REDUCE, 35, 39, 4)], 10, 0),
        ([*steps(lost=[3]), annotation("cudaStreamBeginCapture", 1, 2)], 10, 0),
        ([op("aten::mm", 0, 5)], 0, 0),  # on CPU
    ],
)
def test_launches_without_their_kernel_or_after_it_are_counted(rows, num, num_impossible):
    found = launches_between(events(*rows), 0, 1000 * US)
    assert (found.num, found.num_impossible) == (num, num_impossible)


@pytest.mark.parametrize(("num_lost", "refused"), [(0, False), (2, False), (3, True)])
def test_more_than_one_in_a_hundred_is_refused_with_the_remedy(num_lost, refused):
    found = launches_between(events(*steps(lost=range(num_lost), count=200)), 0, 10_000 * US)
    reason = found.why_refused or ""
    assert bool(reason) is refused
    assert not refused or ("3 of 200 launches" in reason and "CUDA 13.1" in reason)


@pytest.mark.parametrize(
    ("rows", "silent"),
    [
        ([launch(0, 1)], True),
        ([annotation("nccl:all_reduce", 0, 1)], True),
        ([launch(0, 1), kernel("gemm", 5, 8, 1)], False),
        ([annotation("gloo:all_reduce", 0, 1), op("aten::mm", 0, 5)], False),
    ],
)
def test_a_gpu_of_which_nothing_is_seen_is_no_cpu(rows, silent):
    assert shows_no_gpu(events(*rows)) is silent


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("nccl*.gz")), ids=lambda path: path.name)
def test_real_traces_are_possible(path):
    read = read_kineto(path)
    found = launches_between(read, int(read.start_ns.min()), int(read.end_ns.max()) + 1)
    assert (found.num, found.num_impossible) == (len(read.of("kernel")), 0)


def reduced(ends_us, name=ALL_REDUCE, kind="all_reduce"):
    """Return the trace of a rank whose operations of 200 µs end then."""
    return Trace(
        origin_ns=0,
        steps=[(0, 10**9)],
        operations=[
            TracedOperation(
                kind=kind, name=name, step=0, ordinal=n, num_bytes=4, group_size=2,
                start_ns=round((end - 200) * US), end_ns=round(end * US),
            )
            for n, end in enumerate(ends_us)
        ],
    )  # fmt: skip


EVEN = [1000 * n for n in range(1, 201)]


@pytest.mark.parametrize(
    ("apart_us", "num_shifted", "clock_us", "change", "refused"),
    [
        (0, 200, 0, {}, False),
        (110, 200, 0, {}, False),  # the last pieces arrive one after another
        (130, 200, 0, {}, True),
        (130, 2, 0, {}, False),  # no more than one in a hundred
        (130, 3, 0, {}, True),
        (130, 200, 20, {}, False),  # the clocks explain it
        (130, 200, 0, {"name": "gloo:all_reduce"}, False),
        (130, 200, 0, {"kind": "all_gather"}, False),
    ],
)
def test_all_reduces_that_end_apart_are_refused(apart_us, num_shifted, clock_us, change, refused):
    shifted = [end + apart_us * (n < num_shifted) for n, end in enumerate(EVEN)]
    traces = {0: reduced(EVEN, **change), 1: reduced(shifted, **change)}
    reason = ends_apart(traces, {}, clock_us / 1e6)
    assert bool(reason) is refused
    assert not refused or f"{num_shifted} of 200 all-reduces" in reason
