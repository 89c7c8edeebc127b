"""Means of the last losses, and when they are down to a target, at the edges."""

import pytest

from scalebench.analysis.loss_curves import LossCurve, compare
from scalebench.records.rows.compression import LossComparison

FALLING = LossCurve([64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0], 2.0)


@pytest.mark.parametrize(
    ("steps", "loss"),
    [(1, 64), (2, 48), (4, 30), (5, 124 / 5), (6, 62 / 5), (7, 31 / 5), (9, 7 / 3)],
)
def test_a_loss_is_the_mean_of_the_last_five_steps_or_of_those_that_there_are(steps, loss):
    assert FALLING.loss_after(steps) == pytest.approx(loss)


@pytest.mark.parametrize(
    ("target", "steps"), [(100.0, 5), (24.8, 5), (24.7, 6), (12.4, 6), (6.2, 7), (6.1, None)]
)
def test_a_target_is_reached_with_the_first_whole_mean_that_is_down_to_it(target, steps):
    assert FALLING.steps_to(target) == steps


def test_fewer_steps_than_a_mean_has_reach_nothing():
    assert LossCurve([1.0] * 4, 1.0).steps_to(9.0) is None
    assert LossCurve([1.0] * 5, 1.0).steps_to(9.0) == 5


def test_a_comparison_field_by_field():
    """The exact method takes 9 steps of 2 s, the method 8 of 3 s, the third 6 of 4 s.

    After 6 steps the exact loss is the mean of 8 to 4, which is 6. Of 18 s the exact one has all
    9 steps, the method 6, and the third 4.
    """
    exact = LossCurve([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 2.0)
    method = LossCurve([10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 1.0], 3.0)
    third = LossCurve([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4.0)
    found = compare({"method": method, "third": third}, exact)
    assert found == {
        "method": LossComparison(
            equal_steps=6,
            loss_after_steps=7.0,
            loss_of_none_after_steps=6.0,
            equal_s=18.0,
            loss_after_s=7.0,
            loss_of_none_after_s=3.0,
            target_loss=6.0,
            steps_to_target=7,
            time_to_target_s=21.0,
            time_of_none_to_target_s=12.0,
        ),
        "third": LossComparison(
            equal_steps=6,
            loss_after_steps=3.0,
            loss_of_none_after_steps=6.0,
            equal_s=18.0,
            loss_after_s=4.5,
            loss_of_none_after_s=3.0,
            target_loss=6.0,
            steps_to_target=5,
            time_to_target_s=20.0,
            time_of_none_to_target_s=12.0,
        ),
    }


def test_where_nobody_has_a_whole_mean_nobody_reaches_a_target():
    found = compare({"short": LossCurve([3.0, 2.0, 1.0], 1.0)}, LossCurve([3.0, 2.0, 1.0], 1.0))
    told = found["short"]
    assert (told.steps_to_target, told.time_to_target_s) == (None, None)
    assert told.time_of_none_to_target_s is None
    assert (told.equal_steps, told.loss_after_steps, told.target_loss) == (3, 2.0, 2.0)
