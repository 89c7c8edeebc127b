import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.stats import Estimate, estimate_over_launches, mean_precision, steady_start

POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


def noise(seed, n, sigma=0.05):
    return np.random.default_rng(seed).normal(0, sigma, n)


def autocorrelated(seed, n, phi=0.6, sigma=0.05):
    """An AR(1) series with standard deviation ``sigma``."""
    shocks = noise(seed, n, sigma * math.sqrt(1 - phi**2))
    series = [float(noise(seed + 10_000, 1, sigma)[0])]
    for shock in shocks[1:]:
        series.append(phi * series[-1] + shock)
    return np.array(series)


def naive_precision(series):
    """What the t interval of independent steps would say of their mean, about."""
    return 1.96 * np.std(series, ddof=1) / math.sqrt(len(series)) / np.mean(series)


def test_an_estimate_scales_with_its_interval():
    scaled = Estimate(value=2.0, low=1.0, high=4.0, n=3).scaled(10)
    assert scaled == Estimate(value=20.0, low=10.0, high=40.0, n=3)


def test_an_inverted_estimate_swaps_the_ends_of_its_interval():
    inverted = Estimate(value=2.0, low=1.0, high=4.0, n=3).inverted(8)
    assert inverted == Estimate(value=4.0, low=2.0, high=8.0, n=3)


def test_an_estimate_of_one_launch_has_no_interval_in_any_unit():
    one = Estimate(value=2.0, n=1)
    assert one.half_width is None
    assert one.scaled(3) == Estimate(value=6.0, n=1)
    assert one.inverted(3) == Estimate(value=1.5, n=1)


def test_half_width():
    assert Estimate(value=2.0, low=1.0, high=4.0, n=3).half_width == 1.5


@pytest.mark.parametrize("wrong", [{"value": math.nan}, {"value": math.inf}, {"n": 0}])
def test_an_estimate_is_finite_and_rests_on_something(wrong):
    with pytest.raises(ValidationError):
        Estimate(**{"value": 1.0, "n": 1, **wrong})


def test_estimate_over_three_launches_by_hand():
    # Logarithms -1, 0, 1: mean 0, standard error 1/√3, t(2; 0.975) = 4.302653.
    found = estimate_over_launches([math.exp(-1), 1.0, math.e])
    assert found.value == pytest.approx(1.0)
    assert found.low == pytest.approx(math.exp(-4.302653 / math.sqrt(3)), rel=1e-6)
    assert found.high == pytest.approx(math.exp(4.302653 / math.sqrt(3)), rel=1e-6)
    assert found.n == 3


def test_one_launch_gives_a_number_without_an_interval():
    found = estimate_over_launches([0.25])
    assert (found.value, found.low, found.high, found.n) == (pytest.approx(0.25), None, None, 1)


@given(st.lists(POSITIVE, min_size=2, max_size=8), st.floats(min_value=1e-3, max_value=1e3))
def test_the_estimate_lies_in_its_interval_and_follows_the_unit(values, factor):
    found = estimate_over_launches(values)
    assert found.low <= found.value <= found.high
    assert min(values) * (1 - 1e-9) <= found.value <= max(values) * (1 + 1e-9)
    other = estimate_over_launches([value * factor for value in values])
    assert other.value == pytest.approx(found.value * factor)
    assert other.low == pytest.approx(found.low * factor, rel=1e-6)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=5))
def test_the_mean_of_ratios_is_the_ratio_of_the_means(pairs):
    above, below = zip(*pairs, strict=True)
    ratio = estimate_over_launches([a / b for a, b in pairs]).value
    quotient = estimate_over_launches(above).value / estimate_over_launches(below).value
    assert ratio == pytest.approx(quotient)


def launches(n, runs=2500):
    """Log-normal launches around 1: shape (runs, n)."""
    return np.exp(np.random.default_rng(n).normal(0, 0.1, (runs, n)))


@pytest.mark.parametrize("n", [3, 5])
def test_the_interval_covers_as_often_as_it_says(n):
    found = [estimate_over_launches(row) for row in launches(n)]
    assert 0.93 <= np.mean([e.low <= 1 <= e.high for e in found]) <= 0.97


def test_a_percentile_bootstrap_over_three_launches_would_cover_far_less():
    rng = np.random.default_rng(0)
    logs = np.log(launches(3))
    means = logs[:, rng.integers(0, 3, (400, 3))].mean(axis=2)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) < 0.85


@pytest.mark.parametrize("num_slow", [3, 5, 10, 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_start_up_transient_is_cut(num_slow, seed):
    series = 0.01 * np.exp(noise(seed, 80))
    series[:num_slow] *= 3
    start = steady_start(series)
    assert start is not None
    assert num_slow <= start <= 40


def test_a_transient_that_fades_is_cut_where_it_drowns_in_the_noise():
    steps = np.arange(60)
    start = steady_start(0.01 * (1 + 4 * np.exp(-steps / 3)) * np.exp(noise(3, 60, 0.02)))
    assert start is not None
    assert 8 <= start <= 30


def first_accepted(series):
    """How many steps the loop would have run: it asks at 10 and then after every 5 more."""
    asked = range(10, len(series) + 1, 5)
    return next((n for n in asked if steady_start(series[:n]) is not None), None)


@pytest.mark.parametrize("make", [noise, autocorrelated])
def test_noise_around_a_level_is_accepted_early(make):
    found = [first_accepted(0.01 * np.exp(make(seed, 60))) for seed in range(100)]
    assert None not in found
    assert np.mean([n <= 20 for n in found]) >= 0.75
    assert np.mean([n <= 40 for n in found]) >= 0.95


@pytest.mark.parametrize("n", [10, 20, 50, 200])
@pytest.mark.parametrize("ends", [(2, 1), (1, 2)])
def test_a_series_that_still_drifts_is_not_steady(n, ends):
    assert steady_start(np.linspace(*ends, n) * np.exp(noise(n, n, 0.01))) is None


def test_slow_steps_beyond_the_first_half_mean_that_more_are_needed():
    assert steady_start([3.0] * 12 + [1.0] * 8) is None


@pytest.mark.parametrize("n", range(10))
def test_fewer_than_ten_steps_tell_nothing(n):
    assert steady_start([0.1] * n) is None


@given(st.floats(min_value=1e-6, max_value=100), st.integers(10, 60))
def test_steps_that_are_all_alike_are_steady_from_the_first(step_s, n):
    assert steady_start([step_s] * n) == 0


def rough_series():
    """Series without ties or near-ties, where rounding alone could decide."""
    return st.builds(
        lambda seed, n, num_slow, factor: (
            np.concatenate([np.full(num_slow, factor), np.ones(n - num_slow)])
            * np.exp(noise(seed, n))
        ),
        st.integers(0, 10_000),
        st.integers(20, 60),
        st.integers(0, 9),
        st.floats(1.5, 5),
    )


@given(rough_series(), st.floats(min_value=1e-3, max_value=1e3))
def test_the_unit_does_not_matter_for_steadiness(series, factor):
    assert steady_start(series * factor) == steady_start(series)


@given(rough_series(), st.floats(min_value=0, max_value=100))
def test_a_constant_added_does_not_matter_for_steadiness(series, shift):
    assert steady_start(series + shift) == steady_start(series)


def test_noise_of_a_millionth_on_a_long_step_is_told_from_a_transient():
    series = 30 * (1 + noise(0, 40, 1e-7))
    series[:4] *= 1 + 3e-6
    assert steady_start(series) == steady_start(series - 30)


@pytest.mark.parametrize("n", range(10))
def test_precision_needs_ten_steps(n):
    assert mean_precision([0.1] * n) is None


def test_equal_steps_are_known_exactly():
    assert mean_precision([0.25] * 10) == 0


def test_precision_of_ten_batches_by_hand():
    # Means of the batches of two: 1, 3, 1, 3, …; their standard deviation is √(10/9).
    series = [1.0, 1.0, 3.0, 3.0] * 5
    expected = 2.262157 * math.sqrt(10 / 9) / math.sqrt(10) / 2
    assert mean_precision(series) == pytest.approx(expected, rel=1e-6)


def test_precision_improves_with_the_number_of_steps():
    found = [
        np.mean([mean_precision(np.exp(noise(seed, n))) for seed in range(40)])
        for n in (20, 80, 320)
    ]
    assert found[0] > 1.4 * found[1] > 1.4 * 1.4 * found[2]


def test_precision_of_an_autocorrelated_series_is_wider_than_the_naive_formula():
    series = [np.exp(autocorrelated(seed, 200, phi=0.9)) for seed in range(40)]
    ours = np.mean([mean_precision(x) for x in series])
    naive = np.mean([naive_precision(x) for x in series])
    assert ours > 3 * naive  # the truth for AR(1) with 0.9 is √19, about 4.4


def test_precision_of_an_independent_series_is_about_the_naive_formula():
    series = [np.exp(noise(seed, 200)) for seed in range(40)]
    ours = np.mean([mean_precision(x) for x in series])
    naive = np.mean([naive_precision(x) for x in series])
    assert naive < ours < 1.8 * naive  # by Student's t of nine


@given(st.integers(0, 1000), st.floats(min_value=1e-3, max_value=1e3))
def test_the_unit_does_not_matter_for_precision(seed, factor):
    series = np.exp(noise(seed, 40))
    assert mean_precision(series * factor) == pytest.approx(mean_precision(series))


def test_an_interval_that_ends_beyond_every_float_is_none() -> None:
    found = estimate_over_launches([1.7e174, 0.4, 0.4])
    assert found.value == pytest.approx(6.5e57, rel=0.01)
    assert (found.low, found.high, found.n) == (None, None, 3)
