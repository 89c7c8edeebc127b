"""When a race reached its target: by hand, and for any curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.convergence.projected import arrival
from scalebench.records.race import RacePoint


def course(*losses, samples=100, seconds=2.0, evaluation_s=0.5):
    return [
        RacePoint(
            samples=i * samples,
            trained_s=i * seconds,
            elapsed_s=i * seconds + (i + 1) * evaluation_s,
            loss=loss,
        )
        for i, loss in enumerate(losses)
    ]


def test_the_target_is_reached_where_the_line_between_two_evaluations_crosses_it():
    found = arrival(course(5.0, 4.0, 3.0, 2.0, 1.9), target=2.25)
    assert found.samples == pytest.approx(275)
    assert found.trained_s == pytest.approx(5.5)
    assert found.elapsed_s == pytest.approx(7.0)


def test_a_loss_below_the_target_by_luck_does_not_count():
    assert arrival(course(5.0, 2.0, 4.0, 3.9), target=2.5) is None
    assert arrival(course(5.0, 2.0, 4.0, 2.4, 2.3), target=2.5).samples == pytest.approx(
        300 - 100 * 0.1 / 1.6
    )


def test_the_last_evaluation_alone_confirms_nothing():
    assert arrival(course(5.0, 4.0, 2.0), target=2.5) is None
    assert arrival(course(5.0, 2.0), target=2.5) is None


def test_a_loss_that_is_not_finite_is_above_every_target():
    assert arrival(course(5.0, None, 2.0, 2.0), target=2.5).samples == 200
    assert arrival(course(5.0, 2.0, None, 2.0), target=2.5) is None


@given(losses=st.lists(st.floats(0.1, 10), min_size=2, max_size=12), target=st.floats(0.1, 10))
def test_an_arrival_lies_before_two_evaluations_that_confirm_it(losses, target):
    points = course(*losses)
    found = arrival(points, target)
    pairs = [i for i in range(len(losses) - 1) if max(losses[i : i + 2]) <= target]
    assert (found is None) == (not pairs)
    if found is not None:
        first = pairs[0]
        assert 100 * max(first - 1, 0) <= found.samples <= 100 * first
        assert found.trained_s == pytest.approx(found.samples / 50)


@given(losses=st.lists(st.floats(0.1, 10), min_size=3, max_size=12), lower=st.floats(0, 3))
def test_a_lower_target_is_never_reached_sooner(losses, lower):
    easy, hard = (arrival(course(*losses), target) for target in (3.0, 3.0 - lower))
    assert hard is None or (easy is not None and easy.samples <= hard.samples)
