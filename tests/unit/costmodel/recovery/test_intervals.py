import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.recovery import (
    LLAMA_3,
    daly_interval,
    optimal_interval,
    shares,
    young_interval,
)
from tests.examples import cases

HOUR_S = 3600.0
MTBF_S = 3 * HOUR_S
MANY = 20_000

positive = st.floats(1e-3, 1e6)


@given(cost_s=positive, ratio=st.floats(1e-6, 1.0))
def test_daly_is_the_series_of_the_exact_optimum(cost_s, ratio):
    """Within 2 % up to a save as long as the time between failures; Young is not."""
    mtbf_s = cost_s / ratio
    exact = optimal_interval(cost_s, mtbf_s)
    assert daly_interval(cost_s, mtbf_s) == pytest.approx(exact, rel=0.02)


def test_young_saves_too_seldom_where_saves_are_long():
    assert young_interval(60, 120) > 1.4 * optimal_interval(60, 120)
    assert young_interval(1, 1e6) == pytest.approx(optimal_interval(1, 1e6), rel=1e-3)
    assert daly_interval(8, 4) == daly_interval(9, 4) == 4 > daly_interval(7, 4)


@given(interval_s=positive, cost_s=positive, restart_s=positive, mtbf_s=positive)
def test_the_shares_are_shares_and_sum_to_one(interval_s, cost_s, restart_s, mtbf_s):
    found = shares(interval_s, cost_s, restart_s, mtbf_s)
    parts = (found.training, found.save, found.lost, found.restart)
    assert sum(parts) == pytest.approx(1) and min(parts) >= -1e-9


@given(cost_s=st.floats(0.1, 100), restart_s=st.floats(0, 1000), ratio=st.floats(0.3, 3))
def test_no_interval_is_better_than_the_exact_optimum(cost_s, restart_s, ratio):
    best = optimal_interval(cost_s, MTBF_S)
    goodput = shares(best, cost_s, restart_s, MTBF_S).training
    assert shares(ratio * best, cost_s, restart_s, MTBF_S).training <= goodput * (1 + 1e-9)


def simulated(interval_s, cost_s, restart_s, mtbf_s):
    """Where the time of a job goes, failure by failure."""
    spent = dict.fromkeys(("training", "save", "lost", "restart"), 0.0)
    for number, gap_s in enumerate(np.random.default_rng(1).exponential(mtbf_s, MANY)):
        restarting_s = min(gap_s, restart_s) if number else 0.0
        running_s = gap_s - restarting_s
        done = running_s // (interval_s + cost_s)
        spent["restart"] += restarting_s
        spent["training"] += done * interval_s
        spent["save"] += done * cost_s
        spent["lost"] += running_s - done * (interval_s + cost_s)
    return {part: seconds / sum(spent.values()) for part, seconds in spent.items()}


@cases(
    "interval_s, cost_s, restart_s, mtbf_s",
    *((1200, 60, 300, MTBF_S), (100, 60, 300, 600), (3000, 10, 0, 1000), (50, 1, 200, 250)),
)
def test_a_simulation_agrees_with_the_formula(interval_s, cost_s, restart_s, mtbf_s):
    expected = vars(shares(interval_s, cost_s, restart_s, mtbf_s))
    assert simulated(interval_s, cost_s, restart_s, mtbf_s) == pytest.approx(expected, abs=0.012)


def test_llama_3_could_train_nine_tenths_of_the_time():
    """419 failures in 54 days are one in 3.1 h; its > 90 % need a restart of minutes."""
    assert LLAMA_3.mtbf_s / HOUR_S == pytest.approx(3.09, abs=0.01)
    goodput = [
        shares(daly_interval(10, LLAMA_3.mtbf_s), 10, restart_s, LLAMA_3.mtbf_s).training
        for restart_s in (300, 1800)
    ]
    assert goodput[0] > LLAMA_3.goodput > goodput[1]
