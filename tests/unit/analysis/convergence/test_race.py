"""Races of known curves: targets, ratios between seeds, and what was not reached."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.run import StoredRun
from scalebench.analysis.summarise import summarise
from scalebench.records.measured.rank import RacePoint
from scalebench.records.paths import RunPaths
from scalebench.spec import Plain
from scalebench.spec.race import Race
from tests.builders.runs import make_cell, make_info, make_record, make_result

RACE = Race(samples=400, evaluate_every=100)


def falling(per_sample, seconds_per_100, start=5.0):
    """A loss that falls evenly with the samples, evaluated five times."""
    return [
        RacePoint(
            samples=100 * i,
            trained_s=i * seconds_per_100,
            elapsed_s=i * (seconds_per_100 + 0.25),
            loss=start - per_sample * 100 * i,
        )
        for i in range(5)
    ]


def launch(cell, points):
    ranks = [make_record(rank, race=points) for rank in range(cell.world_size)]
    return make_result(cell, ranks=ranks)


def raced(curves, race=RACE):
    """The rows of a run: (case, ranks, batch) → the curve of each seed."""
    results = [
        launch(
            make_cell(
                case,
                ranks,
                seed,
                strategy=Plain() if case == "plain" else None,
                race=race,
                seed=seed,
                global_batch=batch,
                rank_batch=batch // ranks,
            ),
            points,
        )
        for (case, ranks, batch), of_seeds in curves.items()
        for seed, points in enumerate(of_seeds)
    ]
    return {row.case: row for row in summarise(run_of(results)).rows}


def run_of(results):
    """A run in memory: nothing is read from its folder."""
    info = make_info([result.cell for result in results])
    return StoredRun(RunPaths(Path("nowhere")), info, {r.cell.id: r for r in results})


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
