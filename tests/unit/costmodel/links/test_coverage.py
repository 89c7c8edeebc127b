"""What the fits' statistics claim, counted over thousands of made-up sweeps.

Seeds are fixed: the counts are the same at every run. Limits stand several standard errors of
the count away from the claim. Prints what it counted; ``pytest -s`` shows it.
"""

from collections.abc import Iterable

import numpy as np
import pytest

from scalebench.costmodel.links.fitted import LinkFit
from scalebench.costmodel.links.fitting import fit_links
from tests.builders.link_sweeps import ALPHA_S, BANDWIDTH, line, many, noisy, sizes

pytestmark = pytest.mark.slow

REPEATS = 1000


def shares_covered(fits: Iterable[LinkFit]) -> tuple[float, float]:
    """How often the intervals of α and of B hold the truth."""
    alpha, bandwidth = [], []
    for fit in fits:
        small, large = fit.regimes[0], fit.regimes[-1]
        alpha.append(small.alpha_low_s <= ALPHA_S <= small.alpha_high_s)
        high = large.bandwidth_high_byte_per_s or np.inf
        bandwidth.append(large.bandwidth_low_byte_per_s <= BANDWIDTH <= high)
    return float(np.mean(alpha)), float(np.mean(bandwidth))


def told(covered: tuple[float, float]) -> str:
    return f"α {covered[0]:.3f}, B {covered[1]:.3f}"


@pytest.mark.parametrize("share", [0.0, 0.05], ids=["quiet", "busy"])
@pytest.mark.parametrize("sigma", [0.02, 0.15])
@pytest.mark.parametrize("count", [6, 12, 25])
def test_intervals_hold_the_truth_as_often_as_they_say(count, sigma, share):
    """95 % claimed. Quiet, and with 5 % of the points 1.3 to 4 times as slow."""
    fits = fit_links(many(REPEATS, sizes(count), line, sigma, seed=count, share=share)).fits
    covered = shares_covered(fits)
    print(f"\n{count} sizes, noise {sigma}, {share:.0%} disturbed: {told(covered)}")
    assert all(0.93 <= part <= 0.97 for part in covered), covered


def test_three_sizes_give_an_honest_interval():
    fits = fit_links(many(REPEATS, sizes(3), line, 0.05, seed=3)).fits
    assert all(0.93 <= part <= 0.97 for part in shares_covered(fits))
    widths = [fit.regimes[0].alpha_high_s / ALPHA_S for fit in fits]
    assert np.median(widths) > 1.2  # one degree of freedom: wide, and it says so


def test_a_latency_that_cannot_be_told_from_zero_says_so():
    """α is 0.2 % of the smallest time: no interval pretends to know it."""
    size = sizes(12, 10_000_000, 1 << 34)
    fits = fit_links(many(REPEATS, size, line, 0.1, seed=4)).fits
    alpha, bandwidth = shares_covered(fits)
    assert alpha >= 0.93
    assert 0.93 <= bandwidth <= 0.97
    assert np.mean([fit.regimes[0].alpha_low_s == 0 for fit in fits]) > 0.95


@pytest.mark.parametrize("size", [1000, 10**5, 10**8])
def test_predictions_hold_a_further_measurement_as_often_as_they_say(size):
    fits = fit_links(many(REPEATS, sizes(15), line, 0.05, seed=6)).fits
    predicted = [p for p in (fit.predict(size) for fit in fits) if p.outside is None]
    assert len(predicted) > 0.98 * len(fits)
    further = np.full(len(predicted), line(np.array(size)))
    further = noisy(further, 0.05, np.random.default_rng(7))
    inside = [p.low_s <= t <= p.high_s for p, t in zip(predicted, further, strict=True)]
    print(f"\n{size} B: {np.mean(inside):.3f}")
    assert 0.93 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize(
    ("count", "sigma", "share", "most"),
    [
        (8, 0.15, 0.0, 0.01),
        (25, 0.03, 0.0, 0.01),
        (8, 0.03, 0.05, 0.015),
        (25, 0.15, 0.05, 0.015),
        (12, 0.03, 0.1, 0.03),
        (25, 0.03, 0.1, 0.03),
    ],
)
def test_a_straight_line_is_hardly_ever_cut(count, sigma, share, most):
    """At most once in a hundred quiet sweeps; a busy machine's outliers are no regimes."""
    fits = fit_links(many(REPEATS, sizes(count), line, sigma, seed=8, share=share)).fits
    cut = np.mean([len(fit.regimes) > 1 for fit in fits])
    print(f"\n{count} sizes, noise {sigma}, {share:.0%} disturbed: cut {cut:.4f}")
    assert cut <= most


@pytest.mark.parametrize(("share", "least"), [(0.0, 0.97), (0.05, 0.85)])
def test_a_change_of_regime_is_found_in_its_place(share, least):
    """B changes by a factor of 1.5 between two sizes, α does not."""
    change = 300_000

    def law(size):
        return 2 * ALPHA_S + size / np.where(size < change, BANDWIDTH, 1.5 * BANDWIDTH)

    fits = fit_links(many(REPEATS, sizes(25), law, 0.03, seed=9, share=share)).fits
    cuts = [[r.min_bytes for r in fit.regimes[1:]] for fit in fits]
    ends = [[r.max_bytes for r in fit.regimes[:-1]] for fit in fits]
    found = [len(c) == 1 and e[0] < change < c[0] for c, e in zip(cuts, ends, strict=True)]
    print(f"\n{share:.0%} disturbed: found {np.mean(found):.3f}")
    assert np.mean(found) >= least
