"""Losses of methods side by side, by hand."""

import pytest

from scalebench.analysis.loss_curves import LossCurve, compare


def falling(num_steps, by=0.1):
    return [10 - by * k for k in range(num_steps)]


def test_equal_steps_equal_seconds_and_target():
    exact = LossCurve(falling(20), step_s=2.0)
    quick = LossCurve(falling(40, by=0.05), step_s=0.5)
    told = compare({"quick": quick, "none": exact}, exact)["quick"]
    assert told.equal_steps == 20
    assert told.loss_after_steps == pytest.approx(10 - 0.05 * 17)  # the middle of 15 to 19
    assert told.loss_of_none_after_steps == pytest.approx(10 - 0.1 * 17)
    assert told.equal_s == 20  # the quick one's 40 steps; the exact one takes 10 in it
    assert told.loss_after_s == pytest.approx(10 - 0.05 * 37)
    assert told.loss_of_none_after_s == pytest.approx(10 - 0.1 * 7)
    assert told.target_loss == told.loss_of_none_after_steps
    assert told.steps_to_target == 37
    assert told.time_to_target_s == pytest.approx(18.5)
    assert told.time_of_none_to_target_s == pytest.approx(40)


def test_a_target_that_was_not_reached_has_no_time():
    exact = LossCurve(falling(20), step_s=1.0)
    told = compare({"stuck": LossCurve([10.0] * 30, 0.1)}, exact)["stuck"]
    assert told.steps_to_target is None and told.time_to_target_s is None
