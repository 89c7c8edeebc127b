"""How much accepted runs differ, on three runs by hand."""

import math

import pytest

from scalebench.gate.change import Change
from scalebench.gate.observation import Measured
from scalebench.gate.variance import change_over_runs, run_sd
from scalebench.stats import Variance

RUNS = (
    Measured(1.0, 2, Variance(0.5, 1.0), within=0.01, values=(0.5, 1.5)),
    Measured(2.0, 4, Variance(0.1, 3.0), within=0.02),
    Measured(6.0, 5, None, within=0.06),
)
"""The variance of the centres is 7: their mean is 3, the distances to it 2, 1 and 3."""

PART = 0.4 * (1 / 2 + 1 / 4 + 1 / 5) / 3
"""What launches with a variance of 0.4 add to it."""


def test_runs_differ_by_what_launches_do_not_explain():
    assert run_sd(RUNS, Variance(0.4, 9.0)) == pytest.approx(math.sqrt(7 - PART))
    assert run_sd(RUNS, None) == pytest.approx(math.sqrt(7))
    assert run_sd(RUNS[:2], None) == pytest.approx(math.sqrt(0.5))
    assert run_sd(RUNS, Variance(1e3, 9.0)) == 0.0
    assert run_sd(RUNS[:1], Variance(0.4, 9.0)) is None and run_sd((), None) is None


@pytest.mark.parametrize(
    ("of_base", "of_new", "launches", "excess"),
    [
        (0.4, 0.9, 3, 0.9 / 3 - PART),
        (0.4, 0.9, 30, 0.0),  # the new run knows itself better than the accepted ones
        (None, 0.9, 3, 0.9 / 3),
        (0.4, None, 2, 0.4 / 2 - PART),
        (None, None, 3, 0.0),
    ],
)
def test_the_error_of_a_change_is_that_of_one_further_run(of_base, of_new, launches, excess):
    base, new = (None if value is None else Variance(value, 4.0) for value in (of_base, of_new))
    sides = Measured(3.0, 11, base), Measured(3.5, launches, new)
    found = change_over_runs(Change(0.5, 0.1, 8.0, 0.9), RUNS, sides)
    assert found == Change(0.5, pytest.approx(math.sqrt(7 * 4 / 3 + excess)), 2, 0.9)
    unknown = change_over_runs(Change(0.5), RUNS, sides)
    assert unknown.error == pytest.approx(found.error)
