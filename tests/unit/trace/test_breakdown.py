"""Every moment of a step belongs to one part."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.trace.analysis import analyse, together
from scalebench.trace.breakdown import break_down, is_between_two
from scalebench.trace.classify import timeline_of
from scalebench.trace.intervals import intervals, union
from scalebench.trace.job import analyse_job
from scalebench.trace.split import whole_steps
from tests.builders.traced import flat, make_operation, make_trace
from tests.builders.traces import Event, annotation, events, kernel, launch, op

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


GEMM = "ampere_sgemm_128x64_tn"


def collective(name, nelems, start, end, stream, **more):
    details = {"Collective name": name, "In msg nelems": nelems, "dtype": "Byte", **more}
    return kernel("ncclDevKernel_Generic", start, end, stream=stream, **details)


@pytest.fixture
def timeline():
    """Microseconds: comm 100-200 and 150-260 (160), compute 0-120 and 250-300 (170)."""
    return timeline_of(
        events(
            annotation("ProfilerStep#1", 50, 150),
            annotation("ProfilerStep#2", 150, 220),
            kernel(GEMM, 0, 120),
            kernel(GEMM, 250, 300),
            collective("allreduce", 100, 100, 200, 20),
            collective("broadcast", 7, 150, 260, 21),
            Event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 320, 330),
            op("aten::item", 0, 400),
        )
    )


def us(value):
    return pytest.approx(value * 1e-6)


def test_the_whole_file(timeline):
    found = analyse(timeline)
    assert found.window_s == us(400)
    assert found.comm_s == us(160)
    assert found.compute_s == us(170)
    assert found.overlap_s == us(20 + 10)
    assert found.exposed_comm_s == us(130)
    assert found.overlap_ratio == pytest.approx(30 / 160)
    assert found.comm_compute_ratio == pytest.approx(160 / 170)
    assert found.copies_s == us(10)
    assert found.idle_s == us(400 - 300 - 10)


def test_copies_hide_no_communication():
    """Microseconds: compute 0-50, comm 40-100, copies 30-60, 55-70 and 95-120."""
    timeline = timeline_of(
        events(
            kernel(GEMM, 0, 50),
            collective("allreduce", 100, 40, 100, 20),
            Event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 30, 60),
            Event("gpu_memset", "Memset (Device)", 55, 70),
            Event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 95, 120),
        )
    )
    found = analyse(timeline)
    assert (found.overlap_s, found.exposed_comm_s) == (us(10), us(50))
    assert found.copies_s == us(40 + 25)
    assert found.comm_beside_copies_s == us(20 + 5)
    assert found.copies_alone_s == us(20)
    both = together([found, found])
    assert (both.comm_beside_copies_s, both.copies_alone_s) == (us(50), us(40))


def test_kinds_overlap_each_other_and_are_each_a_union(timeline):
    broadcast, reduce = analyse(timeline).kinds  # the longest first
    assert (broadcast.name, broadcast.count, broadcast.payload_bytes) == ("broadcast", 1, 7)
    assert (broadcast.total_s, broadcast.hidden_s, broadcast.exposed_s) == (
        us(110),
        us(10),
        us(100),
    )
    assert (reduce.name, reduce.total_s) == ("all_reduce", us(100))
    assert (reduce.hidden_s, reduce.exposed_s) == (us(20), us(80))


def test_a_size_that_is_not_known_makes_the_sum_unknown():
    timeline = timeline_of(
        events(
            collective("allreduce", 5, 0, 10, 20),
            collective("allreduce", None, 20, 30, 20),
        )
    )
    (share,) = analyse(timeline).kinds
    assert (share.count, share.payload_bytes) == (2, None)


def test_several_ranks_are_summed_and_their_ratio_is_that_of_the_sums(timeline):
    hidden = timeline_of(events(kernel(GEMM, 0, 50), collective("allreduce", 3, 0, 40, 20)))
    found = together([analyse(timeline), analyse(hidden)])
    assert found.comm_s == us(200)
    assert found.exposed_comm_s == us(130)
    assert found.overlap_ratio == pytest.approx(70 / 200)
    assert {share.name: (share.count, share.payload_bytes) for share in found.kinds} == {
        "all_reduce": (2, 103),
        "broadcast": (1, 7),
    }


GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def steps(*bounds):
    return [annotation(f"ProfilerStep#{i}", *span) for i, span in enumerate(bounds)]


def test_a_kernel_belongs_to_the_step_that_launched_it():
    timeline, within, _ = whole_steps(
        events(
            *steps((100, 200), (200, 300), (300, 400)),
            launch(50, 1), kernel("gemm", 110, 120, 1),  # before the first step
            launch(150, 2), kernel("gemm", 180, 220, 2),
            launch(290, 3), kernel("gemm", 350, 380, 3),  # of the second, run during the third
            launch(290, 4), kernel(REDUCE, 370, 390, 4, 20, **{"Collective name": "broadcast"}),
            launch(300, 5), kernel("gemm", 395, 399, 5),  # of the last
            launch(280, 6), Event("gpu_memcpy", "Memcpy DtoH", 391, 392, 7, 6),
            launch(310, 7), Event("gpu_memset", "Memset (Device)", 398, 399, 7, 7),
            kernel("gemm", 210, 299, 99),  # launched nobody knows when
        )
    )  # fmt: skip
    found = analyse(timeline, within)
    assert within.tolist() == [[100_000, 392_000]]
    assert len(timeline.steps) == 2
    assert (found.compute_s, found.comm_s, found.overlap_s) == (us(70), us(20), us(10))
    assert found.copies_s == us(1)
    assert [share.name for share in found.kinds] == ["broadcast"]


def test_on_the_cpu_a_step_is_what_lies_between_its_marks():
    timeline, within, _ = whole_steps(
        events(
            *steps((100, 200), (250, 300)),
            op("aten::mm", 150, 260),
            annotation("gloo:all_reduce", 190, 400, thread=2),
        )
    )
    found = analyse(timeline, within)
    assert found.window_s == us(150)
    assert (found.compute_s, found.comm_s, found.overlap_s) == (us(60), us(60), us(20))


def test_no_steps_to_look_at():
    with pytest.raises(UsageError, match="no profiler steps"):
        whole_steps(events(kernel("gemm", 0, 10)))


@pytest.mark.parametrize(
    ("name", "overlap"),
    [
        # HolisticTraceAnalysis 0.5.0, HTA_DISABLE_NS_ROUNDING=1
        ("nccl-2.17_2ranks_rank0", 0.1476),
        ("nccl-sendrecv_128ranks_rank0", 0.1181),
        ("nccl-sendrecv_128ranks_rank1", 0.2005),
    ],
)
def test_the_overlap_that_holistic_trace_analysis_finds(name, overlap):
    job = analyse_job([GOLDEN / f"{name}.json.gz"], "steps")
    assert job.total.overlap_ratio == pytest.approx(overlap, abs=5e-5)
