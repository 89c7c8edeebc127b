"""The formulas on numbers that can be worked out by hand."""

import math

import pytest

from scalebench.costmodel.recovery.intervals import (
    Shares,
    daly_interval,
    mtbf_of_job,
    optimal_interval,
    shares,
    young_interval,
)
from scalebench.costmodel.recovery.published import DAY_S, DCP_7B_BLOCKED_S, HOUR_S, JOBS

NEVER = Shares(training=0.0, save=0.0, lost=1.0, restart=0.0)


def test_intervals():
    """√(2·3·24) = 12; with δ/2M = 1/16 the series is 1 + 1/12 + 1/144."""
    assert young_interval(3.0, 24.0) == 12.0
    assert daly_interval(2.0, 16.0) == pytest.approx(8 * (1 + 1 / 12 + 1 / 144) - 2)
    assert daly_interval(19.99, 10.0) == pytest.approx(20 * 13 / 9 - 20, rel=1e-3)
    assert daly_interval(20.0, 10.0) == 10.0
    assert mtbf_of_job(100.0, 8) == 12.5


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(2.0, 16.0), (30.0, 7.0), (0.1, 500.0)])
def test_at_the_optimum_the_derivative_is_zero(cost_s, mtbf_s):
    """Of ``(e^((τ+δ)/M) - 1)/τ``: ``e^((τ+δ)/M) (τ/M - 1) + 1``."""
    tau = optimal_interval(cost_s, mtbf_s)
    assert tau > 0
    slope = math.exp((tau + cost_s) / mtbf_s) * (tau / mtbf_s - 1) + 1
    assert slope == pytest.approx(0.0, abs=1e-9)


def test_where_the_time_goes():
    """τ + δ = M log 3 and R = M log 2: each stretch takes 10 · 2 · (3 - 1) = 40 seconds."""
    cost_s = 10 * math.log(3) - 4
    found = shares(4.0, cost_s, 10 * math.log(2), 10.0)
    assert found.training == pytest.approx(4 / 40)
    assert found.save == pytest.approx(cost_s / 40)
    assert found.lost == pytest.approx((20 - 10 * math.log(3)) / 40)
    assert found.restart == pytest.approx(20 / 40)


@pytest.mark.parametrize(("over", "ends"), [(699.5, True), (700.0, True), (700.5, False)])
def test_what_takes_e_to_the_700_never_ends(over, ends):
    found = shares(over - 0.25, 0.25, 0.0, 1.0)
    assert (found == NEVER) is not ends
    assert (found.training > 0) is ends
    assert shares(3.0 * over - 0.25, 0.25, 0.0, 3.0) != NEVER or not ends


@pytest.mark.parametrize("restart_s", [5.0, 690.0, 699.9, 1e4])
def test_where_restarts_take_longer_than_failures_are_apart_they_are_the_whole_time(restart_s):
    """Also where their own e^(R/M) times that of the stretch is more than any float."""
    found = shares(8.0, 0.5, restart_s, 1.0)
    assert found.restart == pytest.approx(1 - math.exp(-restart_s))
    assert found.training == pytest.approx(8 * math.exp(-restart_s) / math.expm1(8.5))
    assert found.lost == pytest.approx(math.exp(-restart_s) * (1 - 8.5 / math.expm1(8.5)))


def test_published_figures_as_they_were_published():
    assert (HOUR_S, DAY_S) == (3600.0, 86400.0)
    assert [(job.num_devices, job.goodput) for job in JOBS] == [
        (16384, 0.9),
        (1024, None),
        (16384, None),
    ]
    assert [job.mtbf_s for job in JOBS] == pytest.approx([54 * 86400 / 419, 28440.0, 6480.0])
    assert [job.device_mtbf_s for job in JOBS[1:]] == pytest.approx([28440 * 1024, 6480 * 16384])
    assert DCP_7B_BLOCKED_S == {"sharded": 148.8, "async": 6.3}
