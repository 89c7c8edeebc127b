"""Probabilities and intervals follow from the model's error."""

import numpy as np
import pytest

from scalebench.search.scores import interval, probability_fastest, typical_error


def test_the_probabilities_of_all_sum_to_one() -> None:
    steps = [1.0, 1.05, 1.2, 1.21]
    orders = [[one, *(s for s in steps if s != one)] for one in steps]
    assert sum(probability_fastest(order, 0.1) for order in orders) == pytest.approx(1, abs=1e-6)


def test_the_probability_is_that_of_drawn_errors() -> None:
    random = np.random.default_rng(1)
    steps = np.array([1.0, 1.1, 1.15])
    drawn = np.log(steps) + 0.1 * random.standard_normal((200_000, 3))
    assert probability_fastest(list(steps), 0.1) == pytest.approx(
        np.mean(drawn.argmin(axis=1) == 0), abs=0.005
    )


def test_without_a_comparison_there_is_no_error_and_no_interval() -> None:
    assert typical_error([], []) is None and interval(1.0, None) is None
    assert typical_error([1.1, 0.9], [1.0, 1.0]) == pytest.approx(0.1, abs=0.01)
    low, high = interval(2.0, 0.1) or (0, 0)
    assert low * high == pytest.approx(4.0) and low < 2 < high
    drawn = 2.0 * np.exp(0.1 * np.random.default_rng(1).standard_normal(200_000))
    assert np.mean((low <= drawn) & (drawn <= high)) == pytest.approx(0.9, abs=0.005)
