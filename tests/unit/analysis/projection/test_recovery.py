"""Failures at sizes that were not measured: how often to save, and what is left of the time."""

import pytest
from click.testing import CliRunner

from scalebench.analysis.projection.recovery import FailureRates, project_recovery
from scalebench.cli import cli
from scalebench.errors import UsageError
from tests.builders.rows.recoveries import rows_with, save

HOUR_S = 3600.0


@pytest.fixture
def rows():
    return rows_with([save("full", 4.0), save("async", 1.0)], [])


def test_without_a_restart_only_the_interval_is_known(rows):
    (one, _) = project_recovery(rows, (64,), FailureRates(mtbf_s=HOUR_S))
    assert one.at_optimum is None and "give --restart" in one.reason
    assert one.daly_interval_s == pytest.approx((2 * 4 * HOUR_S) ** 0.5, rel=0.02)


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
