"""Bus bandwidth held against a link of known nominal bandwidth."""

import pytest

from scalebench.costmodel.links.against_nominal import against_link
from scalebench.errors import UsageError
from tests.builders.link_sweeps import point


def all_reduce(busbw, size=1 << 30, **changes):
    """Eight ranks whose all-reduce of ``size`` has this bus bandwidth."""
    return point(size, 14 / 8 * size / busbw, world_size=8, **changes)


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
