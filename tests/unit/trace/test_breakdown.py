"""Every moment of a step belongs to one part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.trace.breakdown import break_down, is_between_two
from scalebench.trace.intervals import intervals, union
from tests.builders.traced import flat, make_operation, make_trace

PARTS = (
    *("codec_s", "busy_s", "wait_s", "exposed_transfer_s"),
    *("copies_alone_s", "data_stall_s", "other_idle_s"),
)


def waiting(*spans):
    return union(intervals(flat(spans)))


def test_a_step_by_hand():
    """0-10 data, 10-40 compute, 30-70 communication (waiting till 55), 70-80 codec, 80-100 idle."""
    trace = make_trace(
        [make_operation(30, 70)],
        compute=[(10, 40), (72, 78)],
        data=flat([(0, 12)]),
        codec=flat([(70, 80)]),
    )
    found = break_down(0, trace, waiting((30, 55)))
    assert found.step_s == pytest.approx(0.1)
    assert found.comm_s == pytest.approx(0.04)
    assert found.compute_s == pytest.approx(0.04)
    assert found.busy_s == pytest.approx(0.03)
    assert found.codec_s == pytest.approx(0.01)
    assert found.exposed_comm_s == pytest.approx(0.03)
    assert found.wait_s == pytest.approx(0.015)
    assert found.exposed_transfer_s == pytest.approx(0.015)
    assert found.data_stall_s == pytest.approx(0.01)
    assert found.other_idle_s == pytest.approx(0.02)


def test_copies_by_hand():
    """0-40 compute, 30-60 communication, 20-35, 50-70 and 75-85 copies, 80-95 data."""
    trace = make_trace(
        [make_operation(30, 60)],
        compute=[(0, 40)],
        copies=flat([(20, 35), (50, 70), (75, 85)]),
        data=flat([(80, 95)]),
    )
    found = break_down(0, trace, waiting((40, 52)))
    assert found.copies_s == pytest.approx(0.045)
    assert found.copies_alone_s == pytest.approx(0.010 + 0.010)  # 60-70, 75-85
    assert found.comm_beside_copies_s == pytest.approx(0.010)  # 50-60
    assert found.data_stall_s == pytest.approx(0.010)  # a GPU that copies does not stand still
    assert found.other_idle_s == pytest.approx(0.005 + 0.005)  # 70-75, 95-100
    # What communication is, and what hides it, is what it was: copies hide nothing.
    assert found.exposed_comm_s == pytest.approx(0.020)
    assert (found.wait_s, found.exposed_transfer_s) == pytest.approx((0.012, 0.008))
    assert sum(getattr(found, part) for part in PARTS) == pytest.approx(0.1)


def test_figures_by_kind_and_by_bucket():
    operations = [
        make_operation(10, 30, ordinal=0, num_bytes=100),
        make_operation(20, 50, ordinal=1, num_bytes=300),
        make_operation(60, 61, ordinal=2, kind="barrier", num_bytes=None, phase="optimizer"),
    ]
    found = break_down(0, make_trace(operations, compute=[(0, 40)]))
    reduce, barrier = found.by_kind
    assert (reduce.kind, reduce.count, reduce.num_bytes) == ("all_reduce", 2, 400)
    assert (reduce.total_s, reduce.exposed_s) == pytest.approx((0.04, 0.01))
    assert reduce.hidden_s == pytest.approx(0.03)
    assert (barrier.kind, barrier.num_bytes, barrier.phase) == ("barrier", None, "optimizer")
    buckets = [(b.ordinal, b.total_s, b.exposed_s) for b in found.by_bucket]
    assert buckets == [
        (0, pytest.approx(0.02), 0),
        (1, pytest.approx(0.03), pytest.approx(0.01)),
        (2, pytest.approx(0.001), pytest.approx(0.001)),
    ]


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
