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
        (480e9, "an algorithm other than ring"),
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
