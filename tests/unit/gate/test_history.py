import json

import numpy as np
import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.errors import UsageError
from scalebench.gate.history import change_points, history
from scalebench.records.files import write_model
from tests.builders.gated import gated_run
from tests.examples import cases


def series(factors, num_launches, seed):
    """Runs of which each takes so many times as long, in one row."""
    return [
        gated_run({("ddp", 2): factor}, seed=seed + i, launch_sd=0.004, num_launches=num_launches,
                  run_id=f"run-{i:02d}", created=f"2026-01-{i + 1:02d}T00:00:00Z")
        for i, factor in enumerate(factors)
    ]  # fmt: skip


def runs(count, change_at=99, seed=0):
    return series([1.05 if i >= change_at else 1.0 for i in range(count)], 2, seed)


def test_false_alarms_of_a_steady_series_and_finds_of_one_that_moves():
    """A shift of two standard deviations in the middle of 24 runs; heavy tails."""
    generator = np.random.default_rng(4)
    alarms = found = near = 0
    for _ in range(120):
        noise = generator.standard_t(4, 24) / 2**0.5
        alarms += bool(change_points(list(noise)))
        noise[12:] += 2.0
        points = change_points(list(noise))
        found += bool(points)
        near += bool(points) and abs(points[0].index - 12) <= 2
    assert alarms <= 11, "5 % of 120 are 6; more than 11 come once in 50"
    assert found >= 108 and near >= 0.9 * found


def test_nothing_changed_and_too_few():
    assert history(runs(12)).shifts == ()
    with pytest.raises(UsageError, match="two or more"):
        history(runs(1))


def drifting(count, per_run, seed=0):
    return series([(1 + per_run) ** i for i in range(count)], 4, seed)


@cases("count", 2, 4, 12)
def test_from_two_runs_on_each_series_has_its_drift_and_what_it_could_have_found(count):
    told = history(drifting(count, 0.2 / (count - 1)))
    assert len(told.trends) == 9 and all(len(one.values) == count for one in told.trends)
    by_series = {one.series[1:]: one for one in told.trends}
    step, efficiency = by_series["ddp", 2, "step_s"], by_series["ddp", 2, "efficiency"]
    assert step.low < step.drift < step.high and step.drift == pytest.approx(0.2, abs=0.02)
    assert efficiency.drift < 0 and step.run_ids == told.runs
    assert 0 < step.smallest_drift < 0.2
    assert step.worse and not step.better
    for (case, _, _), one in by_series.items():
        assert case == "ddp" or not (one.worse or one.better)


@pytest.mark.slow
def test_a_steady_history_is_seldom_called_a_drift():
    """5 % of calls at most, nine series each; a drift as small as it says is found."""
    calls = [history(runs(5, seed=100 * i)) for i in range(40)]
    assert sum(any(one.worse or one.better for one in told.trends) for told in calls) <= 5
    smallest = float(np.median([told.trends[1].smallest_drift for told in calls]))
    slower = [history(drifting(5, smallest / 4, seed=100 * i)) for i in range(20)]
    assert sum(told.trends[1].worse for told in slower) >= 15


def test_the_command(project):
    names = []
    for run in runs(16, change_at=9):
        names.append(f"{run.run_id}.json")
        write_model(project / names[-1], run)
    shown, told, quiet = (
        CliRunner().invoke(cli, ["history", *words], standalone_mode=False).output
        for words in (names, ["--json", *names], names[:2])
    )
    assert "run-09" in shown and "step time" in shown and "+4.9 %" in shown
    assert {shift["run_id"] for shift in json.loads(told)["shifts"]} == {"run-09"}
    assert quiet.startswith("no drift and no change of level found in 2 runs")
