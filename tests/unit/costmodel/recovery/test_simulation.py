"""A job that fails at given moments, counted by hand."""

import math

import numpy as np
import pytest

from scalebench.costmodel.recovery.simulation import (
    Job,
    _durable_stretches,
    exponential,
    simulate,
    weibull,
)


def simulated(gaps_s, job):
    """Seconds of training, saves, lost work and restarts."""
    found = simulate(job, iter([*gaps_s, 1e9]).__next__, len(gaps_s))
    parts = (found.training, found.save, found.lost, found.restart)
    return [part * sum(gaps_s) for part in parts]


@pytest.mark.parametrize(
    ("gaps_s", "seconds"),
    [
        ([30], [20, 4, 6, 0]),
        ([11], [0, 0, 11, 0]),
        ([12], [10, 2, 0, 0]),
        ([7, 20], [10, 2, 10, 5]),  # the first work is lost, and the job has to restart
        ([12, 10], [10, 2, 5, 5]),
        ([30, 3, 5, 44], [50, 10, 9, 13]),  # a failure in the restart, and one at its end
        ([30, 4.5, 4.5, 17], [30, 6, 6, 14]),
    ],
)
def test_stretches_of_ten_seconds_and_saves_of_two_with_restarts_of_five(gaps_s, seconds):
    assert simulated(gaps_s, Job(10.0, 2.0, 5.0)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("gaps_s", "seconds"),
    [([27], [10, 2, 15, 0]), ([28], [20, 4, 4, 0]), ([3], [0, 0, 3, 0]), ([16], [10, 2, 4, 0])],
)
def test_a_checkpoint_that_is_safe_four_seconds_late(gaps_s, seconds):
    assert simulated(gaps_s, Job(10.0, 2.0, 5.0, delay_s=4.0)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("gap_s", "complete"), [(0, 0), (3, 0), (4, 0), (10, 0), (15.9, 0), (16, 1), (27.9, 1), (28, 2)]
)
def test_stretches_that_are_safe(gap_s, complete):
    assert _durable_stretches(gap_s, 12.0, 4.0) == complete


def test_failures_can_be_drawn_again():
    drawn, again = np.random.default_rng(3), exponential(50.0, 3)
    assert [again() for _ in range(4)] == [float(drawn.exponential(50.0)) for _ in range(4)]


@pytest.mark.parametrize(
    ("shape", "gamma"), [(0.5, 2.0), (1.0, 1.0), (2.0, math.sqrt(math.pi) / 2)]
)
def test_failures_that_cluster_have_the_same_mean(shape, gamma):
    """The mean of a Weibull distribution is its scale times Γ(1 + 1/shape)."""
    drawn, again = np.random.default_rng(3), weibull(50.0, shape, 3)
    expected = [50.0 / gamma * float(drawn.weibull(shape)) for _ in range(4)]
    assert [again() for _ in range(4)] == pytest.approx(expected)
