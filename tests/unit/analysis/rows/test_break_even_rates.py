"""The rate of a link at which two steps are as long, to the digit."""

import math

import pytest

from scalebench.analysis.rows.break_even import (
    FARTHEST,
    PRECISION,
    _rate_where,
    ratio_at_one_rank,
    replayed_break_even,
)
from scalebench.analysis.rows.launches import Launches
from scalebench.stats import estimate_signed
from tests.unit.analysis.rows.test_break_even import N2, exact, launches, smaller
from tests.unit.analysis.rows.test_prediction import the_link


@pytest.mark.parametrize("rate", [0.001, 0.5, 3.0, 4000.0])
@pytest.mark.parametrize("level", [-0.25, 0.0, 0.5])
def test_a_falling_gain_is_met_where_it_comes_down_to_a_level(rate, level):
    found = _rate_where(lambda times: level + math.log(rate / times), level)
    assert found == pytest.approx(rate, rel=1e-4)


def test_beyond_the_links_that_are_looked_at_there_is_an_end():
    """4096 times as fast, and as slow. A gain that is the level there is met there."""
    assert FARTHEST == 4096 and PRECISION == 1e-4
    assert _rate_where(lambda _: -1.0, 0.0) == 0.0
    assert _rate_where(lambda _: 0.0, 0.0) == 0.0
    assert _rate_where(lambda _: 1.0, 0.0) == FARTHEST
    assert _rate_where(lambda times: 1.0 if times < 4096 else 0.0, 0.0) == FARTHEST
    assert _rate_where(lambda times: 1 - times * 4096, 0.0) == 0.0
    asked = []
    _rate_where(lambda times: asked.append(times) or -math.log(times), 0.0)
    assert min(asked) == 1 / 4096 and max(asked) == 4096
    # From a range of 2^24 to a ten-thousandth, halved in its logarithm at each step.
    assert len(asked) == 2 + math.ceil(math.log2(24 * math.log(2) / math.log(1.0001)))


def test_the_ends_of_the_interval_are_where_the_gain_is_off_by_it():
    """The bandwidth is that of the exact all-reduce at as many ranks."""
    own, whole = launches(smaller(119), smaller(121)), launches(exact(99), exact(101))
    found = replayed_break_even(N2, own, whole, the_link(2))
    ratio = ratio_at_one_rank(own, whole)
    logs = [math.log(119 / 99), math.log(121 / 101)]
    expected = estimate_signed(logs).model_dump()
    assert ratio.model_dump() == pytest.approx(expected, rel=1e-6)
    # 3 MB less at B bytes/s: 100 ms + 4 MB/B = e^x · (120 ms + 1 MB/B) where the logs are off by x.
    for end, x in ((found.low, ratio.half_width), (found.high, -ratio.half_width)):
        steps = math.exp(x)
        inverse = (steps * 0.12 - 0.1) / (4e6 - steps * 1e6)
        assert end == pytest.approx(1 / inverse, rel=2e-3)
    assert found.n == 2


def test_only_common_rounds_are_held_against_each_other():
    own = Launches(smaller(120).cell, measured={0: smaller(120), 3: smaller(150), 5: smaller(90)})
    whole = Launches(exact().cell, measured={3: exact(100), 5: exact(90), 9: exact()})
    found = ratio_at_one_rank(own, whole)
    expected = estimate_signed([math.log(1.5), 0.0]).model_dump()
    assert found.model_dump() == pytest.approx(expected, abs=1e-9)
    assert ratio_at_one_rank(None, whole) is None and ratio_at_one_rank(own, None) is None
    apart = Launches(exact().cell, measured={9: exact()})
    assert ratio_at_one_rank(own, apart) is None
