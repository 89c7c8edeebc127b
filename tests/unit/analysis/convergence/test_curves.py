"""When a race reached its target, and what a batch's size does to that: for any curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.convergence.projected import Training, arrival, time_to_loss
from scalebench.analysis.projection.project import project
from scalebench.records.measured.rank import RacePoint
from scalebench.report.tables.layout import Screen
from scalebench.report.tables.projection import render_projection
from scalebench.stats import Estimate
from tests.builders.rows.projections import make_run, the_profile


def course(*losses, samples=100, seconds=2.0, evaluation_s=0.5):
    return [
        RacePoint(
            samples=i * samples,
            trained_s=i * seconds,
            elapsed_s=i * seconds + (i + 1) * evaluation_s,
            loss=loss,
        )
        for i, loss in enumerate(losses)
    ]


@given(losses=st.lists(st.floats(0.1, 10), min_size=2, max_size=12), target=st.floats(0.1, 10))
def test_an_arrival_lies_before_two_evaluations_that_confirm_it(losses, target):
    points = course(*losses)
    found = arrival(points, target)
    pairs = [i for i in range(len(losses) - 1) if max(losses[i : i + 2]) <= target]
    assert (found is None) == (not pairs)
    if found is not None:
        first = pairs[0]
        assert 100 * max(first - 1, 0) <= found.samples <= 100 * first
        assert found.trained_s == pytest.approx(found.samples / 50)


batches = st.integers(1, 1 << 20)
rates = st.floats(1e-3, 1e9)
noises = st.floats(1e-3, 1e9)


def exactly(noise):
    return Estimate(value=noise, low=noise, high=noise, n=1)


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


def test_the_table_says_where_more_ranks_do_not_help(tmp_path):
    run = make_run(tmp_path, link=the_profile(2), scaling="weak")
    slow = project(run, [2, 8, 64], noise_scale=1.0)
    told = " ".join(render_projection(slow, Screen(160)).split())
    best = max(slow.rows, key=lambda row: row.speedup_to_loss)
    assert best.world_size == 2
    assert "ddp reaches a loss soonest at N=2 (more ranks take longer)" in told
    assert "a gradient noise scale of 1.00 samples" in told
    fast = project(run, [2, 8], noise_scale=1e6)
    told = " ".join(render_projection(fast, Screen(160)).split())
    assert "ddp reaches a loss soonest at N=8 (the largest number projected)" in told
    assert "samples" in told and "1×" in told
