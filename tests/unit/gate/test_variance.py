"""What is typical of the rows of a run, beside a plain second way to work it out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from scalebench.gate.change import Change
from scalebench.gate.merging import merged
from scalebench.gate.observation import Measured
from scalebench.gate.variance import Typical, change_over_runs, run_sd, typical_variance
from scalebench.records.summary import Estimate, StepSamples
from scalebench.stats import Variance
from tests.builders.gated import budget_points
from tests.builders.summaries import make_row, make_summary


def by_loops(rows):
    """The docstring of `typical_variance`, number by number: value and degrees of freedom."""
    logs, noises = [], []
    for row in rows:
        logs.append(math.log(row.value) - special.digamma(row.dof / 2) + math.log(row.dof / 2))
        noises.append(special.polygamma(1, row.dof / 2))
    knowledge = sum(1 / noise for noise in noises)
    weights = [1 / noise / knowledge for noise in noises]
    center = sum(w * log for w, log in zip(weights, logs, strict=True))
    spread = sum(w * (log - center) ** 2 for w, log in zip(weights, logs, strict=True))
    by_chance = sum(w * (1 - w) * noise for w, noise in zip(weights, noises, strict=True))
    excess = (spread - by_chance) / (1 - sum(w * w for w in weights))
    dof = sum(row.dof for row in rows)
    if excess > 0:
        dof = min(dof, 2 * optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-6, 1e9))
    return math.exp(center + special.digamma(dof / 2) - math.log(dof / 2)), dof


variances = st.builds(
    Variance, st.sampled_from([0.01, 0.3, 1.0, 7.0, 500.0]), st.sampled_from([1.0, 2.0, 4.0, 9.0])
)


@given(st.lists(variances, min_size=3, max_size=7))
def test_rows_that_differ_in_what_they_know_are_weighed_by_it(rows):
    found, (value, dof) = typical_variance(rows), by_loops(rows)
    assert found.value == pytest.approx(value, rel=1e-6)
    assert found.dof == pytest.approx(dof, rel=1e-6)


def test_three_rows_with_noise_are_the_fewest_that_tell_what_is_typical():
    noisy = Variance(1.0, 2.0)
    assert typical_variance([noisy, noisy]) == Typical(0.0, 0.0)
    assert typical_variance([noisy, noisy, noisy]).dof == pytest.approx(6.0)
    for silent in (Variance(1e-20, 2.0), Variance(0.0, 2.0), Variance(1.0, 0.0)):
        assert typical_variance([noisy, noisy, silent]) == Typical()
        three = typical_variance([noisy, noisy, noisy, silent])
        assert three.dof == pytest.approx(6.0)
    assert typical_variance([noisy, noisy, Variance(1.5e-20, 2.0)]).dof > 0


def launch(repeat, pace_s, peak=None):
    steps = [1.5 * pace for pace in pace_s]
    return StepSamples(repeat=repeat, step_s=steps, pace_s=pace_s, peak_memory_bytes=peak)


def run(*rows, **changes):
    return make_summary(list(rows), **changes)


def row_of(samples, number, **changes):
    """A row whose estimates are multiples of a number, one for each field."""
    names = ("throughput", "tokens_per_s", "speedup", "efficiency", "energy_j_per_sample")
    signed = ("comm_s", "exposed_comm_s", "exposed_transfer_s", "wait_s")
    signed += ("compute_s", "copies_s", "comm_beside_copies_s")
    told = {
        name: Estimate(value=number * place, n=1)
        for place, name in enumerate((*names, *signed), start=1)
    }
    return make_row().model_copy(update={"samples": samples, **told, **changes})


def test_every_field_of_a_merged_row():
    first = row_of([launch(0, [2.0, 3.0, 4.0]), launch(1, [9.0])], 1.0, peak_memory_bytes=7)
    second = row_of([launch(0, [12.0, 5.0])], 4.0, peak_memory_bytes=5)
    (row,) = merged([run(first), run(second)]).rows
    assert [s.repeat for s in row.samples] == [0, 1]
    assert [s.pace_s for s in row.samples] == [[2.0, 3.0, 4.0], [12.0, 5.0]]
    assert row.step_s.value == pytest.approx(math.sqrt(3.0 * 8.5)) and row.step_s.n == 2
    assert (row.num_clean_steps, row.peak_memory_bytes) == (5, 7)
    assert row.throughput.value == pytest.approx(2.0)  # the geometric mean of 1 and 4
    assert row.energy_j_per_sample.value == pytest.approx(10.0)
    assert row.comm_s.value == pytest.approx(6 * 2.5)  # the mean
    assert row.comm_beside_copies_s.value == pytest.approx(12 * 2.5) and row.comm_s.n == 2
    assert row.budget is None and row.recovery is None


def test_runs_that_are_not_complete_say_so():
    row = row_of([launch(0, [2.0])], 1.0)
    whole, cut, other = run(row), run(row, status="interrupted"), run(row, status="running")
    assert merged([whole, whole]).status == "complete"
    assert merged([whole, cut, other]).status == "interrupted"
    assert merged([other, cut]).status == "running"


def test_of_three_budgets_each_number_is_the_mean():
    budgets = [budget_points(0.8, wait=part) for part in (0.01, 0.02, 0.06)]
    rows = [row_of([launch(0, [2.0])], 1.0, budget=budget) for budget in budgets]
    found = merged([run(row) for row in rows]).rows[0].budget
    assert found.wait_s == pytest.approx(0.0003) and found.points["wait"] == pytest.approx(0.03)
    assert found.points["other_idle"] == pytest.approx(0.17)
    assert (found.ideal_s, found.measured_s) == (pytest.approx(0.008), pytest.approx(0.01))
    assert found.closes is True


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
