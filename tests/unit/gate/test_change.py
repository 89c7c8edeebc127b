import gzip
import json
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scalebench.gate.change import change_between, further_launches, rank_p_value
from scalebench.gate.family import TRIMMED, Pair, judge, paired
from scalebench.gate.observation import Measured, measured
from scalebench.gate.result import WORSE
from scalebench.stats import Variance
from tests.builders.repository.field_files import field_file
from tests.examples import cases

values = st.lists(st.floats(-5, 5), min_size=3, max_size=6)


def side(numbers):
    array = np.asarray(numbers, dtype=float)
    return measured(array)


@given(values, values)
def test_the_interval_and_p_value_are_those_of_welch(base, new):
    if np.std(base) < 1e-3 or np.std(new) < 1e-3:
        return
    change = change_between(side(base), side(new))
    expected = stats.ttest_ind(new, base, equal_var=False, alternative="greater")
    assert change.p_value(1) == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    low, high = stats.ttest_ind(new, base, equal_var=False).confidence_interval(0.95)
    assert change.interval == pytest.approx((low, high), rel=1e-6, abs=1e-9)


def test_whole_jobs_share_one_estimate_of_their_noise_unless_it_differs():
    """As many jobs a side: Student's pooled t. Where one side is far noisier: Welch's."""
    base, new = [1.0, 2.0, 4.0], [2.0, 3.5, 4.0]
    expected = stats.ttest_ind(new, base, alternative="greater")
    found = change_between(side(base), side(new), jobs=True)
    assert found.p_value(1) == pytest.approx(expected.pvalue, rel=1e-9)
    for noisy in ([2.0, 30.0, 40.0], [*new, 3.0]):
        apart = change_between(side(base), side(noisy), jobs=True)
        assert apart == change_between(side(base), side(noisy))


def test_the_rank_test_is_scipys_exact_one():
    generator = np.random.default_rng(5)
    for _ in range(20):
        base, new = generator.normal(0, 1, 5), generator.normal(0.5, 1, 6)
        expected = stats.mannwhitneyu(new, base, alternative="greater", method="exact")
        assert rank_p_value(list(base), list(new), 1) == pytest.approx(expected.pvalue)


def pairs_with(generator, rows, sd, effect=0.0, launches=5):
    """Rows alike in their noise; the first is slower by ``effect``."""
    found = []
    for row in range(rows):
        base = generator.normal(0, sd, launches)
        new = generator.normal(math.log1p(effect) if row == 0 else 0.0, sd, launches)
        found.append(
            Pair("step_s", measured(base), measured(new), math.log1p(0.01), -math.log1p(-0.01))
        )
    return found


@cases("rows", 1, 12)
def test_what_is_said_to_be_detectable_is_detected(rows):
    """95 times in 100, within the simulation's own error."""
    generator = np.random.default_rng(23)
    said = np.mean([judge(pairs_with(generator, rows, 0.01))[0].min_detectable for _ in range(40)])
    effect = math.expm1(float(said))
    found = [judge(pairs_with(generator, rows, 0.01, effect))[0].finding for _ in range(200)]
    assert 0.89 <= sum(one in WORSE for one in found) / 200 <= 0.995


@cases("part", 0.3, 0.8, 0.9)
def test_the_further_launches_decide_and_one_fewer_does_not(part):
    """With floors far below and just below the change."""
    generator = np.random.default_rng(2)
    base, new = side(generator.normal(0, 0.01, 5)), side(generator.normal(0.03, 0.01, 5))
    floor = part * (new.center - base.center)
    more = further_launches(base, new, floor, 1, 0.99)
    assert more and more > 0

    def decided(extra):
        grown = [
            Measured(s.center, 5 + extra, Variance(s.variance.value, 4 + extra))
            for s in (base, new)
        ]
        low, high = change_between(*grown, 0.99).interval
        return low > floor or high < floor

    assert decided(more) and not decided(more - 1)


@cases("num_rounds", 2, 6, 7, 14, 30)
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
