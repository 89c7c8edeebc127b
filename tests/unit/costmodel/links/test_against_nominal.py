"""Bus bandwidth held against a link of known nominal bandwidth."""

import pytest

from scalebench.costmodel.links.against_nominal import against_link
from scalebench.errors import UsageError
from tests.builders.link_sweeps import point

NVLINK4 = 450e9


def all_reduce(busbw, size=1 << 30, **changes):
    """Eight ranks whose all-reduce of ``size`` has this bus bandwidth."""
    return point(size, 14 / 8 * size / busbw, world_size=8, **changes)


@pytest.mark.parametrize(
    ("busbw", "word"),
    [
        (367e9, "well used"),
        (480e9, "a node has several of them"),
        (40e9, "something else limits it"),
    ],
)
def test_a_verdict_is_a_share_and_what_it_means(busbw, word):
    (found,) = against_link([all_reduce(1e9, 1 << 20), all_reduce(busbw)], "nvlink4")
    assert found.share == pytest.approx(busbw / NVLINK4)
    assert found.size_bytes == 1 << 30
    assert word in found.sentence
    assert "450 GB/s" in found.sentence


def test_each_operation_and_size_of_job_has_its_own():
    points = [all_reduce(1e9), all_reduce(1e9, op="all_gather"), point(1000, 1.0, world_size=4)]
    assert len(against_link(points, "pcie5")) == 3


def test_own_algorithms_and_what_has_no_bus_bandwidth_are_left_out():
    points = [all_reduce(1e9, algorithm="ring"), all_reduce(1e9, op="all_to_all_uneven")]
    assert against_link(points, "pcie5") == []


def test_an_unknown_link_lists_the_valid_ones():
    with pytest.raises(UsageError, match="nvlink4"):
        against_link([], "nvlink")


@pytest.mark.parametrize(
    ("share", "word"),
    [
        (0.749, "something else limits it"),
        (0.75, "the link is well used"),
        (1.0, "the link is well used"),
        (1.001, "above the link"),
    ],
)
def test_a_link_is_well_used_from_three_quarters_to_all_of_it(share, word):
    (found,) = against_link([point(share * 75e9, 0.5, op="broadcast")], "nvlink2")
    assert found.share == pytest.approx(share)
    assert word in found.sentence


def test_the_best_of_all_sizes_counts_and_the_first_of_equals():
    points = [
        point(1000, 4 / 3 * 1000 / 2e9, world_size=3),
        point(5000, 4 / 3 * 5000 / 6.3e9, world_size=3),
        point(9000, 4 / 3 * 9000 / 6.3e9, world_size=3),
        point(7000, 4 / 3 * 7000 / 5e9, world_size=3),
    ]
    points[2] = points[1].model_copy(update={"size_bytes": 10_000, "time_s": 2 * points[1].time_s})
    (found,) = against_link(points, "pcie5")
    assert (found.op, found.world_size, found.size_bytes) == ("all_reduce", 3, 5000)
    assert found.busbw_byte_per_s == pytest.approx(6.3e9)
    assert found.share == pytest.approx(0.1)
    assert found.sentence.startswith(
        "all_reduce, N=3: busbw up to 6.30 GB/s at 5.00 kB, 10 % of pcie5 (63.0 GB/s): "
    )


def test_a_point_without_a_size_has_no_bandwidth():
    assert against_link([point(0, 1e-6)], "pcie5") == []
