"""Failures at sizes that were not measured: how often to save, and what is left of the time."""

import math

import pytest
from click.testing import CliRunner

from scalebench.analysis.projection.recovery import FailureRates, project_recovery
from scalebench.cli import cli
from scalebench.errors import UsageError
from scalebench.report.tables.projection import render_recovery
from tests.builders.summaries import make_plain, make_row
from tests.unit.report.test_recovery import near, rows_with, save

HOUR_S = 3600.0


@pytest.fixture
def rows():
    return rows_with([save("full", 4.0), save("async", 1.0)], [])


def test_many_devices_fail_often_and_save_often(rows):
    rates = FailureRates(device_mtbf_s=16384 * HOUR_S, restart_s=60)
    few, many = project_recovery(rows, (16, 16384), rates)[:2]
    assert (few.mtbf_s, many.mtbf_s) == (1024 * HOUR_S, HOUR_S)
    assert few.young_interval_s == pytest.approx(32 * many.young_interval_s)
    assert few.at_optimum.training > many.at_optimum.training > 0.9


def test_each_way_to_save_has_its_cost_as_measured_at_most_ranks(rows):
    smaller = make_row("ddp", 1).model_copy(update={"recovery": rows[1].recovery})
    found = project_recovery([smaller, *rows], (64,), FailureRates(mtbf_s=HOUR_S, restart_s=60))
    assert [(one.method, one.cost_s) for one in found] == [("full", 4.0), ("async", 1.0)]
    assert {one.measured_world_size for one in found} == {2}
    assert found[1].at_optimum.training > found[0].at_optimum.training


def test_without_a_restart_only_the_interval_is_known(rows):
    (one, _) = project_recovery(rows, (64,), FailureRates(mtbf_s=HOUR_S))
    assert one.at_optimum is None and "give --restart" in one.reason
    assert one.daly_interval_s == pytest.approx((2 * 4 * HOUR_S) ** 0.5, rel=0.02)


def test_given_costs_replace_the_measured_ones(rows):
    rates = FailureRates(mtbf_s=HOUR_S, restart_s=60, cost_s=30)
    found = project_recovery(rows, (64,), rates)
    assert {one.cost_s for one in found} == {30}
    assert found[0].measured_world_size is None


def test_every_figure_by_hand():
    """A save that costs 2 s and is on the disk after 5 s; a failure each hour, a minute lost."""
    one_way = rows_with([save("async", 2.0, durable_s=near(5.0))], [])
    rates = FailureRates(mtbf_s=HOUR_S, restart_s=60, interval_s=600)
    (one,) = project_recovery(one_way, (64,), rates)
    assert (one.mtbf_s, one.cost_s, one.restart_s, one.interval_s) == (HOUR_S, 2.0, 60, 600)
    assert (one.suite, one.case, one.method, one.world_size) == ("ddp", "ddp", "async", 64)
    assert one.durable_after_s == 3.0 and one.reason is None
    assert one.young_interval_s == pytest.approx(120)  # √(2 · 2 s · 3600 s)
    assert one.daly_interval_s == pytest.approx(118.7, abs=0.1)
    assert one.optimal_interval_s == pytest.approx(one.daly_interval_s, rel=0.01)
    # A cycle of length w lasts on average (M + 60 s)(e^(w/M) - 1) with what failures cost.
    for interval_s, shares in ((600, one.at_interval), (one.optimal_interval_s, one.at_optimum)):
        whole_s = (HOUR_S + 60) * (math.exp((interval_s + 2) / HOUR_S) - 1)
        assert shares.training == pytest.approx(interval_s / whole_s, rel=0.002)
        assert shares.save == pytest.approx(2 / whole_s, rel=0.01)
        assert sum(dict(shares).values()) == pytest.approx(1)


def test_an_interval_as_long_as_a_save_is_the_shortest(rows):
    rates = FailureRates(mtbf_s=HOUR_S, restart_s=60, interval_s=4.0)
    assert project_recovery(rows, (64,), rates)[0].at_interval.training < 0.5
    with pytest.raises(UsageError, match="is shorter than one checkpoint"):
        project_recovery(rows, (64,), FailureRates(mtbf_s=HOUR_S, restart_s=60, interval_s=3.99))


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (FailureRates(mtbf_s=1, device_mtbf_s=1), "Give one of them"),
        (FailureRates(interval_s=60), "need a failure rate: add --mtbf 8h"),
        (FailureRates(mtbf_s=HOUR_S, interval_s=2), "--interval 2.00 s is shorter than one check"),
    ],
)
def test_what_contradicts_itself_is_refused(rows, rates, said):
    with pytest.raises(UsageError, match=said):
        project_recovery(rows, (64,), rates)


def test_a_run_without_checkpoints_is_refused():
    with pytest.raises(UsageError, match="no row of this one was saved"):
        project_recovery([make_plain()], (64,), FailureRates(mtbf_s=HOUR_S))


def test_it_says_where_the_formulas_do_not_hold():
    """A checkpoint that is on the disk only after ten minutes is lost with most failures."""
    late = rows_with([save("async", 1.0, durable_s=near(600.0))], [])
    found = project_recovery(late, (64,), FailureRates(mtbf_s=1000, restart_s=10))
    flat = " ".join(render_recovery(found, "run", 160).split())
    assert "the formulas do not hold for ddp async at N=64: a checkpoint is on" in flat


def test_the_table_says_how_often_to_save_and_what_others_reached(rows):
    rates = FailureRates(device_mtbf_s=50_000 * HOUR_S, restart_s=300, interval_s=600)
    shown = render_recovery(project_recovery(rows, (16384,), rates), "run", 140)
    flat = " ".join(shown.split())
    assert "ddp 16384 full 3.05 h" in flat
    assert "5.00 min" in flat and "as measured at N=2" in flat
    assert "Llama 3 405B on 16,384 GPUs had a failure every 3.09 h" in flat


def test_project_refuses_failures_without_checkpoints():
    run = "reports/gallery/ddp-2-cores"
    done = CliRunner().invoke(
        cli, ["project", run, "--gpus", "16", "--mtbf", "3h"], standalone_mode=False
    )
    assert isinstance(done.exception, UsageError)
    assert "Run scalebench run recovery" in str(done.exception)
