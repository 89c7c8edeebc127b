"""Link profiles: points of transfers and of logs, their fits, and what the fits say together."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from scalebench.costmodel.links.imported import points_of_log
from scalebench.costmodel.links.laws import law_terms
from scalebench.costmodel.links.nccl_tests import Log
from scalebench.costmodel.links.nccl_tests.run import Point, Printed
from scalebench.costmodel.links.nccl_tests.table import Table
from scalebench.costmodel.links.profile import (
    LAW_OF,
    CalibratedPoint,
    LinkProfile,
    namings_of,
    point_of,
    profile_of,
)
from scalebench.records.probes import TimedTransfer
from scalebench.spec.probes import Transfer

ORIGIN = {"created": "now", "version": "0", "device": "cpu", "backend": "gloo"}


def timed(operation="reduce_scatter", time_s=(5.0, 1.0, 3.0), each_s=(), **changes):
    transfer = Transfer(operation=operation, size_bytes=4096, dtype="bfloat16", **changes)
    return TimedTransfer(
        transfer=transfer,
        size_bytes=4090,
        time_s=time_s,
        each_s=each_s,
        num_elements=2045,
        num_wrong=3,
    )


def test_a_point_is_the_median_of_single_operations_with_their_99th_percentile():
    """Of 101 operations, 1 to 101 µs: the 99th percentile is the 100th."""
    each = tuple((np.arange(101)[::-1] + 1) * 1e-6)
    found = point_of(timed(each_s=each), 5, "lab")
    assert (found.op, found.dtype, found.world_size) == ("reduce_scatter", "bfloat16", 5)
    assert (found.size_bytes, found.num_elements, found.num_wrong) == (4090, 2045, 3)
    assert (found.link, found.algorithm, found.redop) == ("lab", "backend", "sum")
    assert found.source == "measured"
    assert found.time_s == pytest.approx(51e-6)
    assert found.p99_s == pytest.approx(100e-6)
    assert found.high_s - found.time_s == pytest.approx(found.time_s - found.low_s)
    assert found.low_s == pytest.approx(41e-6)


def test_where_operations_were_not_timed_one_by_one_the_timings_count():
    """Of 1, 3 and 5 s the noise is the whole range, and no end is below half of the median."""
    found = point_of(timed("broadcast"), 3, "")
    assert (found.time_s, found.p99_s, found.redop) == (3.0, None, None)
    assert (found.low_s, found.high_s) == (1.5, 5.0)
    near = point_of(timed("broadcast", time_s=(2.5, 3.0, 3.25)), 3, "")
    assert (near.low_s, near.high_s) == (2.5, 3.5)


@pytest.mark.parametrize(
    ("operation", "redop"),
    [("all_reduce", "sum"), ("reduce", "sum"), ("all_gather", None), ("all_to_all", None)],
)
def test_operations_that_reduce_add_up(operation, redop):
    assert point_of(timed(operation), 3, "").redop == redop


def printed(value):
    return Printed(value, value, value)


def logged(size=64, time=7.0, place="line 9", num_wrong=None):
    return Point(
        size_bytes=size,
        count=size // 2,
        dtype="float16",
        itemsize=2,
        redop="max",
        root=None,
        in_place=True,
        time_us=None if time is None else printed(time),
        algbw_gb_per_s=printed(1.0),
        busbw_gb_per_s=printed(1.0),
        num_wrong=num_wrong,
        place=place,
    )


def test_points_of_a_log_that_can_be_fitted_and_why_others_cannot():
    good = logged(num_wrong=4)
    bad = (logged(size=0), logged(time=None), logged(time=0.0))
    tables = (
        Table("all_reduce", (good, *bad), 6, None, ("a notice",)),
        Table("broadcast", (good,), None, "no list", ()),
        Table("reduce", (logged(96, 8.0, "line 20"),), 7, None, ()),
    )
    points, notices = points_of_log(Log(Path("x.log"), tables))
    assert notices == [
        "a notice",
        "x.log: all_reduce: 3 points without size or time",
    ]
    first, second = points
    assert first == CalibratedPoint(
        op="all_reduce",
        dtype="float16",
        world_size=6,
        size_bytes=64,
        time_s=7.0 * 1e-6,
        in_place=True,
        num_wrong=4,
        redop="max",
        source="x.log, line 9",
        link="x.log, line 9",
    )
    assert (second.op, second.world_size, second.num_wrong) == ("reduce", 7, None)
    assert (second.size_bytes, second.source) == (96, "x.log, line 20")


def line(world_size, algorithm="backend", law="ring", op="all_reduce", count=5, **changes):
    """Sizes of the law with α 20 µs and B 1 GB/s."""
    terms = law_terms(op, law, world_size)
    return [
        CalibratedPoint(
            op=op,
            dtype="float32",
            world_size=world_size,
            size_bytes=size,
            time_s=terms.time_s(size, 2e-5, 1e9),
            algorithm=algorithm,
            **changes,
        )
        for size in (2**10, 2**14, 2**18, 2**22, 2**26)[:count]
    ]


def test_an_operation_at_two_numbers_of_ranks_or_more_has_its_algorithm_looked_for():
    points = [*line(2), *line(4), *line(2, op="broadcast", law="tree")]
    (found,) = namings_of(points, None)
    assert (found.op, found.world_sizes) == ("all_reduce", (2, 4))


@pytest.mark.parametrize(
    ("num_devices", "world_sizes"), [(None, (2, 4, 8)), (8, (2, 4, 8)), (7, (2, 4)), (3, None)]
)
def test_ranks_that_share_a_device_are_left_out(num_devices, world_sizes):
    found = namings_of([*line(2), *line(4), *line(8)], num_devices)
    assert [naming.world_sizes for naming in found] == ([world_sizes] if world_sizes else [])


def test_own_algorithms_and_points_without_a_size_name_nothing():
    barrier = [line(n)[0].model_copy(update={"size_bytes": 0}) for n in (2, 4)]
    assert namings_of([*line(2, "tree"), *line(4, "tree"), *barrier], None) == ()


def test_each_kind_is_named_by_itself():
    kinds = [{}, {"link": "lab"}, {"in_place": True}, {"in_place": False}]
    points = [p for kind in kinds for n in (2, 4, 8) for p in line(n, **kind)]
    assert [n.world_sizes for n in namings_of(points, None)] == [(2, 4, 8)] * 4


def test_a_profile_has_the_backends_fits_and_own_all_reduces_by_their_own_laws():
    points = [
        *line(4),
        *line(4, "halving-doubling", "halving-doubling"),
        *line(4, "tree", "binomial tree"),
        *line(4, "hierarchical"),
        *line(4, "ring", count=2),
        *line(2, op="broadcast", law="tree", count=2),
    ]
    points.append(points[0].model_copy(update={"size_bytes": 0, "num_wrong": 5}))
    points[3] = points[3].model_copy(update={"num_wrong": 0})
    found = profile_of(points, ("told",), 4, link="lab", machine={"cpu": 1}, **ORIGIN)
    assert [(fit.algorithm, fit.law) for fit in found.fits] == [
        ("backend", "ring"),
        ("halving-doubling", "halving-doubling"),
        ("tree", "binomial tree"),
    ]
    for fit in found.fits:
        assert fit.regimes[0].alpha_s == pytest.approx(2e-5)
        assert fit.regimes[0].bandwidth_byte_per_s == pytest.approx(1e9)
    assert [reason.split(":")[0] for reason in found.refused] == [
        "broadcast, 2 ranks, float32",
        "all_reduce, 4 ranks, float32, hierarchical",
        "all_reduce, 4 ranks, float32, ring",
    ]
    assert "there is no law of one latency and one bandwidth" in found.refused[1]
    assert "2 sizes given, 3 or more" in found.refused[2]
    assert (found.points, found.notices[0], found.num_wrong) == (tuple(points), "told", 5)
    assert "results were wrong at 0 B" in found.notices[1]
    assert (found.link, found.machine, found.backend) == ("lab", {"cpu": 1}, "gloo")
    assert found.namings == ()


def test_of_ranks_that_shared_a_device_no_algorithm_is_named():
    points = [*line(2), *line(4), *line(8)]
    assert profile_of(points, (), 4, **ORIGIN).namings[0].world_sizes == (2, 4)
    assert profile_of(points, (), **ORIGIN).namings[0].world_sizes == (2, 4, 8)


def test_under_nccl_broadcasts_follow_the_ring():
    points = line(4, op="broadcast", law="ring")
    (fit,) = profile_of(points, (), **ORIGIN | {"backend": "nccl"}).fits
    assert (fit.law, fit.regimes[0].alpha_s) == ("ring", pytest.approx(2e-5))
    (fit,) = profile_of(points, (), **ORIGIN).fits
    assert (fit.law, fit.regimes[0].alpha_s) == ("tree", pytest.approx(3e-5))


def test_every_own_all_reduce_with_a_law_has_one_that_exists():
    assert all(law_terms("all_reduce", law, 4).latency_steps > 0 for law in LAW_OF.values())


def test_what_was_played_is_both_kinds_in_order():
    played = LinkProfile.model_construct(rehearsals=("a", "b"), rehearsed_steps=("c",)).played
    assert played == ("a", "b", "c")


def test_a_percentile_is_a_time():
    with pytest.raises(ValidationError):
        CalibratedPoint.model_validate(line(2)[0].model_dump(exclude={
            "algbw_byte_per_s", "busbw_byte_per_s"}) | {"p99_s": 0.0})  # fmt: skip
    assert line(2, p99_s=0.5)[0].p99_s == 0.5
