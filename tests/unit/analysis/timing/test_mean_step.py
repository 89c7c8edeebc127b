"""The mean of steps that differ by design, and what of it the machine may not change."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalebench.analysis.rows.script import kinds_of
from scalebench.analysis.timing.mean_step import mean_of_steps
from scalebench.analysis.timing.steps import clean_pace, launch_step_s, launch_throughput
from scalebench.records.measured.rank import Block, StepGap
from scalebench.report.words.script_remarks import kinds
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record, make_result

BURSTS = [0.002, 0.002, 0.002, 0.156]
PATTERNS = {
    "a loader's bursts": BURSTS,
    "an optimizer every fifth step": [0.01] * 4 + [0.05],
    "rollouts": [0.11] + [0.009] * 15,
    "averaging every 64": [0.011] * 63 + [0.04],
    "all different": [0.01 * i for i in range(1, 8)],
}

patterns = st.lists(st.floats(1e-3, 1), min_size=1, max_size=12)


def steps(pattern, num_periods, phase=0, jitter=0.0, seed=0):
    found = np.roll(np.tile(pattern, num_periods), -phase)
    return found * np.exp(jitter * np.random.default_rng(seed).standard_normal(len(found)))


def launch(step_s, **changes):
    """A script's launch on one rank with these clean steps behind the first of the block."""
    cell = make_cell(
        "script", 1, strategy=Script(), workload=ScriptTarget(name="train", program="train.py")
    )
    whole = [9.0, *map(float, step_s)]
    blocks = [Block(phase="clean", first=0, count=len(whole))]
    fields = {"step_s": whole, "loss": [], "blocks": blocks, "gaps": []} | changes
    return make_result(cell, ranks=[make_record(0, **fields)])


@given(patterns, st.integers(4, 30), st.integers(0, 11))
@example([0.75, 0.5, 1.0, 0.5, 1.0, 0.5], 4, 0)
def test_throughput_times_the_measured_time_is_the_samples(pattern, num_periods, phase):
    step_s = steps(pattern, num_periods, phase)
    found = launch(step_s)
    trained = launch_throughput(found) * step_s.sum()
    assert trained == pytest.approx(found.cell.global_batch * len(step_s))


@given(patterns, st.integers(4, 30), st.integers(0, 11), st.integers(0, 11))
def test_it_does_not_matter_where_in_a_period_the_window_begins(pattern, num, phase, rest):
    """Nor that it ends within one."""
    step_s = steps(pattern, num, phase)
    first = mean_of_steps(step_s)
    longer = np.concatenate([step_s, step_s[: rest % first.period]])
    assert mean_of_steps(longer).seconds == pytest.approx(float(np.mean(pattern)))


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_patterns_under_noise_have_their_period_and_their_mean(pattern):
    found = [mean_of_steps(steps(pattern, 8, seed, 0.1, seed)) for seed in range(40)]
    assert np.mean([one.period % len(pattern) == 0 for one in found]) > 0.9
    relative = np.array([one.seconds for one in found]) / np.mean(pattern) / np.exp(0.1**2 / 2)
    assert relative.mean() == pytest.approx(1, abs=0.02)
    told = np.sqrt(np.mean([one.variance for one in found]))
    assert 0.4 < told / relative.std() < 2.5


def test_only_evaluating_and_saving_is_taken_out_of_a_step():
    """After steps of 1 s: 5 s between two steps, of which 3 s evaluated and 1 s saved."""
    gap = {"step": 3, "seconds": 5.0, "evaluation_s": 3.0, "checkpoint_s": 1.0}
    step_s = [1.0, 1.0, 6.0, 1.0]
    assert clean_pace(launch(step_s, gaps=[StepGap(**gap)])) == [1, 1, 2, 1]
    cut = [Block(phase="clean", first=0, count=3), Block(phase="clean", first=3, count=2)]
    earlier = launch(step_s, gaps=[StepGap(**gap)], blocks=cut)
    assert clean_pace(earlier) == [1, 1, 2, 1]
    assert launch_step_s(earlier) == 5 / 4
    hidden = launch([1.0, 1.0, 1.5, 1.0], gaps=[StepGap(**gap)])  # another rank took as long
    assert clean_pace(hidden) == [1, 1, 1, 1]


def test_kinds_of_steps_in_words():
    assert kinds(kinds_of(steps(BURSTS, 9, 2))) == "3 of 4 steps take 2.00 ms, every 4th 156 ms"
    twice = kinds_of(steps([0.01, 0.01, 0.09, 0.09, 0.01], 9))
    assert kinds(twice) == "of 5 steps 2 take 90.0 ms, the others 10.0 ms"
    irregular = np.where(np.isin(np.arange(50), [3, 17, 19, 40]), 0.05, 0.01)
    told = "8 % of the steps take 50.0 ms, the others 10.0 ms"
    assert kinds(kinds_of(irregular)) == told
    assert kinds_of([0.1] * 9) is None
