"""The time to a loss at sizes that were not measured, by hand and by the laws that it follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.convergence.projected import (
    Training,
    time_to_loss,
)
from scalebench.analysis.projection.project import project
from scalebench.report.tables.projection import render_projection
from scalebench.stats import Estimate
from tests.unit.analysis.projection.test_project import make_run, the_profile

batches = st.integers(1, 1 << 20)
rates = st.floats(1e-3, 1e9)
noises = st.floats(1e-3, 1e9)


def exactly(noise):
    return Estimate(value=noise, low=noise, high=noise, n=1)


def test_a_batch_beyond_the_noise_scale_needs_more_samples():
    # E(b) = 1 + b / 3: 2 for a batch of 3, 5 for one of 12.
    found = time_to_loss(Training(12, 80.0, 40.0, 160.0), Training(3, 10.0), exactly(3.0))
    assert found.statistical_efficiency == pytest.approx(2 / 5)
    assert found.speedup == pytest.approx(8 * 2 / 5)
    assert (found.low, found.high) == (pytest.approx(4 * 2 / 5), pytest.approx(16 * 2 / 5))


@given(batches, rates, rates, noises)
def test_the_same_batch_needs_the_same_samples(batch, rate, base_rate, noise):
    found = time_to_loss(Training(batch, rate), Training(batch, base_rate), exactly(noise))
    assert found.statistical_efficiency == 1
    assert found.speedup == pytest.approx(rate / base_rate)


@given(batches, batches, rates, noises)
def test_a_larger_batch_never_needs_fewer_samples_nor_more_than_in_proportion(a, b, rate, noise):
    small, large = sorted((a, b))
    found = time_to_loss(Training(large, rate), Training(small, rate), exactly(noise))
    assert small / large * (1 - 1e-9) <= found.statistical_efficiency <= 1 + 1e-9


def test_weak_scaling_steps_faster_and_reaches_a_loss_no_sooner(tmp_path):
    run = make_run(tmp_path, link=the_profile(2), scaling="weak")
    few, many = project(run, [8, 512], noise_scale=32.0).rows
    assert many.throughput > 10 * few.throughput
    assert few.statistical_efficiency == pytest.approx(2 / 9)
    # 32 samples in 0.1 s on one rank; N times as many in a step here.
    assert few.speedup_to_loss == pytest.approx(0.1 / few.step_s * 8 * 2 / 9)
    # 8 ranks need 4.5 times the samples, 512 need 256.5 times as many.
    assert many.speedup_to_loss == pytest.approx(0.1 / many.step_s * 512 * 2 / 513)
    assert few.speedup_to_loss_low is None  # no row of this run was compared with a measurement


def test_without_a_noise_scale_nothing_is_said_of_the_loss(tmp_path):
    projection = project(make_run(tmp_path, link=the_profile(2)), [8])
    assert projection.rows[0].speedup_to_loss is None
    assert "loss" not in render_projection(projection, 160)


def test_the_table_says_where_more_ranks_do_not_help(tmp_path):
    run = make_run(tmp_path, link=the_profile(2), scaling="weak")
    slow = project(run, [2, 8, 64], noise_scale=1.0)
    told = " ".join(render_projection(slow, 160).split())
    best = max(slow.rows, key=lambda row: row.speedup_to_loss)
    assert best.world_size == 2
    assert "ddp reaches a loss soonest at N=2 (more ranks take longer)" in told
    assert "a gradient noise scale of 1.00 samples" in told
    fast = project(run, [2, 8], noise_scale=1e6)
    told = " ".join(render_projection(fast, 160).split())
    assert "ddp reaches a loss soonest at N=8 (the largest number projected)" in told
    assert "samples" in told and "1×" in told
