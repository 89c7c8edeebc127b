import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench import units
from scalebench.stats import Estimate, estimate_over_launches
from tests.examples import cases

MAGNITUDES = st.floats(min_value=1e-12, max_value=1e12)
UNCERTAINTIES = st.floats(min_value=-6, max_value=3).map(lambda power: 10.0**power)
"""As a part of the value, every order of magnitude as likely as any other."""


def last_place(value, uncertainty):
    """The power of ten of the last digit: the uncertainty's second, and two to four digits."""
    magnitude, of_uncertainty = (math.floor(math.log10(x)) for x in (value, uncertainty))
    return min(magnitude - 1, max(of_uncertainty - 1, magnitude - 3))


@given(MAGNITUDES, UNCERTAINTIES)
@example(9.9996, 1e-6)
@example(0.99996, 1e-6)
@example(123456.0, 1e-6)
@example(2.0, 100.0)
def test_the_last_digit_is_the_uncertaintys_second_or_the_fourth(value, relative):
    text = units.significant(value, value * relative)
    written = Decimal(text)
    place = last_place(float(written), value * relative)  # 9.9996 is written as 10.00
    assert abs(written - Decimal(value)) <= Decimal("0.50001") * Decimal(10) ** place
    assert written % Decimal(10) ** place == 0
    assert len(text.partition(".")[2]) == max(0, -place)


@given(MAGNITUDES)
@example(9.996)
@example(0.09999)
def test_without_an_uncertainty_there_are_three_digits(value):
    written = units.significant(value)
    assert units.significant(float(written)) == written
    assert len(written.replace(".", "").strip("0")) <= 3
    if value < 99:
        assert len(written.replace(".", "").lstrip("0")) == 3


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_seconds_read_back_as_what_they_were(value):
    number, unit = units.seconds(value).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert math.isclose(float(number) * scale, value, rel_tol=5.01e-3)


@cases(
    "text, told",
    (units.bytes_(999.96e6), "1.00 GB"),
    (units.seconds(0.99996), "1.00 s"),
    (units.count(999_999), "1.00M"),
    (units.bit_rate(999.99e6), "1.00 Gbit/s"),
    (units.bytes_(999.4e6), "999 MB"),
)
def test_what_rounds_up_to_the_next_unit_is_written_in_it(text, told):
    assert text == told


POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


@cases("wrong", {"value": math.nan}, {"value": math.inf}, {"n": 0})
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


@cases("n", 3, 5)
def test_the_interval_covers_as_often_as_it_says(n):
    launches = np.exp(np.random.default_rng(n).normal(0, 0.1, (2500, n)))
    found = [estimate_over_launches(row) for row in launches]
    assert 0.93 <= np.mean([e.low <= 1 <= e.high for e in found]) <= 0.97


def test_an_interval_that_ends_beyond_every_float_is_none():
    found = estimate_over_launches([1.7e174, 0.4, 0.4])
    assert found.value == pytest.approx(6.5e57, rel=0.01)
    assert (found.low, found.high, found.n) == (None, None, 3)
