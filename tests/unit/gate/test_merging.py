"""Rounds that are put together, field by field, and what one of them does not have."""

import math

import pytest

from scalebench.gate.merging import merged
from scalebench.records.summary import Estimate, StepSamples
from tests.builders.gated import budget_points
from tests.builders.summaries import make_row, make_summary


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
