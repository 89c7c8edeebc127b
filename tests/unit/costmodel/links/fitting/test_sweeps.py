"""Points sorted into sweeps: names, medians and weights."""

import math

import numpy as np
import pytest

from scalebench.costmodel.links.fitting.sweeps import SweepKey, group_points, key_of, make_sweep
from tests.builders.link_sweeps import point

BACKEND = SweepKey("", "all_reduce", "float32", 3, "backend", None)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "all_reduce, 3 ranks, float32"),
        ({"link": "lab"}, "all_reduce, 3 ranks, float32, lab"),
        ({"algorithm": "ring"}, "all_reduce, 3 ranks, float32, ring"),
        ({"in_place": True}, "all_reduce, 3 ranks, float32, in place"),
        (
            {"link": "lab", "algorithm": "tree", "in_place": False},
            "all_reduce, 3 ranks, float32, lab, tree, out of place",
        ),
    ],
)
def test_a_sweep_is_called_by_what_sets_it_apart(changed, name):
    assert str(BACKEND._replace(**changed)) == name


def test_points_go_to_the_sweep_of_all_they_have_in_common():
    changes = [
        {"link": "lab"},
        {"op": "broadcast"},
        {"dtype": "bfloat16"},
        {"world_size": 5},
        {"algorithm": "ring"},
        {"in_place": True},
    ]
    points = [point(8, 1.0), *(point(8, 1.0, **change) for change in changes), point(9, 2.0)]
    groups = group_points(points)
    assert [len(members) for members in groups.values()] == [2, *[1] * 6]
    first, *others = groups
    assert first == SweepKey("", "all_reduce", "float32", 2, "backend", None)
    assert others == [first._replace(**change) for change in changes]
    assert groups[key_of(points[0])] == [points[0], points[-1]]


def bounded(size, time_s, sigma):
    """A point whose 95 % interval is that of this standard deviation of the logarithm."""
    reach = math.exp(1.959963984540054 * sigma)
    return point(size, time_s, low_s=time_s / reach, high_s=time_s * reach)


def test_points_of_one_size_become_their_median_with_the_mean_of_their_weights():
    """Sizes 7, 5, 7, 9, 7: the three of 7 bytes are one."""
    sigma = [0.01, 0.02, 0.03, 0.04, 0.05]
    times = [3e-3, 1e-3, 2e-3, 5e-3, 7e-3]
    points = [bounded(*one) for one in zip([7, 5, 7, 9, 7], times, sigma, strict=True)]
    made = make_sweep(points)
    weights = np.array([1 / (s**2 + 0.03**2) for s in sigma])
    joined = np.array([weights[1], weights[[0, 2, 4]].mean(), weights[3]])
    assert made.size_bytes.tolist() == [5, 7, 9]
    assert made.log_time == pytest.approx(np.log([1e-3, 3e-3, 5e-3]))
    assert made.weights == pytest.approx(joined / joined.mean())
    assert made.num_points == 5
    assert made.key == key_of(points[0])


@pytest.mark.parametrize(
    ("sizes", "times", "expected"),
    [
        ([5, 5, 8], [1.0, 4.0, 3.0], [(5, 2.0), (8, 3.0)]),
        ([8, 5, 8], [1.0, 3.0, 4.0], [(5, 3.0), (8, 2.0)]),
        ([8, 3, 5], [1.0, 2.0, 4.0], [(3, 2.0), (5, 4.0), (8, 1.0)]),
    ],
)
def test_sizes_are_put_in_order_and_joined_at_either_end(sizes, times, expected):
    made = make_sweep([point(*one) for one in zip(sizes, times, strict=True)])
    assert made.size_bytes.tolist() == [size for size, _ in expected]
    assert np.exp(made.log_time) == pytest.approx(np.array([time for _, time in expected]))
    assert made.weights.tolist() == [1.0] * len(expected)


def test_points_known_exactly_count_alike():
    """Most intervals have no width: no scatter is typical."""
    points = [bounded(5, 1.0, 0.0), bounded(7, 2.0, 0.0), bounded(9, 3.0, 0.1)]
    assert make_sweep(points).weights.tolist() == [1.0, 1.0, 1.0]
