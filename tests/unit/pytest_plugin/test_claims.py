"""What a comparison with an interval means, and the clock that replays recorded steps."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalebench.pytest_plugin.claims import Inconclusive, Quantity, launches_to_decide
from scalebench.stats import Estimate, estimate_over_launches
from tests.examples import cases

numbers = st.floats(-1e6, 1e6)


def quantity(low=0.82, value=0.86, high=0.89, n=3, explanation=()):
    return Quantity(
        "efficiency", "ddp, N=2", Estimate(value=value, low=low, high=high, n=n), explanation
    )


@cases(
    "bound, more, at_least, less, at_most",
    (0.80, "certain", "certain", "refuted", "refuted"),
    (0.82, "inconclusive", "certain", "refuted", "inconclusive"),
    (0.86, "inconclusive", "inconclusive", "inconclusive", "inconclusive"),
    (0.89, "refuted", "inconclusive", "inconclusive", "certain"),
    (0.90, "refuted", "refuted", "certain", "certain"),
)
def test_the_table_of_outcomes(bound, more, at_least, less, at_most):
    q = quantity()
    found = [(q > bound), (q >= bound), (q < bound), (q <= bound)]
    assert [c.outcome for c in found] == [more, at_least, less, at_most]


def test_what_is_inconclusive_has_no_truth_value():
    assert quantity() > 0.8
    assert not quantity() > 0.9
    assert 0.8 < quantity() < 0.9
    for claim in (lambda: quantity() > 0.86, lambda: not quantity() > 0.86):
        with pytest.raises(Inconclusive, match=r"0\.86 is inconclusive"):
            assert claim()


def test_one_launch_decides_nothing():
    alone = quantity(low=None, high=None, n=1)
    assert (alone > 0.1).outcome == (alone < 0.1).outcome == "inconclusive"
    with pytest.raises(Inconclusive, match="repeats of at least 3"):
        bool(alone > 0.1)


@cases("bound", math.nan, math.inf, "0.9", None, True)
def test_a_bound_is_a_finite_number(bound):
    with pytest.raises(TypeError, match="Compare it with a finite number"):
        assert quantity() > bound


def test_two_quantities_do_not_compare():
    with pytest.raises(TypeError, match=r"two measured numbers compare by \.value"):
        assert quantity() > quantity()


def test_what_is_said_of_a_claim():
    lines = (quantity(explanation=("transfer takes 5.4",)) > 0.9).lines()
    assert lines == [
        "efficiency > 0.9 is refuted",
        "efficiency of ddp, N=2: 0.860 (0.820 to 0.890, 95 %, 3 launches)",
        "transfer takes 5.4",
    ]


@given(st.lists(st.floats(0.5, 1.5), min_size=2, max_size=6, unique=True), st.floats(0.05, 0.3))
def test_so_many_launches_decide_if_the_spread_stays(values, distance):
    found = estimate_over_launches(values)
    assume(found.half_width > 0)
    needed = launches_to_decide(found, found.value + distance)
    if found.half_width < distance and needed is not None:
        assert needed == found.n + 1
    if needed is not None:
        assert needed > found.n
    further = launches_to_decide(found, found.value + 2 * distance)
    assert needed is None or (further is not None and further <= needed)
