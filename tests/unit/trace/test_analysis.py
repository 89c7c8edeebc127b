"""Figures of traces made by hand; every number was worked out on paper."""

import pytest

from scalebench.trace.analysis import analyse, together
from scalebench.trace.classify import timeline_of
from tests.builders.traces import Event, annotation, events, kernel, op

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
