"""What came of a race, from arrivals and curves that are known: every number and every reason."""

import pytest

from scalebench.analysis.convergence.curves import Arrival
from scalebench.analysis.convergence.race import (
    OF_ARRIVAL,
    Target,
    _bytes,
    _curves,
    _missed,
    _ratios,
    _to_target,
    _unknown,
    figures_of,
    median_with_missing,
    noise_scale_of_steps,
    target_of,
)
from scalebench.analysis.rows.launches import grouped
from scalebench.records.race import GradientNorms, RacePoint
from scalebench.spec import Plain
from scalebench.spec.race import Race
from scalebench.stats import Estimate
from tests.builders.runs import make_cell, make_record, make_result, make_run
from tests.builders.summaries import make_row


def row(size=3, batch=12, **changes):
    """A row of three ranks and 12 samples in a step."""
    fields = {"global_batch": batch, "wire_bytes": 50.0, "energy_j_per_sample": exactly(0.5)}
    return make_row("ddp", size).model_copy(update={**fields, **changes})


def exactly(value, n=1):
    return Estimate(value=value, n=n)


SEEDS = {0: Arrival(24.0, 4.0, 5.0, 10.0), 1: Arrival(96.0, 9.0, 20.0, 40.0)}


def values(estimates):
    return {
        name: None if one is None else pytest.approx(one.value) for name, one in estimates.items()
    }


def test_to_the_target_it_takes_the_geometric_mean_over_the_seeds():
    found = _to_target(SEEDS, row())
    assert values(found) == {
        "time_to_target_s": 6.0,
        "elapsed_to_target_s": 10.0,
        "samples_to_target": 48.0,
        "steps_to_target": 4.0,
        "bytes_to_target": 20.0,
        "energy_to_target_j": 24.0,
    }
    assert {one.n for one in found.values()} == {2}
    assert _to_target(SEEDS, row(energy_j_per_sample=None))["energy_to_target_j"] is None


@pytest.mark.parametrize(
    ("sent", "wire", "expected"),
    [
        ((10.0, 40.0), 50.0, 20.0),
        ((10.0, None), 50.0, 200.0),
        ((None, None), 50.0, 200.0),
        ((0.0, 40.0), 50.0, 200.0),
        ((None, None), None, None),
        ((None, None), 0.0, None),
    ],
)
def test_bytes_are_counted_where_every_seed_counted_them_or_are_those_of_the_steps(
    sent, wire, expected
):
    reached = {seed: Arrival(48.0, 1.0, 1.0, one) for seed, one in enumerate(sent)}
    found = _bytes(reached, exactly(4.0), row(wire_bytes=wire))
    assert (found and pytest.approx(found.value)) == expected


def test_why_bytes_and_energy_are_not_known():
    told = row(
        wire_bytes=None, unavailable={"wire_bytes": "no trace", "energy_j_per_sample": "CPU"}
    )
    assert _unknown("bytes_to_target", told) == "no trace"
    assert _unknown("energy_to_target_j", told) == "CPU"
    assert _unknown("bytes_to_target", row(wire_bytes=0.0)) == "one rank sends nothing"
    silent = row(wire_bytes=0.0, unavailable={})
    assert _unknown("energy_to_target_j", silent) == "not recorded"


def test_ratios_are_formed_between_launches_of_the_same_seed():
    """Seed 0: 60 samples against 24, 12 s against 4; seed 1: 96 and 96, 27 s against 9."""
    theirs = {1: Arrival(96.0, 27.0, 1.0), 0: Arrival(60.0, 12.0, 1.0), 7: Arrival(1.0, 1.0, 1.0)}
    found = _ratios(SEEDS, theirs, 3)
    assert values(found) == {
        "statistical_efficiency": 2.5**0.5,
        "hardware_efficiency": (3 / 2.5 / 3 * 3 / 1 / 3) ** 0.5,
        "speedup_to_target": 3.0,
    }
    assert {one.n for one in found.values()} == {2}
    assert _ratios(SEEDS, {0: theirs[0]}, 3)["speedup_to_target"].n == 1


def test_without_the_baseline_at_every_seed_there_are_no_ratios():
    assert _ratios(SEEDS, {0: Arrival(60.0, 12.0, 1.0), 1: None}, 3) == {}
    assert _ratios(SEEDS, {7: Arrival(60.0, 12.0, 1.0)}, 3) == {}
    assert _ratios(SEEDS, {}, 3) == {}
    assert _ratios(SEEDS, {0: Arrival(60.0, 12.0, 1.0), 7: None}, 3) != {}


@pytest.mark.parametrize(
    ("given", "median"),
    [
        ([5.0, 1.0, 3.0, 9.0], 4.0),
        ([5.0, 1.0, None, 9.0], 7.0),
        ([5.0, None, None, 9.0], None),
        ([5.0, 1.0, None, 9.0, None], 9.0),
        ([5.0, None, None, 9.0, None], None),
        ([7.0], 7.0),
        ([5.0, 1.0, 3.0, 9.0, 2.0, 4.0], 3.5),
    ],
)
def test_the_median_of_several_seeds(given, median):
    assert median_with_missing(given) == median


def point(samples, loss, trained_s=None, **norms):
    seconds = samples / 10 if trained_s is None else trained_s
    return RacePoint(samples=samples, trained_s=seconds, elapsed_s=2 * seconds, loss=loss, **norms)


def norms(scale, size=4):
    """Of two batches, with ``|G|²`` 1 and ``tr Σ`` the scale."""
    return GradientNorms(
        num_batches=2,
        batch_size=size,
        mean_square=1 + scale / size,
        square_of_mean=1 + scale / (2 * size),
    )


def course(*losses, scale=None, of_steps=None):
    return [
        point(
            100 * i,
            loss,
            gradients=norms(scale) if scale else None,
            step_gradients=norms(of_steps) if of_steps else None,
        )
        for i, loss in enumerate(losses)
    ]


RACE = Race(samples=400, evaluate_every=100, target_loss=3.0)


def launches(*curves):
    """The baseline's launches: one rank, 6 samples in a step."""
    results = [
        make_result(
            make_cell("plain", 1, seed, strategy=Plain(), race=RACE, seed=seed,
                      global_batch=6, rank_batch=6),
            ranks=[make_record(0, race=points)],
        )
        for seed, points in enumerate(curves)
    ]  # fmt: skip
    (found,) = grouped(make_run(results)).values()
    return found


def figures(curves, base, equal_s=15.0, **changes):
    target = Target(3.0, "somebody")
    return figures_of(row(**changes), RACE, target, dict(enumerate(curves)), base, equal_s)


def test_a_race_that_all_seeds_end():
    """The target is reached after 200 samples and, twice as late, 20 s; the baseline needs 300."""
    own = course(5.0, 4.0, 3.0, 2.0, 1.0, of_steps=8.0)
    base = launches(*[course(6.0, 5.0, 4.0, 3.0, 2.0, scale=24.0)] * 2)
    found = figures([own, own], base)
    assert (found.target_loss, found.target_from) == (3.0, "somebody")
    assert (found.baseline, found.samples) == (("plain", 1), 400)
    assert (found.num_seeds, found.num_reached) == (2, 2)
    measured = {name: getattr(found, name).value for name in OF_ARRIVAL if getattr(found, name)}
    assert measured == pytest.approx(
        {
            "time_to_target_s": 20.0,
            "elapsed_to_target_s": 30.0,  # 20 of training, 10 of evaluations until then
            "samples_to_target": 200.0,
            "steps_to_target": 200 / 12,
            "bytes_to_target": 200 / 12 * 50,
            "energy_to_target_j": 100.0,
            "statistical_efficiency": 1.5,
            "hardware_efficiency": 1 / 3,
            "speedup_to_target": 1.5,
        }
    )
    assert found.median_time_to_target_s == pytest.approx(20.0)
    assert (found.final_loss.value, found.lowest_loss) == (1.0, 1.0)
    assert (found.equal_time_s, found.loss_at_equal_time.value) == (15.0, pytest.approx(3.5))
    assert found.noise_scale.value == pytest.approx(24.0)
    assert found.noise_scale_of_steps.value == pytest.approx(8.0)
    assert found.predicted_statistical_efficiency == pytest.approx((1 + 6 / 24) / (1 + 12 / 24))
    assert found.unavailable == {}


def test_a_race_that_one_of_three_seeds_misses():
    good, bad = course(5.0, 4.0, 3.0, 2.0, 1.0), course(5.0, 4.5, 4.25, 3.5, None)
    found = figures([good, bad, good], launches(good), equal_s=35.0)
    assert (found.num_seeds, found.num_reached) == (3, 2)
    missed = "1 of 3 seeds did not reach the target within 400 samples; the lowest loss was 1"
    noise = "the gradient's norm is not larger than its noise, or was not taken"
    assert found.unavailable == {
        **dict.fromkeys(OF_ARRIVAL, missed),
        "final_loss": "the loss was not finite",
        "loss_at_equal_time": "the loss was not finite",
        "noise_scale": noise,
        "predicted_statistical_efficiency": noise,
        "noise_scale_of_steps": "taken from the steps of DDP on several ranks only",
    }
    assert found.median_time_to_target_s == pytest.approx(20.0)


def test_a_race_that_the_baseline_misses_has_no_ratios_and_keeps_its_other_reasons():
    own, other = course(5.0, 4.0, 3.0, 2.0, 1.0), course(5.0, 4.5, 4.25, 4.0, 3.5, scale=24.0)
    told = {"wire_bytes": "no trace", "energy_j_per_sample": "on CPU"}
    nothing = {"wire_bytes": None, "energy_j_per_sample": None, "unavailable": told}
    found = figures([own], launches(other), **nothing)
    why = "the baseline did not reach the target with every seed"
    assert found.unavailable == {
        "bytes_to_target": "no trace",
        "energy_to_target_j": "on CPU",
        "statistical_efficiency": why,
        "hardware_efficiency": why,
        "speedup_to_target": why,
        "noise_scale_of_steps": "taken from the steps of DDP on several ranks only",
    }
    assert found.noise_scale.value == pytest.approx(24.0), "of all blocks where it never arrives"


def test_a_race_without_a_finite_loss():
    found = figures([course(None, None, None)], launches(course(5.0, 4.0, 3.0, 2.0)))
    assert (found.lowest_loss, found.median_time_to_target_s) == (None, None)
    assert found.unavailable["lowest_loss"] == "no loss was finite"
    assert found.unavailable["median_time_to_target_s"] == (
        "half of the seeds or more did not reach the target"
    )
    told = "1 of 1 seeds did not reach the target within 400 samples"
    assert found.unavailable["time_to_target_s"] == told
    assert _missed(2, {0: [], 1: [], 2: []}, RACE, 4.25) == (
        "2 of 3 seeds did not reach the target within 400 samples; the lowest loss was 4.25"
    )


def test_noise_is_that_of_the_blocks_that_begin_before_the_target():
    """Blocks end at 100, 200 and 300 samples with scales of 8, 16 and 100."""
    points = [point(0, 5.0, step_gradients=norms(1e6))]
    points += [point(n, 4.0, step_gradients=norms(s)) for n, s in ((100, 8), (200, 16), (300, 100))]
    for samples, expected in ((100.0, 8), (101.0, 12), (200.0, 12), (200.1, 124 / 3)):
        found = noise_scale_of_steps({4: points}, {4: Arrival(samples, 1.0, 1.0)})
        assert found.value == pytest.approx(expected)
    assert noise_scale_of_steps({4: points}, {4: None}).value == pytest.approx(124 / 3)
    both = {4: points, 5: points[:2]}
    found = noise_scale_of_steps(both, {4: Arrival(200.0, 1.0, 1.0), 5: None})
    assert (found.value, found.n) == (pytest.approx((12 * 8) ** 0.5), 2)


def test_noise_that_is_not_known_of_one_seed_is_not_known():
    known, without = course(5.0, 4.0, of_steps=8.0), course(5.0, 4.0)
    told = "the gradient's norm is not larger than its noise, or was not taken"
    assert noise_scale_of_steps({0: known, 1: without}, {}) == told
    zero = GradientNorms(num_batches=2, batch_size=4, mean_square=1.0, square_of_mean=1.0)
    still = [point(0, 5.0), point(100, 4.0, step_gradients=zero)]
    assert noise_scale_of_steps({0: still}, {}) == told


def test_the_curves_of_a_row_are_rank_0s_of_the_launches_that_noted_any():
    def launch(seed, *curves, **changes):
        ranks = [make_record(rank, race=points) for rank, points in enumerate(curves)]
        return make_result(make_cell("ddp", 2, seed), ranks=ranks, **changes)

    own, other = course(5.0, 4.0), course(3.0, 2.0)
    results = [
        launch(0, own, other), launch(1, other, None), launch(2, None, own),
        launch(3, own, own, status="failed"), launch(4),
    ]  # fmt: skip
    (found,) = grouped(make_run(results)).values()
    assert _curves(found) == {0: own, 1: other}


def test_the_target_is_the_baselines_mean_loss_after_so_many_samples():
    asked = Race(samples=400, evaluate_every=100)
    base = launches(course(5.0, 4.0, 3.0), course(5.0, 4.0, 2.0))
    curves = {0: course(5.0, 4.0, 3.0), 1: course(5.0, 4.0, 2.0)}
    assert target_of(asked, curves, base) == Target(2.5, "plain after 200 samples")
    why = "the plain baseline has no loss after 200 samples to set the target"
    assert target_of(asked, {**curves, 2: course(5.0, 4.0, None)}, base) == why
    assert target_of(asked, {0: course(5.0, 4.0)}, base) == why
    assert target_of(asked, {}, base) == why and target_of(asked, curves, None) == why
    assert target_of(RACE, {}, None) == Target(3.0, "given")
