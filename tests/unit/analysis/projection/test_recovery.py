"""Failures at sizes that were not measured: how often to save, and what is left of the time."""

import math

import pytest
from click.testing import CliRunner

from scalebench.analysis.projection.recovery import FailureRates, project_recovery
from scalebench.cli import cli
from scalebench.errors import UsageError
from tests.builders.recoveries import near, rows_with, save

HOUR_S = 3600.0


@pytest.fixture
def rows():
    return rows_with([save("full", 4.0), save("async", 1.0)], [])


def test_without_a_restart_only_the_interval_is_known(rows):
    (one, _) = project_recovery(rows, (64,), FailureRates(mtbf_s=HOUR_S))
    assert one.at_optimum is None and "give --restart" in one.reason
    assert one.daly_interval_s == pytest.approx((2 * 4 * HOUR_S) ** 0.5, rel=0.02)


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


def test_project_refuses_failures_without_checkpoints():
    run = "reports/gallery/ddp-2-cores"
    done = CliRunner().invoke(
        cli, ["project", run, "--gpus", "16", "--mtbf", "3h"], standalone_mode=False
    )
    assert isinstance(done.exception, UsageError)
    assert "Run scalebench run recovery" in str(done.exception)
