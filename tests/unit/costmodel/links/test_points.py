"""A measured point: what it may be, and its bandwidths."""

import pytest
from pydantic import ValidationError

from scalebench.costmodel.links.points import LinkPoint
from scalebench.records.base import LARGE


def made(**changes):
    given = {"op": "all_gather", "dtype": "int8", "world_size": 5, "size_bytes": 70, "time_s": 0.5}
    return LinkPoint(**{**given, **changes})


def test_bandwidths_of_five_ranks():
    assert made().algbw_byte_per_s == 140
    assert made().busbw_byte_per_s == pytest.approx(140 * 4 / 5)
    assert made(op="scan").busbw_byte_per_s is None


def test_what_is_not_told_is_nothing():
    point = made()
    assert (point.in_place, point.algorithm, point.num_wrong) == (None, "backend", None)
    assert (point.low_s, point.high_s, point.link) == (None, None, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 1},
        {"world_size": LARGE - 1},
        {"size_bytes": 0},
        {"size_bytes": LARGE - 1},
        {"time_s": 1e-12},
        {"num_wrong": 0},
        {"low_s": 0.5, "high_s": 0.5},
        {"low_s": 1e-9, "high_s": 0.75},
    ],
)
def test_the_least_and_most_that_a_point_may_be(changes):
    point = made(**changes)
    assert {name: getattr(point, name) for name in changes} == changes


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 0},
        {"world_size": LARGE},
        {"size_bytes": -1},
        {"size_bytes": LARGE},
        {"time_s": 0.0},
        {"num_wrong": -1},
        {"low_s": 0.4},
        {"high_s": 0.6},
        {"low_s": 0.51, "high_s": 0.6},
        {"low_s": 0.4, "high_s": 0.49},
        {"low_s": 0.0, "high_s": 0.6},
        {"low_s": 0.4, "high_s": 0.0},
    ],
)
def test_what_a_point_cannot_be(changes):
    with pytest.raises(ValidationError):
        made(**changes)
