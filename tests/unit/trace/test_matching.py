"""Transfer and wait apart: who came last, and how long the others waited."""

from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.trace.idle import ends_apart, launches_between
from scalebench.trace.intervals import length_s
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
    ([op("aten::mm", 0, 5)], 0, 0),  # on CPU,
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
