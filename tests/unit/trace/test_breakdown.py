import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.trace.analysis import analyse
from scalebench.trace.breakdown import break_down, is_between_two
from scalebench.trace.events import divided, intersect, intervals, length, subtract, union
from scalebench.trace.files.reading import whole_steps
from scalebench.trace.operations.classify import timeline_of
from tests.builders.tracing.traced import flat, make_operation, make_trace
from tests.builders.tracing.traces import events, kernel

PARTS = (
    *("codec_s", "busy_s", "wait_s", "exposed_transfer_s"),
    *("copies_alone_s", "data_stall_s", "other_idle_s"),
)


edges = st.lists(st.floats(-20, 320), min_size=2, max_size=2).map(sorted)
spans_ = st.lists(edges, max_size=8)


def tidy(spans):
    return union(intervals(flat(spans))).ravel().tolist()


@given(spans_, spans_, spans_, spans_, spans_, spans_)
def test_the_parts_add_up_to_the_step_whatever_happened(compute, comm, data, codec, copies, waits):
    operations = [make_operation(a, b) for a, b in comm]
    trace = make_trace(operations, steps=[(0, 100), (100, 250), (250, 300)])
    sets = {"compute": tidy(compute), "data": tidy(data), "codec": tidy(codec)}
    sets["copies"] = tidy(copies)
    found = break_down(0, trace.model_copy(update=sets), union(intervals(flat(waits))))
    assert sum(getattr(found, part) for part in PARTS) == pytest.approx(0.1, abs=1e-9)
    assert all(getattr(found, part) >= 0 for part in PARTS)
    assert found.wait_s + found.exposed_transfer_s == pytest.approx(found.exposed_comm_s, abs=1e-12)
    assert found.exposed_comm_s <= found.comm_s + 1e-12
    assert found.comm_beside_copies_s <= found.exposed_comm_s + 1e-12
    shown = found.copies_alone_s + found.comm_beside_copies_s
    assert shown <= found.copies_s + 1e-12


def test_where_blocking_was_noted_it_stands_for_sends_and_receives():
    """A send of 80 ms blocks for 5; a receive for 10; an all-reduce lasts from 50 to 60."""
    operations = [
        make_operation(10, 90, kind="send"),
        make_operation(20, 95, kind="recv"),
        make_operation(50, 60),
    ]
    trace = make_trace(operations, compute=[(0, 5)])
    noted = make_trace(operations, compute=[(0, 5)], blocked=flat([(30, 35), (40, 52)]))
    assert break_down(0, trace).comm_s == pytest.approx(0.085)
    assert break_down(0, noted).comm_s == pytest.approx(0.005 + 0.020)
    assert [is_between_two(op) for op in operations] == [True, True, False]


def collective(name, nelems, start, end, stream, **more):
    details = {"Collective name": name, "In msg nelems": nelems, "dtype": "Byte", **more}
    return kernel("ncclDevKernel_Generic", start, end, stream=stream, **details)


def test_a_size_that_is_not_known_makes_the_sum_unknown():
    timeline = timeline_of(
        events(collective("allreduce", 5, 0, 10, 20), collective("allreduce", None, 20, 30, 20))
    )
    (share,) = analyse(timeline).kinds
    assert (share.count, share.payload_bytes) == (2, None)


def test_no_steps_to_look_at():
    with pytest.raises(UsageError, match="no profiler steps"):
        whole_steps(events(kernel("gemm", 0, 10)))


END = 40
PAIRS = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def painted(pairs):
    return {moment for start, end in pairs for moment in range(start, end)}


def covered(a):
    return painted([(int(start), int(end)) for start, end in a])


@given(PAIRS, PAIRS)
def test_the_algebra_of_intervals_is_that_of_painted_moments(first, second):
    one, other = (union(intervals(pairs)) for pairs in (first, second))
    moments = painted(first), painted(second)
    for found, expected in (
        (union(intervals(first), intervals(second)), moments[0] | moments[1]),
        (intersect(one, other), moments[0] & moments[1]),
        (subtract(one, other), moments[0] - moments[1]),
    ):
        assert covered(found) == expected and length(found) == len(expected)
        assert np.all(found[:, 0] < found[:, 1]) and np.all(found[1:, 0] > found[:-1, 1])


@given(PAIRS, PAIRS, PAIRS)
def test_moments_are_divided_among_the_sets_that_cover_them(moments, first, second):
    found = divided(
        union(intervals(moments)),
        {"first": union(intervals(first)), "second": union(intervals(second))},
    )
    of, one, other = painted(moments), painted(first), painted(second)
    assert found["first"] == len(of & one - other) + len(of & one & other) / 2
    assert found["second"] == len(of & other - one) + len(of & one & other) / 2


def test_times_of_day_in_nanoseconds_are_exact():
    now = 1_795_246_991_239_749_685
    a = union(intervals([(now, now + 3), (now + 2, now + 5)]))
    assert length(subtract(a, intervals([(now + 1, now + 4)]))) == 2
