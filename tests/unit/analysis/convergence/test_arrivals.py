"""Arrivals, losses and noise scales of a training, by hand: every number another one."""

import pytest

from scalebench.analysis.convergence.curves import Arrival, arrival, loss_after, loss_at_time
from scalebench.analysis.convergence.noise_scale import (
    gradient_variance,
    noise_scale,
    samples_ratio,
    squared_gradient,
)
from scalebench.analysis.convergence.projected import Training, time_to_loss
from scalebench.records.race import GradientNorms, RacePoint
from scalebench.stats import Estimate


def point(samples, loss, trained_s):
    return RacePoint(samples=samples, trained_s=trained_s, elapsed_s=trained_s, loss=loss)


def uneven(*rows):
    """Samples, seconds of training, seconds in all, loss and bytes of each evaluation."""
    names = ("samples", "trained_s", "elapsed_s", "loss", "sent_bytes")
    return [RacePoint(**dict(zip(names, one, strict=True))) for one in rows]


def test_an_arrival_by_hand():
    """From 5 to 3 the loss crosses 3.5 after three quarters of the way."""
    points = uneven((0, 1.0, 3.0, 9.0, 0.0), (100, 5.0, 11.0, 5.0, 8.0),
                    (180, 9.0, 23.0, 3.0, 24.0), (300, 20.0, 50.0, 3.5, 99.0))  # fmt: skip
    assert arrival(points, 3.5) == Arrival(160.0, 8.0, 14.0, 20.0)
    assert arrival(points, 3.4) is None
    assert arrival(points[2:], 3.5) == Arrival(180.0, 9.0, 23.0, 24.0), "at once"
    assert arrival(points[1:], 5.0) == Arrival(100.0, 5.0, 11.0, 8.0)
    assert arrival([], 3.5) is None


@pytest.mark.parametrize("unknown", [0, 1])
def test_bytes_are_not_known_where_one_of_two_evaluations_does_not_count_them(unknown):
    points = uneven((0, 0.0, 0.0, 5.0, 0.0), (100, 5.0, 5.0, 3.0, 8.0), (200, 9.0, 9.0, 3.0, 9.0))
    points[unknown] = points[unknown].model_copy(update={"sent_bytes": None})
    found = arrival(points, 4.0)
    assert (found.samples, found.sent_bytes) == (50.0, None)


def test_a_loss_that_was_not_finite_before_the_target_puts_the_arrival_to_the_evaluation():
    points = uneven((0, 0.0, 0.0, None, 0.0), (100, 5.0, 7.0, 3.0, 8.0), (200, 9.0, 9.0, 3.0, 9.0))
    assert arrival(points, 4.0) == Arrival(100.0, 5.0, 5.0, 8.0)


def test_losses_between_evaluations_that_are_not_evenly_apart():
    points = [point(0, 8.0, 2.0), point(10, 6.0, 6.0), point(20, 5.0, 6.0), point(30, 1.0, 14.0)]
    for seconds, loss in ((2.0, 8.0), (3.0, 7.5), (6.0, 6.0), (8.0, 4.0), (14.0, 1.0)):
        assert loss_at_time(points, seconds) == pytest.approx(loss)
    assert loss_at_time(points, 1.9) is None and loss_at_time(points, 14.1) is None
    assert loss_at_time(points[1:3], 6.0) == 5.0, "two evaluations at one time: the later"
    broken = [point(0, 8.0, 2.0), point(10, None, 6.0), point(20, 5.0, 8.0)]
    assert loss_at_time(broken, 4.0) is None and loss_at_time(broken, 7.0) is None
    assert (loss_after(points, 20), loss_after(points, 0), loss_after(points, 21)) == (5, 8, None)


def test_noise_by_hand():
    """Three batches of 5: |G|² is (3·7 - 9)/2 = 6, tr Σ is 5·2/(2/3) = 15."""
    first = GradientNorms(num_batches=3, batch_size=5, mean_square=9.0, square_of_mean=7.0)
    assert (squared_gradient(first), gradient_variance(first)) == (6.0, pytest.approx(15.0))
    assert noise_scale([first]) == pytest.approx(2.5)
    # Two batches of 4: |G|² is 2·5 - 8 = 2, tr Σ is 4·3/(1/2) = 24.
    second = GradientNorms(num_batches=2, batch_size=4, mean_square=8.0, square_of_mean=5.0)
    assert noise_scale([first, second]) == pytest.approx(39 / 8)
    zero = GradientNorms(num_batches=2, batch_size=4, mean_square=8.0, square_of_mean=4.0)
    assert noise_scale([zero]) is None
    assert samples_ratio(6, 14, 2) == 4 / 8


def test_a_time_to_loss_has_the_worse_ends_and_the_better_ones():
    """A larger batch gains by a larger noise scale, a smaller one by a smaller scale."""
    scale = Estimate(value=4.0, low=2.0, high=8.0, n=3)
    larger = time_to_loss(Training(12, 30.0, 20.0, 50.0), Training(4, 10.0), scale)
    assert larger.statistical_efficiency == pytest.approx(2 / 4)
    assert larger.speedup == pytest.approx(3 * 2 / 4)
    assert (larger.low, larger.high) == pytest.approx((2 * 3 / 7, 5 * 1.5 / 2.5))
    smaller = time_to_loss(Training(4, 30.0, 20.0, 50.0), Training(12, 10.0), scale)
    assert smaller.speedup == pytest.approx(3 * 4 / 2)
    assert (smaller.low, smaller.high) == pytest.approx((2 * 2.5 / 1.5, 5 * 7 / 3))
    assert time_to_loss(Training(4, 30.0, None, 50.0), Training(12, 10.0), scale).low is None
    half = Estimate.model_construct(value=4.0, low=None, high=8.0, n=1)
    assert time_to_loss(Training(12, 30.0, 20.0, 50.0), Training(4, 10.0), half).low is None
