"""Launches that took turns: merged by run, compared within their rounds."""

import gzip
import json
import math
from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from benchmarks import gate_interleaved
from scalebench.gate.change import change_between
from scalebench.gate.family import TRIMMED, Pair, judge, paired
from scalebench.gate.merging import merged
from scalebench.gate.observation import measured
from scalebench.gate.result import WORSE
from tests.builders.gated import gated, gated_run, verdict_of
from tests.builders.repository.field_files import field_file


def drifting(seed, factor, drift):
    """One run for each round, all its steps slower by the round's drift."""
    return [
        gated_run(
            {(case, n): factor * level for case in ("ddp", "ddp-small") for n in (2, 4)}
            | {("plain", 1): level},
            num_launches=1, seed=seed + 10 * number, run_id=f"run-{seed}-{number}",
        )
        for number, level in enumerate(drift)
    ]  # fmt: skip


@pytest.mark.parametrize("num_rounds", [2, 6, 7, 14, 30])
def test_the_interval_is_that_of_yuen_s_test_of_the_differences(num_rounds):
    generator = np.random.default_rng(0)
    drift = generator.normal(0, 1, num_rounds)
    base, new = (drift + generator.normal(level, 0.1, num_rounds) for level in (0.0, 0.2))
    change = change_between(*paired(measured(base), measured(new)))
    expected = stats.ttest_ind(new - base, np.zeros(num_rounds), equal_var=False, trim=TRIMMED)
    assert change.p_value(1) == pytest.approx(expected.pvalue / 2, rel=1e-9)
    kept = stats.trim_mean(new - base, TRIMMED)
    assert change.value == pytest.approx(kept)


def test_rounds_in_which_something_else_ran_neither_hide_a_change_nor_make_one():
    """Two rounds of fourteen, once for either version, in which a step takes half as long again."""
    generator = np.random.default_rng(0)
    base, same = generator.normal(0, 0.02, (2, 14))
    base[3], same[9] = 0.4, 0.5
    found = change_between(*paired(measured(base), measured(same + 0.05)), confidence=0.992)
    low, high = found.interval
    assert 0 < low < 0.05 < high < 0.1
    low, high = change_between(*paired(measured(base), measured(same)), confidence=0.992).interval
    assert -0.05 < low < 0 < high < 0.05


def test_drift_hides_a_change_between_runs_and_not_between_rounds():
    """Three percent, on a machine that gets slower by a fifth meanwhile."""
    drift = [1.0, 1.08, 1.15, 1.2, 1.1]
    base, new = merged(drifting(1, 1.0, drift)), merged(drifting(2, 1.03, drift))
    assert verdict_of(gated(base, new), "step_s").verdict == "no change seen"
    found = verdict_of(gated(base, new, rounds=True), "step_s")
    assert found.verdict == "regressed" and found.change == pytest.approx(0.03, abs=0.005)
    same = gated(base, merged(drifting(3, 1.0, drift)), rounds=True)
    assert verdict_of(same, "step_s").verdict == "unchanged"


def test_comparisons_of_kept_rounds_are_red_where_a_slower_version_was_planted(tmp_path):
    """``python -m benchmarks.gate_interleaved``, with fourteen rounds of two equal versions."""
    drift = [1.0, 1.08, 1.15, 1.2, 1.1, 0.9, 1.0] * 2
    base, new = (merged(drifting(seed, 1.0, drift)) for seed in (1, 1001))
    gate_interleaved.keep(tmp_path, (base, new, [6.0] * len(drift)))
    found = gate_interleaved.compared(gate_interleaved.kept(tmp_path), comparisons=2)
    red = {planted: [is_red for is_red, _ in judged] for planted, judged in found.items()}
    assert red == {
        "equal": [False, False],
        "5 % slower at the largest N": [True, True],
        "5 % slower everywhere": [True, True],
    }
    assert all(0 < took_s <= 6.0 * len(drift) for judged in found.values() for _, took_s in judged)


SIDE = 7
"""At most so many runs on a side."""


def log_steps():
    """For each program that ran four times or more, the logarithm of each run's mean step."""
    found = defaultdict(list)
    with gzip.open(field_file("steps/speedruns_8xH100.jsonl.gz"), "rt") as lines:
        for run in map(json.loads, lines):
            elapsed = run["elapsed_ms"][len(run["elapsed_ms"]) // 10 :]  # the first ones compile
            if len(elapsed) >= 20 and (mean := float(np.mean(elapsed)) / run["step_gap"][0]) > 0:
                found[run["code"]].append(math.log(mean))
    return [runs for runs in found.values() if len(runs) >= 4]


def is_red(base, new, slower=0.0):
    up, down = math.log1p(0.01), -math.log1p(-0.01)
    slowed = [step + math.log1p(slower) for step in new]
    [one] = judge([Pair("step_s", measured(base), measured(slowed), up, down)])
    return one.finding in WORSE


def test_of_gates_between_real_runs_of_equal_code_at_most_one_in_a_hundred_is_red():
    """In the order in which they ran, and dealt out by chance; 5 % slower is mostly found."""
    generator = np.random.default_rng(8)
    programs = log_steps()
    splits = [runs for runs in programs]
    splits += [list(generator.permutation(runs)) for runs in programs for _ in range(5)]
    halves = [(min(len(runs) // 2, SIDE), runs) for runs in splits]
    sides = [(runs[:half], runs[half : 2 * half]) for half, runs in halves]
    assert len(programs) >= 40
    assert sum(is_red(*pair) for pair in sides) <= 0.01 * len(sides)
    assert sum(is_red(*pair, slower=0.05) for pair in sides) >= 0.8 * len(sides)
