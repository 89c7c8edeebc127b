"""Probabilities and intervals that have closed forms."""

import math

import pytest
from scipy.special import ndtr

from scalebench.costmodel.search.certainty import interval, probability_fastest, typical_error


@pytest.mark.parametrize("error", [0.02, 0.1, 0.7])
@pytest.mark.parametrize("second_s", [0.8, 1.5, 1.6, 3.0])
def test_of_two_it_is_a_normal_probability(second_s: float, error: float) -> None:
    """The difference of two errors has √2 times their deviation."""
    expected = ndtr(math.log(second_s / 1.5) / (error * math.sqrt(2)))
    assert probability_fastest([1.5, second_s], error) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_equal_ones_are_equally_likely(number: int) -> None:
    assert probability_fastest([0.3] * number, 0.2) == pytest.approx(1 / number, abs=1e-9)


@pytest.mark.parametrize("error", [0.0, -0.1])
def test_without_an_error_the_first_is_fastest_where_all_others_are_slower(error: float) -> None:
    assert probability_fastest([2.0], error) == 1.0
    assert probability_fastest([2.0, 2.1, 3.0], error) == 1.0
    assert probability_fastest([2.0, 3.0, 2.0], error) == 0.0
    assert probability_fastest([2.0, 3.0, 1.0], error) == 0.0


def test_the_error_is_the_root_mean_square_of_logarithms() -> None:
    """Logarithms of 1, −2 and 4: squares of 1, 4 and 16, 7 on average."""
    predicted = [3 * math.e, 5 * math.exp(-2), 7 * math.exp(4)]
    assert typical_error(predicted, [3.0, 5.0, 7.0]) == pytest.approx(math.sqrt(7))


def test_an_interval_reaches_to_the_5th_and_95th_percentile() -> None:
    low, high = interval(5.0, 0.3) or (0.0, 0.0)
    assert ndtr(math.log(low / 5.0) / 0.3) == pytest.approx(0.05, abs=1e-5)
    assert ndtr(math.log(high / 5.0) / 0.3) == pytest.approx(0.95, abs=1e-5)
