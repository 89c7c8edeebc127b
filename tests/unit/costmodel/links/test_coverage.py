"""What the fits' statistics claim, counted over thousands of made-up sweeps.

Seeds are fixed: the counts are the same at every run. Limits stand several standard errors of
the count away from the claim. Prints what it counted; ``pytest -s`` shows it.
"""

from collections.abc import Iterable

import numpy as np
import pytest

from scalebench.costmodel.links.against_nominal import against_link
from scalebench.costmodel.links.fitted import LinkFit
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.laws import ring_all_reduce, ring_gather
from scalebench.costmodel.links.times import LinkModel, NoFit
from scalebench.errors import UsageError
from tests.builders.link_sweeps import (
    ALPHA_S,
    BANDWIDTH,
    at_several_sizes,
    line,
    many,
    noisy,
    point,
    sizes,
    sweep,
)

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


def all_reduce(busbw, size=1 << 30, **changes):
    """Eight ranks whose all-reduce of ``size`` has this bus bandwidth."""
    return point(size, 14 / 8 * size / busbw, world_size=8, **changes)


def test_own_algorithms_and_what_has_no_bus_bandwidth_are_left_out():
    points = [all_reduce(1e9, algorithm="ring"), all_reduce(1e9, op="all_to_all_uneven")]
    assert against_link(points, "pcie5") == []


def test_an_unknown_link_lists_the_valid_ones():
    with pytest.raises(UsageError, match="nvlink4"):
        against_link([], "nvlink")


@pytest.mark.parametrize(
    ("share", "word"),
    [
        (0.749, "something else limits it"),
        (0.75, "the link is well used"),
        (1.0, "the link is well used"),
        (1.001, "above the link"),
    ],
)
def test_a_link_is_well_used_from_three_quarters_to_all_of_it(share, word):
    (found,) = against_link([point(share * 75e9, 0.5, op="broadcast")], "nvlink2")
    assert found.share == pytest.approx(share)
    assert word in found.sentence


SIZES = sizes(16, 1 << 10, 1 << 24)


def model_of(*world_sizes, drift=0.0, seed=1, law=ring_all_reduce, op="all_reduce"):
    points = at_several_sizes(law, world_sizes, seed, drift, op, SIZES)
    return LinkModel(fit_links(points).fits)


@pytest.mark.parametrize("world_size", [2, 4, 8, 64])
def test_it_follows_the_law_to_sizes_and_ranks_that_were_not_measured(world_size):
    model = model_of(2, 4)
    for size in (3000, 10**6, 5 * 10**6):
        truth = ring_all_reduce(world_size).time_s(size, ALPHA_S, BANDWIDTH)
        found = model.time("all_reduce", world_size, size)
        assert found.time_s == pytest.approx(truth, rel=0.12)
        assert found.low_s <= found.time_s <= found.high_s


@pytest.mark.parametrize(("world_size", "nearest"), [(3, 2), (4, 2), (40, 64), (200, 64)])
def test_between_two_measured_numbers_the_nearer_one_answers(world_size, nearest):
    """At 64 ranks the links were twice as slow."""
    exact = {
        n: [ring_all_reduce(n).time_s(int(d), ALPHA_S, BANDWIDTH) for d in SIZES] for n in (2, 64)
    }
    points = sweep(SIZES, np.array(exact[2]), world_size=2)
    points += sweep(SIZES, 2 * np.array(exact[64]), world_size=64)
    model = LinkModel(fit_links(points).fits)
    truth = ring_all_reduce(world_size).time_s(10**6, ALPHA_S, BANDWIDTH)
    slower = 1 if nearest == 2 else 2
    assert model.time("all_reduce", world_size, 10**6).time_s == pytest.approx(
        slower * truth, rel=0.02
    )
    factor = ring_all_reduce(world_size).bytes_factor
    term = model.bandwidth_term("all_reduce", world_size, 10**6)
    assert term == pytest.approx(slower * factor * 10**6 / BANDWIDTH, rel=0.02)


def test_intervals_cover_what_the_law_gives_at_twice_the_ranks():
    truth = ring_all_reduce(8).time_s(10**6, ALPHA_S, BANDWIDTH)
    found = [model_of(2, 4, drift=0.02, seed=s).time("all_reduce", 8, 10**6) for s in range(40)]
    assert np.mean([f.low_s <= truth <= f.high_s for f in found]) >= 0.9


def test_below_forgets_a_number_of_ranks_and_all_larger_ones():
    model = model_of(2, 4, 8)
    assert model.world_sizes == (2, 4, 8)
    assert model.below(8).world_sizes == (2, 4)
    with pytest.raises(NoFit, match="no all_reduce was calibrated"):
        model.below(2).time("all_reduce", 2, 1000)


def test_each_operation_has_its_own_fit():
    with pytest.raises(NoFit, match="no all_gather"):
        model_of(2).time("all_gather", 2, 1000)
    gathers = model_of(2, law=ring_gather, op="all_gather")
    truth = ring_gather(2).time_s(10**6, ALPHA_S, BANDWIDTH)
    assert gathers.time("all_gather", 2, 10**6).time_s == pytest.approx(truth, rel=0.1)


def test_each_doubling_of_the_ranks_widens_the_interval_alike_and_the_first_counts_twice():
    """What one doubling moved, from 2 to 4 ranks, is what the next may move again."""
    model = model_of(2, 4, drift=0.05)
    found = [model.time("all_reduce", n, 10**7) for n in (4, 8, 16, 32)]
    widths = np.array([np.log(each.high_s / each.low_s) for each in found])
    own, *others = np.diff(widths)
    assert others == pytest.approx([own / 2] * 2, rel=0.1)
