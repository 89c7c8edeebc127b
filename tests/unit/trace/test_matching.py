from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.trace.events import Operation, Timeline, intervals, length_s, subtract, union
from scalebench.trace.idle import ends_apart, launches_between
from scalebench.trace.job import waits_of
from scalebench.trace.operations.matching import match
from tests.builders.tracing.traced import make_operation, make_trace
from tests.builders.tracing.traces import US, annotation, events, kernel, launch, op
from tests.examples import cases


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


@cases(
    "rows, num, num_impossible",
    (steps(), 10, 0),
    (steps(lost=[3, 4]), 10, 2),
    (steps(early=[3, 5, 6]), 10, 3),
    (steps(lost=[0], early=[9]), 10, 2),
    ([*steps(), record(1)], 10, 0),  # one rank: in place, NCCL launches nothing
    ([*steps(), record(2)], 11, 1),
    ([*steps(), record(2), kernel(ALL_REDUCE, 35, 39, 4)], 10, 0),
    ([*steps(lost=[3]), annotation("cudaStreamBeginCapture", 1, 2)], 10, 0),
    ([op("aten::mm", 0, 5)], 0, 0),  # on CPU
)
def test_launches_without_their_kernel_or_after_it_are_counted(rows, num, num_impossible):
    found = launches_between(events(*rows), 0, 1000 * US)
    assert (found.num, found.num_impossible) == (num, num_impossible)


@cases("num_lost, refused", (0, False), (2, False), (3, True))
def test_more_than_one_in_a_hundred_is_refused_with_the_remedy(num_lost, refused):
    found = launches_between(events(*steps(lost=range(num_lost), count=200)), 0, 10_000 * US)
    reason = found.why_refused or ""
    assert bool(reason) is refused
    assert not refused or ("3 of 200 launches" in reason and "CUDA 13.1" in reason)


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


@cases(
    "apart_us, num_shifted, clock_us, change, refused",
    (0, 200, 0, {}, False),
    (110, 200, 0, {}, False),  # the last pieces arrive one after another
    (130, 2, 0, {}, False),  # no more than one in a hundred
    (130, 3, 0, {}, True),
    (130, 200, 0, {"name": "gloo:all_reduce"}, False),
    (130, 200, 0, {"kind": "all_gather"}, False),
)
def test_all_reduces_that_end_apart_are_refused(apart_us, num_shifted, clock_us, change, refused):
    shifted = [end + apart_us * (n < num_shifted) for n, end in enumerate(EVEN)]
    traces = {0: reduced(EVEN, **change), 1: reduced(shifted, **change)}
    reason = ends_apart(traces, {}, clock_us / 1e6)
    assert bool(reason) is refused
    assert not refused or f"{num_shifted} of 200 all-reduces" in reason


def rank(*operations, compute=(), offset=0.0, world_size=2):
    """A rank's timeline, in ms; its clock shows ``offset`` more than rank 0's."""

    def ns(time):
        return round((time + offset) * 1_000_000)

    return Timeline(
        operations=tuple(
            Operation("all_reduce", "x", ns(a), ns(b), num_bytes=8) for a, b in operations
        ),
        compute=union(intervals([(ns(a), ns(b)) for a, b in compute])),
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


@cases(
    "timelines, reason",
    ([rank((10, 50))], "one rank does not show when the others arrived"),
    ([rank((10, 50)), rank()], "rank 0 has 1 all_reduce where rank 1 has 0"),
    ([rank((10, 50), world_size=128), rank((10, 50), world_size=128)], "no operation is in"),
    ([rank(), rank()], "no operation is known in which ranks wait for each other"),
    ([rank((1, 5), world_size=None)] * 2, "do not say how many ranks the job has"),
    ([replace(rank((1, 5)), num_groups=3)] * 2, "how many ranks the operations go between"),
)
def test_where_waits_cannot_be_told_the_reason_is(timelines, reason):
    found = waits(*timelines)
    assert (found.ranks, found.clock_error_s, found.stragglers) == ({}, 0.0, ())
    assert reason in found.reason
