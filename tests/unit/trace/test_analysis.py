"""Figures of traces made by hand; every number was worked out on paper."""

import pytest

from scalebench.trace.analysis import Figures, Share, analyse, together
from scalebench.trace.classify import timeline_of
from scalebench.trace.intervals import intervals, union
from tests.builders.traces import Event, annotation, events, kernel, launch, op

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


def test_a_part_of_the_time(timeline):
    """From 50 to 220: comm 100-220, compute 50-120."""
    found = analyse(timeline, union(timeline.steps))
    assert found.window_s == us(170)
    assert (found.comm_s, found.compute_s, found.overlap_s) == (us(120), us(70), us(20))
    assert found.exposed_comm_s == us(100)
    assert found.idle_s == us(0)
    assert {share.name: share.total_s for share in found.kinds} == {
        "all_reduce": us(100),
        "broadcast": us(70),
    }


def test_operations_outside_the_window_do_not_count():
    timeline = timeline_of(
        events(
            annotation("ProfilerStep#1", 0, 100),
            annotation("ProfilerStep#2", 200, 300),
            collective("allreduce", 1, 50, 60, 20),
            collective("allreduce", 1, 100, 200, 20),
            collective("allreduce", 1, 250, 400, 20),
        )
    )
    (share,) = analyse(timeline, union(timeline.steps)).kinds
    assert (share.count, share.payload_bytes, share.total_s) == (2, 2, us(60))


def test_without_communication_or_computation_there_is_no_ratio():
    found = analyse(timeline_of(events(kernel(GEMM, 0, 10))))
    assert found.overlap_ratio is None
    assert found.comm_compute_ratio == 0
    found = analyse(timeline_of(events(collective("allreduce", 1, 0, 10, 20))))
    assert found.overlap_ratio == 0
    assert found.comm_compute_ratio is None


def test_a_size_that_is_not_known_makes_the_sum_unknown():
    timeline = timeline_of(
        events(
            collective("allreduce", 5, 0, 10, 20),
            collective("allreduce", None, 20, 30, 20),
        )
    )
    (share,) = analyse(timeline).kinds
    assert (share.count, share.payload_bytes) == (2, None)


def test_phases():
    timeline = timeline_of(
        events(
            op("autograd::engine::evaluate_function: MmBackward0", 0, 10),
            launch(5, correlation=3),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 30, correlation=3),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 45),
        )
    )
    assert [(share.name, share.total_s) for share in analyse(timeline).phases] == [
        ("backward", us(10)),
        ("unknown", us(5)),
    ]


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


@pytest.mark.parametrize(
    ("start", "end", "counts"),
    [
        (0, 100, False),  # ends as the window begins
        (0, 100.001, True),
        (100, 200, True),
        (199.999, 300, True),
        (200, 300, False),
        (50, 250, True),
    ],
)
def test_an_operation_counts_if_a_part_of_it_lies_in_the_one_window(start, end, counts):
    timeline = timeline_of(events(collective("allreduce", 1, start, end, 20)))
    found = analyse(timeline, intervals([(100_000, 200_000)]))
    assert [share.count for share in found.kinds] == ([1] if counts else [])


def test_every_figure_of_a_sum():
    first = Figures(
        *(10, 5, 4, 3, 2, 0.5, 0.5, 1, 7),
        kinds=(Share("a", 1, 8, 2, 1.5, 0.5), Share("b", 2, None, 3, 1, 2)),
        phases=(Share("forward", 3, 9, 5, 2, 3),),
        copies_alone_s=0.25,
        comm_beside_copies_s=0.75,
    )
    second = Figures(
        *(20, 6, 8, 1, 5, 0.5, 0.5, 2, 9),
        kinds=(Share("a", 4, 16, 4, 4, 0), Share("b", 8, 2, 3, 3, 0), Share("c", 1, 1, 6, 5, 1)),
        copies_alone_s=1.0,
        comm_beside_copies_s=2.0,
    )
    assert together([first, second]) == Figures(
        window_s=30,
        comm_s=11,
        compute_s=12,
        overlap_s=4,
        exposed_comm_s=7,
        overlap_ratio=1 - 7 / 11,
        comm_compute_ratio=11 / 12,
        copies_s=3,
        idle_s=16,
        # as long: by name
        kinds=(
            Share("a", 5, 24, 6, 5.5, 0.5),
            Share("b", 10, None, 6, 4, 2),
            Share("c", 1, 1, 6, 5, 1),
        ),
        phases=(Share("forward", 3, 9, 5, 2, 3),),
        copies_alone_s=1.25,
        comm_beside_copies_s=2.75,
    )
