"""Rounds that are put together, field by field, and what one of them does not have."""

import math

import pytest

from scalebench.gate.merging import merged, merged_recovery
from scalebench.records.rows.recovery import FailureFigures
from scalebench.records.summary import Estimate, StepSamples
from tests.builders.gated import budget_points
from tests.builders.recoveries import near, recovery
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


def test_what_one_run_does_not_have_is_not_estimated():
    first = row_of([launch(0, [2.0])], 1.0)
    second = row_of([launch(0, [2.0])], 1.0, throughput=None, wait_s=None)
    for order in ((first, second), (second, first)):
        (row,) = merged([run(order[0]), run(order[1])]).rows
        assert row.throughput is None and row.wait_s is None
        assert row.speedup.n == 2
    unknown = row_of([], 1.0, peak_memory_bytes=None)
    (row,) = merged([run(unknown), run(unknown)]).rows
    assert (row.samples, row.step_s, row.peak_memory_bytes, row.num_clean_steps) == (
        [],
        None,
        None,
        0,
    )


def test_a_launch_without_steps_is_kept_and_not_counted():
    first = row_of([launch(0, [2.0])], 1.0)
    (row,) = merged([run(first), run(row_of([launch(0, [])], 1.0)), run(first)]).rows
    assert [s.repeat for s in row.samples] == [0, 1, 2]
    assert (row.step_s.n, row.num_clean_steps) == (2, 2)


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


def slower(figures, value):
    (save,) = figures.saves
    told = None if value is None else near(value)
    return figures.model_copy(update={"saves": [save.model_copy(update={"slower_s": told})]})


def test_every_number_of_merged_recoveries():
    runs = [slower(recovery(0.1, 2.0), 0.5), slower(recovery(0.4, 8.0), 1.5)]
    (failure,) = runs[1].failures
    changed = failure.model_copy(update={"lost_steps": 5.0, "phases_s": {"notice": near(0.3)}})
    runs[1] = runs[1].model_copy(update={"failures": [changed]})
    found = merged_recovery(runs)
    (save,), (failure,) = found.saves, found.failures
    values = (save.stall_s, save.durable_s, save.bandwidth_byte_per_s, save.cost_s, save.slower_s)
    assert [one.value for one in values] == pytest.approx([0.2, 0.4, 1e6, 0.2, 1.0])
    assert [one.n for one in values] == [2] * 5
    assert (failure.restart_s.value, failure.total_s.value) == (5.0, 6.0)
    assert failure.phases_s["notice"].value == pytest.approx(0.2)
    assert failure.lost_steps == 3.5


def test_of_recoveries_only_what_all_runs_have_is_merged():
    one = recovery()
    assert merged_recovery([one, None]) is None and merged_recovery([None, None]) is None
    assert merged_recovery([slower(one, 0.5), slower(one, None)]).saves[0].slower_s is None
    (failure,) = one.failures
    longer = {"notice": near(0.1), "spawn": near(0.4)}
    more = failure.model_copy(update={"phases_s": longer})
    for order in ([more], [failure]):
        first = one.model_copy(update={"failures": order})
        other = one.model_copy(update={"failures": [failure if order == [more] else more]})
        assert list(merged_recovery([first, other]).failures[0].phases_s) == ["notice"]
    for changes in ({"kind": "hang"}, {"restarted_by": "nobody"}):
        unlike = FailureFigures.model_construct(**{**dict(failure), **changes})
        other = one.model_copy(update={"failures": [unlike, failure]})
        assert len(merged_recovery([one, other]).failures) == 1
        assert merged_recovery([one, one.model_copy(update={"failures": [unlike]})]).failures == []
