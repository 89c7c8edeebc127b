"""How a law is scored and a name decided: each step by hand, or by another solver."""

import math

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from scipy.stats import chi2 as chi2_distribution
from scipy.stats import t as student

from scalebench.costmodel.links.fitting.fit import fit_links
from scalebench.costmodel.links.law_naming import (
    NONE,
    LawScore,
    _decide,
    _deviation,
    _laws,
    _line,
    _no_law,
    _score,
    name_law,
)
from scalebench.costmodel.links.laws import LAWS
from scalebench.errors import UsageError
from tests.builders.link_sweeps import line, sizes, sweep


def score(algorithm, criterion, chance=0.5, bandwidth=0.5, latency=0.5):
    return LawScore(
        algorithm=algorithm,
        chi2=1.0,
        criterion=criterion,
        chance=chance,
        num_unknowns=2,
        bandwidth_chance=bandwidth,
        latency_chance=latency,
    )


NOT_BY_LATENCY = ["parameter server"]


def test_all_laws_of_an_operation_with_a_latency_are_tried():
    laws = _laws("all_reduce", (2, 3, 5), None)
    expected = [name for op, name in LAWS if op == "all_reduce" and name not in NOT_BY_LATENCY]
    assert list(laws) == expected
    for name, design in laws.items():
        diagonals = [np.diag(LAWS["all_reduce", name](n)) for n in (2, 3, 5)]
        assert design == pytest.approx(np.array(diagonals))


def test_a_law_that_does_not_hold_for_one_of_the_numbers_is_left_out():
    assert list(_laws("all_gather", (2, 4, 8), None)) == ["ring", "recursive doubling"]
    assert list(_laws("all_gather", (2, 4, 6), None)) == ["ring"]


def test_the_hierarchy_has_the_latency_and_bandwidth_of_two_levels():
    """Three ranks a node: 2 of them, 3, and two nodes, and four nodes."""
    design = _laws("all_reduce", (2, 3, 6, 12), 3)["hierarchical"]
    assert design == pytest.approx(
        np.array(
            [
                [[2, 0, 0, 0], [0, 1, 0, 0]],
                [[4, 0, 0, 0], [0, 4 / 3, 0, 0]],
                [[4, 0, 2, 0], [0, 4 / 3, 0, 1 / 3]],
                [[4, 0, 6, 0], [0, 4 / 3, 0, 1.5 / 3]],
            ]
        )
    )


@pytest.mark.parametrize(
    ("op", "world_sizes", "per_node"),
    [("all_gather", (2, 4), 2), ("all_reduce", (2, 4), None), ("all_reduce", (2, 5), 3)],
)
def test_there_is_no_hierarchy_of_others(op, world_sizes, per_node):
    assert "hierarchical" not in _laws(op, world_sizes, per_node)


def test_ranks_that_do_not_fill_their_only_node_are_a_hierarchy_of_one():
    assert "hierarchical" in _laws("all_reduce", (2, 5), 7)


def test_a_line_is_widened_to_its_freedom_and_by_a_tenth():
    points = sweep(sizes(6), line(sizes(6)) * [1, 1.02, 0.98, 1.01, 1, 0.97], world_size=3)
    (fit,) = fit_links(points).fits
    (regime,) = fit.regimes
    theta, covariance = _line(fit, regime)
    assert theta == pytest.approx(
        np.array([4 * regime.alpha_s, 4 / 3 / regime.bandwidth_byte_per_s]), rel=1e-9, abs=0
    )
    widening = (student.ppf(0.975, regime.freedom) / student.ppf(0.975, 10**6)) ** 2
    v11, v12, v22 = regime.covariance
    expected = widening * np.array([[v11, v12], [v12, v22]]) + np.diag((0.1 * theta) ** 2)
    assert covariance == pytest.approx(expected, rel=1e-10, abs=0)


def test_a_line_of_nothing_keeps_a_tolerance():
    (fit,) = fit_links(sweep(sizes(5), line(sizes(5)))).fits
    none = fit.regimes[0].model_copy(
        update={"alpha_s": 0.0, "bandwidth_byte_per_s": None, "covariance": (0.0, 0.0, 0.0)}
    )
    theta, covariance = _line(fit, none)
    assert theta.tolist() == [0, 0]
    assert covariance == pytest.approx(np.array([[1e-24, 0], [0, 1e-36]]), rel=1e-9, abs=0)


def some_lines(count, seed):
    """Latency and slope at each N with covariances, of about (2n, 3)."""
    random = np.random.default_rng(seed)
    theta = np.stack((2.0 * np.arange(1, count + 1), np.full(count, 3.0)), axis=-1)
    theta += random.normal(0, 0.4, theta.shape)
    root = random.normal(0, 0.3, (count, 2, 2))
    return theta, root @ root.transpose(0, 2, 1) + 0.1 * np.eye(2)


@pytest.mark.parametrize("seed", range(5))
def test_chi2_is_generalised_least_squares_over_unknowns_that_are_not_negative(seed):
    theta, covariance = some_lines(4, seed)
    design = np.array([np.diag([k, 1.0]) for k in (1, 2, 3, 4)])
    if seed == 4:
        design[:, 1, 1] = -1.0  # the best slope would be negative: it is 0
    blocks = [np.linalg.cholesky(np.linalg.inv(c)).T for c in covariance]
    matrix = np.vstack([block @ d for block, d in zip(blocks, design, strict=True)])
    target = np.concatenate([block @ t for block, t in zip(blocks, theta, strict=True)])
    expected = 2 * lsq_linear(matrix, target, (0, np.inf)).cost
    chi2, chance = _deviation(design, theta, covariance)
    assert chi2 == pytest.approx(expected, rel=1e-6)
    assert chance == pytest.approx(chi2_distribution.sf(expected, 8 - 2), rel=1e-4)


def test_a_score_has_the_evidence_of_both_halves_alone():
    theta, covariance = some_lines(3, 7)
    design = np.array([np.diag([k, 1.0]) for k in (1, 2, 3)])
    found = _score("ring", design, theta, covariance)
    chi2, chance = _deviation(design, theta, covariance)
    assert (found.algorithm, found.num_unknowns) == ("ring", 2)
    assert (found.chi2, found.chance) == (chi2, chance)
    assert found.criterion == pytest.approx(chi2 + 2 * math.log(6))
    for part, p_value in ((0, found.latency_chance), (1, found.bandwidth_chance)):
        of = design[:, part, part]
        w = 1 / covariance[:, part, part]
        best = (w * of * theta[:, part]).sum() / (w * of**2).sum()
        alone = (w * (theta[:, part] - best * of) ** 2).sum()
        assert p_value == pytest.approx(chi2_distribution.sf(alone, 2))


def test_a_law_of_four_unknowns_is_not_judged_by_halves_and_needs_more_lines_than_them():
    theta, covariance = some_lines(3, 8)
    design = _laws("all_reduce", (2, 6, 12), 3)["hierarchical"]
    found = _score("hierarchical", design, theta, covariance)
    assert (found.num_unknowns, found.latency_chance, found.bandwidth_chance) == (4, None, None)
    assert found.criterion == pytest.approx(found.chi2 + 4 * math.log(6))
    assert _score("hierarchical", design[:2], theta[:2], covariance[:2]) is None
    inside = _laws("all_reduce", (1, 2, 3), 3)["hierarchical"]
    assert _score("hierarchical", inside, theta, covariance) is None


def test_two_lines_can_judge_two_unknowns_and_one_cannot():
    theta, covariance = some_lines(2, 9)
    design = np.array([np.diag([k, 1.0]) for k in (1, 2)])
    assert _score("ring", design, theta, covariance).num_unknowns == 2
    assert _score("ring", design[:1], theta[:1], covariance[:1]) is None


TREE, RING = score("tree", 20.0), score("ring", 10.0)


@pytest.mark.parametrize(
    ("world_sizes", "scores", "name", "reason"),
    [
        ((3,), [RING, TREE], None, "with N = 3 alone every law"),
        ((2, 4, 8), [], None, "no law could be judged"),
        ((2, 4, 8), [RING, TREE], "ring", "ring fits; the next, tree, by 10 worse"),
        ((2, 4, 8), [RING, TREE, score("star", 31.0)], "ring", "the next, tree, by 10 worse"),
        ((2, 4), [RING, TREE], None, "ring fits best, but two N can match"),
        ((2, 4, 8), [RING], None, "ring fits, but there is no other law"),
        ((2, 4, 8), [score("ring", 10.0, chance=0.01), TREE], "ring", "ring fits; the next"),
        ((2, 4, 8), [score("ring", 10.0, chance=0.0099), TREE], None, NONE),
        ((2, 4, 8), [RING, score("tree", 16.0)], "ring", "ring fits; the next, tree, by 6 worse"),
        (
            (2, 4, 8),
            [RING, score("tree", 15.9), score("star", 12.0), score("bus", 30.0)],
            None,
            "ring and tree and star fit equally well at N = 2, 4, 8: measure more",
        ),
        ((2, 4, 8), [RING, score("tree", 12.0, chance=0.01)], None, "ring and tree fit equally"),
        ((2, 4, 8), [RING, score("tree", 12.0, chance=0.0099)], "ring", "ring fits; the next"),
        ((2, 4, 8), [RING, score("hierarchical", 11.0)], "ring", "the next, hierarchical, by 1"),
        ((2, 4, 8), [TREE, score("hierarchical", 21.0)], None, "tree and hierarchical fit equally"),
    ],
)
def test_a_name_needs_a_law_that_fits_and_none_beside_it(world_sizes, scores, name, reason):
    found, why = _decide(world_sizes, scores)
    assert found == name
    assert why.startswith(reason) or reason in why


def test_where_no_law_fits_those_that_fit_by_one_half_are_said():
    scores = [
        score("ring", 1.0, bandwidth=0.01, latency=0.0099),
        score("tree", 2.0, bandwidth=0.0, latency=0.02),
        score("star", 3.0, bandwidth=0.7, latency=None),
    ]
    assert _no_law(scores) == (
        f"{NONE}; the bandwidths alone would fit ring, star; latencies alone would fit tree"
    )
    assert _no_law([score("ring", 1.0, bandwidth=0.0, latency=0.0)]) == NONE


def two_regimes(world_size):
    """Another α and B from 200 kB on."""
    size = sizes(16)
    n = world_size
    slow = 2 * (n - 1) * 1e-5 + 2 * (n - 1) / n * size / 1e8
    fast = 2 * (n - 1) * 1e-4 + 2 * (n - 1) / n * size / 1e10
    return sweep(size, np.where(size < 200_000, slow, fast), world_size=n)


@pytest.mark.parametrize("regime", ["smallest", "largest"])
def test_the_ranges_are_those_of_the_regime_that_was_judged(regime):
    size = [int(one) for one in sizes(16)]
    below, above = [d for d in size if d < 200_000], [d for d in size if d > 200_000]
    found = name_law([p for n in (5, 2, 3) for p in two_regimes(n)], regime=regime)
    expected = below if regime == "smallest" else above
    assert found.world_sizes == (2, 3, 5)
    assert found.ranges_bytes == ((expected[0], expected[-1]),) * 3
    assert (found.regime, found.op, found.left_out) == (regime, "all_reduce", ())
    criteria = [one.criterion for one in found.scores]
    assert criteria == sorted(criteria)


def test_the_largest_messages_are_judged_if_nothing_else_is_said():
    points = [p for n in (2, 3) for p in two_regimes(n)]
    assert name_law(points) == name_law(points, None, "largest")


def test_the_first_of_several_reasons_is_told():
    points = [*sweep(sizes(2), [1.0, 2.0], dtype="int8"), *sweep([8], [1.0], dtype="float64")]
    with pytest.raises(UsageError, match=r"No number of ranks could be fitted: .*int8: 2 sizes"):
        name_law(points)


def test_of_several_kinds_three_are_told():
    points = [p for link in "dcba" for p in sweep(sizes(3), line(sizes(3)), link=link)]
    with pytest.raises(UsageError) as caught:
        name_law(points)
    assert [f"'{link}'" in str(caught.value) for link in "abcd"] == [True] * 3 + [False]
