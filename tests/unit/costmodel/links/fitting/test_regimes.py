"""The search for changes of regime, against the same search of one sweep in plain loops."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.stats import f as f_distribution

from scalebench.costmodel.links.fitting.lines import fit_lines
from scalebench.costmodel.links.fitting.regimes import (
    _best_cuts,
    _piece_rss,
    _rss,
    _shapes,
    _ways_to_cut,
    find_regimes,
    regime_weights,
)

LEAST = 4
"""Sizes of a regime."""


def cuts_of(places, pieces):
    """All ways to cut so many places into pieces of four or more: where all but the first begin."""
    for cuts in combinations(range(1, places), pieces - 1):
        ends = [0, *cuts, places]
        if all(b - a >= LEAST for a, b in pairwise(ends)):
            yield cuts


@pytest.mark.parametrize("pieces", [2, 3])
@pytest.mark.parametrize("n", range(4, 18))
def test_ways_to_cut_are_counted(n, pieces):
    ways = len(list(cuts_of(n, pieces)))
    assert _ways_to_cut(n, pieces) == max(ways, 1)


def test_the_best_cuts_have_the_least_total():
    random = np.random.default_rng(1)
    piece = random.uniform(1.0, 9.0, (30, 7, 7))
    found = _best_cuts(piece)
    assert set(found) == {2, 3}
    for s in range(30):
        one = min(range(7), key=lambda i: piece[s, 0, i] + piece[s, i, 6])
        pairs = [(i, j) for i in range(7) for j in range(7)]
        two = min(pairs, key=lambda p: piece[s, 0, p[0]] + piece[s, p[0], p[1]] + piece[s, p[1], 6])
        assert found[2][s].tolist() == [one]
        assert found[3][s].tolist() == list(two)


def test_each_regime_keeps_the_weights_of_its_own_points():
    labels = np.array([[0, 0, 1, 1, 2], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]])
    weights = np.array([[1.0, 2, 3, 4, 5], [6, 7, 8, 9, 0], [2, 0, 4, 5, 6]])
    owner, inside = regime_weights(labels, weights)
    assert owner.tolist() == [0, 0, 0, 1, 2, 2]
    assert inside.tolist() == [
        [1, 2, 0, 0, 0],
        [0, 0, 3, 4, 0],
        [0, 0, 0, 0, 5],
        [6, 7, 8, 9, 0],
        [2, 0, 0, 0, 0],
        [0, 0, 4, 5, 6],
    ]


def rss_of(size, log_time, weights):
    """Of one line through these points."""
    x = np.stack((np.ones_like(size), size), axis=-1)
    return float(fit_lines(x[None], log_time[None], weights[None]).rss[0])


def test_a_sweeps_residuals_are_those_of_all_its_lines():
    random = np.random.default_rng(2)
    size = np.tile(np.geomspace(8, 2**24, 9), (2, 1))
    log_time = random.normal(size=(2, 9))
    weights = random.uniform(0.5, 2, (2, 9))
    labels = np.array([[0] * 4 + [1] * 5, [0] * 9])
    parts = [(0, slice(0, 4)), (0, slice(4, 9)), (1, slice(0, 9))]
    each = [rss_of(size[s, p], log_time[s, p], weights[s, p]) for s, p in parts]
    found = _rss(labels, size, log_time, weights)
    assert found == pytest.approx([each[0] + each[1], each[2]])


def test_shapes_reach_from_pure_bandwidth_to_pure_latency():
    """h from an eighth of the smallest size that counts to eight times the largest, 32 of them."""
    size = np.array([[16.0, 64, 100, 4096]])
    shapes, slopes = _shapes(size, np.array([[1.0, 2.0, 1.0, 0.0]]))
    half = 2 * (800 / 2) ** (np.arange(32) / 31)
    assert shapes[0] == pytest.approx(np.log(half[:, None] + size))
    expected = half[:, None] / (half[:, None] + size)
    expected[[0, 31]] = 0.0
    assert slopes[0] == pytest.approx(expected)


def piece_rss_of(size, log_time, weights, shapes, slopes):
    """Of one piece: for each h the sum of squares, and one Gauss–Newton step from the best."""
    found = []
    for shape, slope in zip(shapes, slopes, strict=True):
        rest = log_time - shape
        rest = rest - np.average(rest, weights=weights)
        moved = slope - np.average(slope, weights=weights)
        curvature = max((weights * moved**2).sum(), 1e-12)
        gain = (weights * moved * rest).sum() ** 2 / curvature
        found.append(((weights * rest**2).sum(), gain))
    least, gain = min(found)
    return max(least - gain, 0.0)


def test_the_residuals_of_every_piece():
    random = np.random.default_rng(3)
    size = np.tile(np.geomspace(8, 2**24, 10), (3, 1))
    log_time = np.log(1e-5 + size / 1e9) + random.normal(0, 0.2, (3, 10))
    weights = random.uniform(0.5, 2, (3, 10))
    weights[1, [0, 3]] = 0.0  # set aside
    weights[2, 8:] = 0.0  # padding
    shapes, slopes = _shapes(size, weights)
    found = _piece_rss(size, log_time, weights)
    assert found.shape == (3, 11, 11)
    finite = 0
    for s in range(3):
        for i in range(11):
            for j in range(11):
                inside = slice(i, j)
                many = np.count_nonzero(weights[s, inside]) >= LEAST
                if not many or (i > 0 and weights[s, i] == 0):
                    assert found[s, i, j] == math.inf
                    continue
                w, parts = weights[s, inside], (shapes[s][:, inside], slopes[s][:, inside])
                expected = piece_rss_of(size[s, inside], log_time[s, inside], w, *parts)
                assert found[s, i, j] == pytest.approx(expected, rel=1e-6, abs=1e-12)
                exact = rss_of(size[s, inside], log_time[s, inside], w)
                assert found[s, i, j] == pytest.approx(exact, rel=0.1, abs=0.01)
                finite += 1
    assert finite == 28 + 20 + 25


def test_no_piece_of_an_exact_line_has_less_than_no_residuals():
    size = np.tile(np.geomspace(8, 2**24, 20), (3, 1))
    times = np.array([[1e-5], [1e-3], [0.0]]) + size / 1e9
    found = _piece_rss(size, np.log(times), np.ones((3, 20)))
    assert (found >= 0).all()


def regimes_of(size, log_time, weights):
    """Do for one sweep what `find_regimes` says; also return how near it came to one more cut."""
    places, count = len(size), np.count_nonzero(weights)
    labels, nearest = np.zeros(places, dtype=int), math.inf
    if count < 2 * LEAST:
        return labels, nearest
    piece = _piece_rss(size[None], log_time[None], weights[None])[0]
    chosen, rss = 1, rss_of(size, log_time, weights)
    for pieces in (2, 3):
        if count < pieces * LEAST:
            continue
        ends = {cut: [0, *cut, places] for cut in combinations(range(1, places), pieces - 1)}
        total = {cut: sum(piece[a, b] for a, b in pairwise(e)) for cut, e in ends.items()}
        best = min(total, key=total.__getitem__)
        parts = [slice(a, b) for a, b in pairwise(ends[best])]
        new_rss = sum(rss_of(size[p], log_time[p], weights[p]) for p in parts)
        dof = max(count - 2 * pieces, 1)
        extra = 2 * (pieces - chosen)
        ratio = max(rss - new_rss, 0) / extra / max(new_rss / dof, 0.01**2)
        ways = len(list(cuts_of(count, pieces)))
        p_value = f_distribution.sf(ratio, extra, dof) * ways
        nearest = min(nearest, abs(math.log(max(p_value, 1e-300) / 0.005)))
        if p_value < 0.005:  # 1 % in all for two questions
            chosen, rss = pieces, new_rss
            labels = sum((np.arange(places) >= cut).astype(int) for cut in best)
    return labels, nearest


def doubtful_sweeps(count, num_sizes, seed):
    """Sweeps with one or two changes that are about as large as it takes to see them."""
    random = np.random.default_rng(seed)
    size = np.tile(np.geomspace(8, 2**26, num_sizes), (count, 1))
    log_time = np.log(1e-5 + size / 1e9) + 0.05 * random.standard_normal((count, num_sizes))
    place = np.arange(num_sizes)
    step = random.uniform(0.05, 0.6, (2, count, 1))
    log_time += step[0] * (place >= num_sizes // 3)
    log_time -= step[1] * (place >= 2 * num_sizes // 3) * random.integers(0, 2, (count, 1))
    weights = random.uniform(0.8, 1.25, (count, num_sizes))
    weights[random.random(weights.shape) < 0.03] = 0.0
    return size, log_time, weights


@pytest.mark.parametrize(
    ("num_sizes", "count"), [(7, 5), (8, 70), (9, 30), (11, 30), (12, 30), (13, 30), (16, 20)]
)
def test_doubtful_changes_are_judged_as_one_by_one(num_sizes, count):
    """Once more sweeps than are worked on at once; some come near to the limit."""
    sweeps = doubtful_sweeps(count, num_sizes, num_sizes)
    found = find_regimes(*sweeps)
    one_by_one = [regimes_of(*sweep) for sweep in zip(*sweeps, strict=True)]
    for mine, (expected, _) in zip(found, one_by_one, strict=True):
        assert mine.tolist() == expected.tolist()
    kinds = {int(labels.max()) for labels, _ in one_by_one}
    assert kinds == {0} if num_sizes < 8 else {0, 1} <= kinds
    if num_sizes > 7:
        assert min(nearest for _, nearest in one_by_one) < 0.4


@pytest.mark.parametrize(("step", "cut"), [(0.04, 0), (0.08, 1)])
def test_scatter_below_one_percent_is_no_reason_to_cut(step, cut):
    """4 % apart: by a scatter of 0.05 % certain, by what sweeps repeat to it is not."""
    size = np.geomspace(8, 2**26, 12)[None]
    log_time = np.log(1e-5 + size / 1e9) + step * (np.arange(12) >= 4)
    log_time += 0.0005 * np.random.default_rng(1).standard_normal((1, 12))
    assert find_regimes(size, log_time, np.ones((1, 12))).max() == cut
