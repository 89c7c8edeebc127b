"""Break-even bandwidth at its borders: nothing saved, nothing gained, half an interval."""

import pytest

from scalebench.costmodel.break_even import break_even_byte_per_s, pays, saved_bytes, sent_bytes
from scalebench.stats import Estimate


def test_both_kinds_of_messages_are_sent_at_three_ranks():
    """Of 30 bytes all-reduced 2·2/3·30 = 40, of 5 gathered from each rank 2·5 = 10."""
    assert sent_bytes(30, 5, 3) == pytest.approx(50)
    assert saved_bytes(90, 30, 5, 3) == pytest.approx(120 - 50)


@pytest.mark.parametrize("saved", [0.0, -0.5, 0.5])
def test_the_ends_stand_in_order_whatever_is_saved(saved):
    found = break_even_byte_per_s(saved, Estimate(value=2, low=1, high=4, n=3))
    assert found.value == saved / 2
    assert (found.low, found.high) == tuple(sorted((saved / 1, saved / 4)))
    assert found.n == 3


def test_without_an_interval_there_is_a_value_alone():
    found = break_even_byte_per_s(-6, Estimate(value=2, n=1))
    assert (found.value, found.low, found.high, found.n) == (-3, None, None, 1)


@pytest.mark.parametrize("codec", [Estimate(value=0, n=1), Estimate(value=1, low=0, high=2, n=3)])
def test_encoding_that_may_take_no_time_has_no_break_even(codec):
    with pytest.raises(ValueError, match="must take some time"):
        break_even_byte_per_s(10, codec)


@pytest.mark.parametrize(
    ("break_even", "link", "expected"),
    [
        (Estimate(value=0, n=1), 5.0, False),  # at no bandwidth, whatever the interval
        (Estimate(value=0, low=-1, high=9, n=3), 5.0, False),
        (Estimate(value=0.5, low=0.4, high=0.6, n=3), 0.3, True),
        (Estimate(value=14, low=10, n=3), 5.0, None),
        (Estimate(value=14, high=20, n=3), 25.0, None),
        (Estimate(value=14, low=10, high=20, n=3), float("inf"), False),
        (Estimate(value=14, low=10, high=20, n=3), 20.0, None),
    ],
)
def test_whether_it_pays_at_the_borders(break_even, link, expected):
    assert pays(break_even, link) is expected
