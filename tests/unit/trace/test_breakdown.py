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


def test_a_trace_without_copies_is_shared_out_as_before():
    trace = make_trace([make_operation(30, 60)], compute=[(0, 40)])
    assert trace.copies is None
    found = break_down(0, trace)
    assert (found.copies_s, found.copies_alone_s, found.comm_beside_copies_s) == (0, 0, 0)
    assert found.other_idle_s == pytest.approx(0.040)


def test_what_lies_outside_the_steps_does_not_count():
    trace = make_trace([make_operation(95, 120)], compute=[(-20, 10)], steps=[(0, 100)])
    found = break_down(0, trace)
    assert found.compute_s == pytest.approx(0.01)
    assert found.comm_s == pytest.approx(0.005)


def test_chosen_steps_only():
    steps = [(0, 100), (100, 300)]
    operations = [make_operation(50, 60), make_operation(200, 240, step=1)]
    trace = make_trace(operations, compute=[(0, 50), (100, 200)], steps=steps)
    both = break_down(0, trace)
    second = break_down(0, trace, chosen=[1])
    assert (both.num_steps, both.step_s, both.comm_s) == (2, 0.15, 0.025)
    assert (second.num_steps, second.step_s, second.comm_s) == (1, 0.2, 0.04)
    assert second.by_kind[0].count == 1


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


def test_figures_are_those_of_one_step():
    """Two steps with 30 ms each of communication, of which computation hides 10 and 20 ms."""
    operations = [
        make_operation(40, 70, num_bytes=100),
        make_operation(140, 170, step=1, num_bytes=100),
    ]
    trace = make_trace(operations, compute=[(0, 50), (100, 160)], steps=[(0, 100), (100, 200)])
    (reduce,) = break_down(0, trace).by_kind
    assert (reduce.count, reduce.num_bytes) == (1, 100)
    times = (reduce.total_s, reduce.exposed_s, reduce.hidden_s)
    assert times == pytest.approx((0.030, 0.015, 0.015))


def test_a_bubble_is_a_part_of_the_wait_or_all_of_it():
    found = break_down(0, make_trace([make_operation(30, 70)]), waiting((30, 45)))
    assert (found.bubble_s, found.wait_s) == (0, pytest.approx(0.015))
    part = found.with_bubble(0.010)
    assert (part.bubble_s, part.wait_s) == pytest.approx((0.010, 0.005))
    whole = found.with_bubble(0.020)
    assert (whole.bubble_s, whole.wait_s) == pytest.approx((0.015, 0.0))
    assert part.exposed_comm_s == found.exposed_comm_s


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


def test_encoding_and_decoding_are_parts_of_a_step():
    trace = make_trace(
        codec=flat([(0, 40)]), encode=flat([(0, 15)]), decode=flat([(15, 40), (150, 160)])
    )
    found = break_down(0, trace)
    assert (found.encode_s, found.decode_s, found.codec_s) == pytest.approx((0.015, 0.025, 0.04))
    assert (found.busy_s, found.compute_s) == pytest.approx((0.0, 0.04))


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (("forward", "backward", "backward"), "backward"),
        (("optimizer", "optimizer", "forward"), "optimizer"),
        (("optimizer", "backward"), "backward"),  # as often: by the alphabet
    ],
)
def test_operations_have_the_phase_of_most_of_them(phases, expected):
    operations = [make_operation(10 * i, 10 * i + 5, phase=p) for i, p in enumerate(phases)]
    (reduce,) = break_down(0, make_trace(operations)).by_kind
    assert (reduce.phase, reduce.count, reduce.num_bytes) == (
        expected,
        len(phases),
        1000 * len(phases),
    )


def test_sums_of_three_steps_are_divided_by_three():
    steps = [(0, 100), (100, 200), (200, 300)]
    operations = [make_operation(10, 40, num_bytes=60), make_operation(250, 280, step=2)]
    found = break_down(3, make_trace(operations, compute=[(30, 40)], steps=steps))
    (reduce,) = found.by_kind
    assert (found.rank, found.num_steps, found.step_s) == (3, 3, pytest.approx(0.1))
    assert (reduce.count, reduce.num_bytes) == pytest.approx((2 / 3, 1060 / 3))
    times = (reduce.total_s, reduce.exposed_s, reduce.hidden_s)
    assert times == pytest.approx((0.020, 0.050 / 3, 0.010 / 3))
