"""The statistics of the gate, against scipy and against simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scalebench.gate.change import (
    change_between,
    further_launches,
    rank_p_value,
)
from scalebench.gate.family import Pair, judge
from scalebench.gate.observation import Measured, measured, median_variance
from scalebench.gate.result import WORSE
from scalebench.gate.variance import typical_variance
from scalebench.stats import Variance

values = st.lists(st.floats(-5, 5), min_size=3, max_size=6)


def side(numbers) -> Measured:
    array = np.asarray(numbers, dtype=float)
    return measured(array)


def autocorrelated(generator, num_steps, correlation=0.6, spread=0.03):
    """Logarithms of steps whose neighbours are alike; shape (num_steps,)."""
    noise = generator.normal(0, 1, num_steps)
    for step in range(1, num_steps):
        fresh = math.sqrt(1 - correlation**2) * noise[step]
        noise[step] = correlation * noise[step - 1] + fresh
    return spread * noise


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


@pytest.mark.parametrize(("dof", "rows"), [(4, 2000), (20, 2000)])
def test_what_is_typical_is_recovered(dof, rows):
    """Variances drawn from the model that the estimate assumes."""
    generator = np.random.default_rng(3)
    true = 1e-4 * dof / generator.chisquare(dof, rows)
    seen = [Variance(float(v * generator.chisquare(4) / 4), 4) for v in true]
    typical = typical_variance(seen)
    assert typical.value == pytest.approx(1e-4, rel=0.1)
    assert typical.dof == pytest.approx(dof, rel=0.3)


def test_the_block_bootstrap_knows_that_neighbours_are_alike():
    """The spread over many launches of the same level, against what one launch says of itself."""
    generator = np.random.default_rng(11)
    launches = [np.exp(autocorrelated(generator, 400)) for _ in range(60)]
    true = float(np.var([np.log(np.median(steps)) for steps in launches], ddof=1))
    told = float(np.mean([median_variance(list(steps)) for steps in launches]))
    assert told == pytest.approx(true, rel=0.45)
    independent = 1.57 * 0.03**2 / 400
    assert told > 2 * independent, "single steps are no unit"


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


@pytest.mark.parametrize("rows", [1, 12])
def test_what_is_said_to_be_detectable_is_detected(rows):
    """95 times in 100, within the simulation's own error."""
    generator = np.random.default_rng(23)
    said = np.mean([judge(pairs_with(generator, rows, 0.01))[0].min_detectable for _ in range(40)])
    effect = math.expm1(float(said))
    found = [judge(pairs_with(generator, rows, 0.01, effect))[0].finding for _ in range(200)]
    assert 0.89 <= sum(one in WORSE for one in found) / 200 <= 0.995


@pytest.mark.parametrize("part", [0.3, 0.8, 0.9])
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


def test_the_family_raises_the_bar():
    """What one row alone would be called is not called so among two hundred."""
    base, new = [0.0, 0.01, -0.01, 0.005, -0.005], [0.035, 0.045, 0.025, 0.04, 0.03]
    pair = Pair("alone", measured(base), measured(new), floor=0.01, floor_down=0.01)
    quiet = [
        Pair(f"{i}", measured([0, 1e-3, -1e-3, 0, 0]), measured([0, 1e-3, -1e-3, 0, 0]), 0.01, 0.01)
        for i in range(200)
    ]
    assert judge([pair])[0].finding == "regressed"
    crowded = judge([pair, *quiet])[0]
    assert crowded.finding == "no change seen"
    assert crowded.p_value > judge([pair])[0].p_value
    shown_only = Pair(**{**vars(pair), "decides": False})
    apart = Pair(**{**vars(shown_only), "kind": "another"})
    assert judge([pair, *[apart] * 200])[0].p_value == judge([pair])[0].p_value
