import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.projection.project import project
from scalebench.analysis.race import Training, arrival, time_to_loss
from scalebench.analysis.summarise import summarise
from scalebench.records.measured.rank import RacePoint
from scalebench.report.tables.layout import Screen
from scalebench.report.tables.projection import render_projection
from scalebench.spec.recovery import Race
from scalebench.stats import Estimate
from tests.builders.rows.projections import make_run, the_profile
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.runs import make_run as run_of

RACE = Race(samples=400, evaluate_every=100)


def falling(per_sample, seconds_per_100):
    """A loss that falls evenly with the samples, evaluated five times."""
    return [
        RacePoint(
            samples=100 * i,
            trained_s=i * seconds_per_100,
            elapsed_s=i * (seconds_per_100 + 0.25),
            loss=5.0 - per_sample * 100 * i,
        )
        for i in range(5)
    ]


def raced(curves):
    """The rows of a run: (case, ranks, batch) → the curve of each seed."""
    results = []
    for (case, size, batch), of_seeds in curves.items():
        told = {"race": RACE, "global_batch": batch, "rank_batch": batch // size}
        for seed, points in enumerate(of_seeds):
            ranks = [make_record(rank, race=points) for rank in range(size)]
            results.append(make_result(make_cell(case, size, seed, seed=seed, **told), ranks=ranks))
    return {row.case: row for row in summarise(run_of(results)).rows}


@given(fall=st.floats(0.0095, 0.02), seconds=st.floats(0.5, 20), ranks=st.sampled_from((2, 4)))
def test_the_speedup_is_the_product_of_both_efficiencies_and_the_ranks(fall, seconds, ranks):
    rows = raced(
        {
            ("plain", 1, 20): [falling(0.01, 4.0)] * 2,
            ("ddp", ranks, 20): [falling(fall, seconds)] * 2,
        }
    )
    race = rows["ddp"].race
    product = race.statistical_efficiency.value * race.hardware_efficiency.value * ranks
    assert race.speedup_to_target.value == pytest.approx(product)


def test_a_seed_that_missed_the_target_is_counted_and_not_dropped():
    slow = falling(0.004, 2.0)
    race = raced(
        {
            ("plain", 1, 10): [falling(0.01, 4.0)] * 3,
            ("ddp", 2, 10): [falling(0.01, 2.0), falling(0.01, 2.5), slow],
        }
    )["ddp"].race
    assert (race.num_reached, race.num_seeds) == (2, 3)
    assert race.time_to_target_s is None and race.speedup_to_target is None
    why = race.unavailable["time_to_target_s"]
    assert why.startswith("1 of 3 seeds did not reach the target within 400 samples")
    assert race.median_time_to_target_s == pytest.approx(5.0)
    assert race.final_loss.n == 3


def test_a_loss_below_the_target_that_nothing_confirms_is_said_with_it():
    late = falling(0.006, 2.0)  # below 3.0, that of plain after 200 samples, at the last one alone
    race = raced({("plain", 1, 10): [falling(0.01, 4.0)], ("ddp", 2, 10): [late]})["ddp"].race
    said = race.unavailable["time_to_target_s"]
    assert said.endswith("the lowest loss was 2.6, which no further evaluation confirmed")


def course(*losses):
    return [
        RacePoint(samples=100 * i, trained_s=2.0 * i, elapsed_s=2.5 * i + 0.5, loss=loss)
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
