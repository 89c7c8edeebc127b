"""Launches that took turns: merged by run, compared within their rounds."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from scalebench.gate.change import change_between
from scalebench.gate.family import Pair, _sides, paired
from scalebench.gate.measured import measured
from scalebench.gate.merging import merged
from tests.builders.gated import budget_points, gated, gated_run, verdict_of, with_row
from tests.builders.summaries import make_missing


def drifting(seed: int, factor: float, drift: list[float]):
    """One run for each round, all its steps slower by the round's drift."""
    return [
        gated_run(
            {(case, n): factor * level for case in ("ddp", "ddp-small") for n in (2, 4)}
            | {("plain", 1): level},
            num_launches=1, seed=seed + 10 * number, run_id=f"run-{seed}-{number}",
        )
        for number, level in enumerate(drift)
    ]  # fmt: skip


def test_the_interval_is_that_of_the_paired_t_test():
    generator = np.random.default_rng(0)
    drift = generator.normal(0, 1, 6)
    base, new = drift + generator.normal(0, 0.1, 6), drift + 0.2 + generator.normal(0, 0.1, 6)
    sides = paired(measured(base), measured(new))
    pair = [Pair("s", *sides, 0.01, 0.01)]
    change = change_between(_sides(pair, sides[:1])[0], _sides(pair, sides[1:])[0])
    expected = stats.ttest_rel(new, base, alternative="greater")
    assert change.p_value(1) == pytest.approx(expected.pvalue, rel=1e-9)
    both = stats.ttest_rel(new, base).confidence_interval(0.95)
    assert change.interval == pytest.approx(tuple(both))


def test_runs_are_merged_launch_by_launch():
    runs = drifting(1, 1.0, [1.0, 1.1, 1.2])
    whole = merged(runs)
    row = next(r for r in whole.rows if (r.case, r.world_size) == ("ddp", 2))
    assert [s.repeat for s in row.samples] == [0, 1, 2] and row.step_s.n == 3
    assert row.step_s.value == pytest.approx(
        0.025 * math.prod([1.0, 1.1, 1.2]) ** (1 / 3), rel=0.01
    )
    assert row.efficiency.n == 3 and row.efficiency.value == pytest.approx(0.8, rel=0.02)


def test_the_memory_of_several_runs_is_the_largest_that_is_known():
    runs = drifting(1, 1.0, [1.0, 1.0, 1.0])
    peaks = (2e8, None, 3e8)
    told = [with_row(r, "ddp", 2, peak_memory_bytes=p) for r, p in zip(runs, peaks, strict=True)]
    for order in (told, told[::-1]):
        row = next(r for r in merged(order).rows if (r.case, r.world_size) == ("ddp", 2))
        assert row.peak_memory_bytes == 3e8


def test_of_a_run_with_several_launches_the_first_is_its_round():
    runs = [gated_run(num_launches=2, seed=seed) for seed in (1, 2, 3)]
    row = next(r for r in merged(runs).rows if (r.case, r.world_size) == ("ddp", 2))
    first = [next(r for r in run.rows if r.case == "ddp").samples[0] for run in runs]
    assert [s.pace_s for s in row.samples] == [s.pace_s for s in first]
    assert [s.repeat for s in row.samples] == [0, 1, 2]
    assert row.num_clean_steps == sum(len(s.step_s) for s in first)


def test_budgets_are_the_means_of_the_runs():
    runs = [
        with_row(run, "ddp", 2, budget=budget_points(0.8, rank=1, exposed_transfer=part))
        for run, part in zip(drifting(1, 1.0, [1.0, 1.0]), (0.1, 0.14), strict=True)
    ]
    row = next(r for r in merged(runs).rows if (r.case, r.world_size) == ("ddp", 2))
    assert row.budget.points["exposed_transfer"] == pytest.approx(0.12)
    assert row.budget.exposed_transfer_s == pytest.approx(0.0012) and row.budget.rank == 1
    without = merged([runs[0], with_row(runs[1], "ddp", 2, budget=None)])
    row = next(r for r in without.rows if (r.case, r.world_size) == ("ddp", 2))
    assert row.budget is None


def test_a_row_that_failed_once_is_failed():
    runs = drifting(1, 1.0, [1.0, 1.0])
    bad = make_missing("ddp", 2, "failed", "rank 1 died")
    rows = [bad if (r.case, r.world_size) == ("ddp", 2) else r for r in runs[1].rows]
    runs[1] = runs[1].model_copy(update={"rows": rows})
    assert gated(merged(runs), merged(runs)).verdict == "failed"


def test_drift_hides_a_change_between_runs_and_not_between_rounds():
    """Three percent, on a machine that gets slower by a fifth meanwhile."""
    drift = [1.0, 1.08, 1.15, 1.2, 1.1]
    base, new = merged(drifting(1, 1.0, drift)), merged(drifting(2, 1.03, drift))
    assert verdict_of(gated(base, new), "step_s").verdict == "no change seen"
    found = verdict_of(gated(base, new, rounds=True), "step_s")
    assert found.verdict == "regressed" and found.change == pytest.approx(0.03, abs=0.005)
    same = gated(base, merged(drifting(3, 1.0, drift)), rounds=True)
    assert verdict_of(same, "step_s").verdict == "unchanged"


def test_rounds_that_have_nothing_in_common_show_nothing_and_do_not_crash():
    """Two rounds, one of them on a machine that stood still: nothing can be detected."""
    base = merged(drifting(1, 1.0, [1.0, 1.0]))
    new = merged([*drifting(2, 1.0, [1.0]), *drifting(3, 1e6, [1.0])])
    result = gated(base, new, rounds=True)
    assert verdict_of(result, "step_s").verdict == "no change seen"
    assert verdict_of(result, "step_s").min_detectable > 1e100
    json.dumps(result.as_json(), allow_nan=False)
