import math
from decimal import Decimal

from hypothesis import example, given
from hypothesis import strategies as st

from scalebench import units
from tests.examples import cases

MAGNITUDES = st.floats(min_value=1e-12, max_value=1e12)
UNCERTAINTIES = st.floats(min_value=-6, max_value=3).map(lambda power: 10.0**power)
"""As a part of the value, every order of magnitude as likely as any other."""


@given(MAGNITUDES, st.floats(min_value=1e-3, max_value=1.0))
@example(9.996, 0.001)
def test_rounding_stays_inside_the_interval(value, relative):
    uncertainty = value * relative
    written = float(units.significant(value, uncertainty))
    assert abs(written - value) <= uncertainty


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


@cases(
    "value, written",
    *((2.5, "2.50 s"), (0.0184, "18.4 ms"), (3.1e-5, "31.0 µs"), (4e-9, "4.00 ns"), (0.0, "0 ns")),
)
def test_seconds_choose_their_unit(value, written):
    assert units.seconds(value) == written


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
