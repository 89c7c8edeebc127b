"""Which algorithm's law explains the times at several numbers of ranks together.

At one number of ranks every law is the same straight line, with another α and another B. The laws
differ in how the line's latency and slope grow with N. So each N is fitted by itself (`fitting`),
and every law is scored by how well one α and one B explain all lines: generalised least squares
of the fitted latencies and slopes, with their covariances.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import numpy as np
from scipy.optimize import nnls
from scipy.special import chdtrc

from scalebench.costmodel.links.fitted import LinkFit, Regime
from scalebench.costmodel.links.fitting.fit import fit_links
from scalebench.costmodel.links.laws import LAWS, hierarchical_all_reduce
from scalebench.costmodel.links.points import LinkPoint
from scalebench.errors import UsageError
from scalebench.records.base import Record
from scalebench.stats import Floats, quantile

LEVEL = 0.01
"""A law whose p-value is smaller is rejected."""

DECISIVE = 6.0
"""Twice the logarithm of a likelihood ratio from which evidence is strong (Kass & Raftery 1995)."""

MIN_WORLD_SIZES = 3
"""Two numbers of ranks give four numbers for a law's two: too easily matched by a wrong one."""

TOLERANCE = 0.10
"""Standard deviation by which latency and slope may leave a law at each N.

What one launch has in common differs from N to N, and no interval of one sweep sees it.
"""

HIERARCHICAL = "hierarchical"

NONE = "none: in-network reduction or another algorithm"

_SMALLEST = np.array([1e-12, 1e-18])
"""Latency (s) and slope (s per byte) that no measurement tells from 0."""

Which = Literal["largest", "smallest"]


class LawScore(Record):
    """How well one law explains the lines of all N.

    Attributes:
        algorithm: Whose law.
        chi2: Sum of squared deviations, each over its variance.
        criterion: ``chi2 + p·log(2K)`` with p the law's parameters and K the numbers of ranks
            (Schwarz's BIC); the smaller the better.
        chance: p-value: how often a law that holds fits as badly as this.
        num_unknowns: The law's parameters.
        bandwidth_chance: The same for the slopes alone; None: not judged by itself.
        latency_chance: The same for the latencies alone.
    """

    algorithm: str
    chi2: float
    criterion: float
    chance: float
    num_unknowns: int
    bandwidth_chance: float | None = None
    latency_chance: float | None = None


class LawNaming(Record):
    """What the measurements say about the algorithm.

    Attributes:
        op: Operation.
        name: The algorithm whose law fits, and no other does; None: no name.
        reason: In one sentence why this name, or why none.
        world_sizes: Numbers of ranks, ascending.
        regime: Which messages were judged, those of each N's largest or smallest regime.
        ranges_bytes: The smallest and the largest size of that regime, for each N.
        scores: One for each candidate that could be judged, the best first.
        left_out: Why some numbers of ranks were not judged.
    """

    op: str
    name: str | None
    reason: str
    world_sizes: tuple[int, ...]
    regime: Which
    ranges_bytes: tuple[tuple[int, int], ...]
    scores: tuple[LawScore, ...] = ()
    left_out: tuple[str, ...] = ()


def name_law(
    points: Sequence[LinkPoint],
    ranks_per_node: int | None = None,
    regime: Which = "largest",
) -> LawNaming:
    """Name the algorithm by whose law the times grow with the number of ranks.

    A law takes every rank to have its own processor and its own share of the link. Give only
    numbers of ranks for which that holds: ranks that share a core follow no law, or a wrong one.

    Args:
        points: One operation, element type and link; several numbers of ranks, each with three
            sizes or more.
        ranks_per_node: Ranks that share a node; makes the hierarchical law a candidate.
        regime: Which messages to judge: a backend may change its algorithm with the size.

    Raises:
        UsageError: The points are of several kinds, or none of them could be fitted.
    """
    result = fit_links(points)
    kinds = {(f.op, f.dtype, f.link, f.algorithm, f.in_place) for f in result.fits}
    if len(kinds) > 1:
        given = "; ".join(sorted(str(kind) for kind in kinds)[:3])
        raise UsageError(f"An algorithm is named for points of one kind, not for {given}.")
    if not result.fits:
        why = result.refused[0].reason if result.refused else "no point was given."
        raise UsageError(f"No number of ranks could be fitted: {why}")
    fits = sorted(result.fits, key=lambda fit: fit.world_size)
    op, world_sizes = fits[0].op, tuple(fit.world_size for fit in fits)
    judged = [fit.regimes[-1 if regime == "largest" else 0] for fit in fits]
    lines = [_line(fit, its) for fit, its in zip(fits, judged, strict=True)]
    theta, covariance = (np.array(part) for part in zip(*lines, strict=True))
    laws = _laws(op, world_sizes, ranks_per_node)
    scored = [_score(algorithm, design, theta, covariance) for algorithm, design in laws.items()]
    scores = sorted((s for s in scored if s is not None), key=lambda score: score.criterion)
    name, reason = _decide(world_sizes, scores)
    poor = ", ".join(str(fit.world_size) for fit in fits if fit.poor)
    if poor:
        reason += f"; the fits at N = {poor} are poor"
    return LawNaming(
        op=op,
        name=name,
        reason=reason,
        world_sizes=world_sizes,
        regime=regime,
        ranges_bytes=tuple((its.min_bytes, its.max_bytes) for its in judged),
        scores=tuple(scores),
        left_out=tuple(refused.reason for refused in result.refused),
    )


def _laws(op: str, world_sizes: Sequence[int], ranks_per_node: int | None) -> dict[str, Floats]:
    """Return the table of laws that hold at all N: algorithm → matrices, shape [K, 2, unknowns].

    Each N's matrix times the unknowns gives (latency, slope). The unknowns are (α, 1/B), of the
    hierarchical law (α_i, 1/B_i, α_e, 1/B_e). Laws without a latency term (the parameter server's
    bound) are left out: measured latencies cannot be compared with them.
    """
    table = {}
    for (of_op, algorithm), law in LAWS.items():
        if of_op == op and law(2).latency_steps > 0:
            with suppress(ValueError):  # the law does not hold for one of these numbers of ranks
                table[algorithm] = np.array([np.diag(law(n)) for n in world_sizes])
    g = ranks_per_node
    if op == "all_reduce" and g is not None and all(n <= g or n % g == 0 for n in world_sizes):
        levels = [hierarchical_all_reduce(min(n, g), max(n // g, 1)) for n in world_sizes]
        table[HIERARCHICAL] = np.array([np.hstack([np.diag(t) for t in two]) for two in levels])
    return table


def _line(fit: LinkFit, regime: Regime) -> tuple[Floats, Floats]:
    """Return latency (s) and slope (s per byte) of a fit's regime, and their covariance.

    The fit's own covariance is widened to what its degrees of freedom allow to be said, and by
    `TOLERANCE`.
    """
    steps, factor = fit.terms
    theta = np.array([steps * regime.alpha_s, factor / (regime.bandwidth_byte_per_s or math.inf)])
    v11, v12, v22 = regime.covariance
    widening = (float(quantile(regime.freedom)) / float(quantile(10**6))) ** 2
    tolerance = np.maximum(TOLERANCE * theta, _SMALLEST)
    return theta, widening * np.array([[v11, v12], [v12, v22]]) + np.diag(tolerance**2)


def _score(algorithm: str, design: Floats, theta: Floats, covariance: Floats) -> LawScore | None:
    """Score one law; None: these N cannot judge it, it has as many unknowns as they have lines.

    Args:
        algorithm: Whose law.
        design: Its matrices, shape [K, 2, unknowns].
        theta: Latency and slope at each N, shape [K, 2].
        covariance: Theirs, shape [K, 2, 2].
    """
    unknowns = design.shape[2]
    if theta.size <= unknowns or np.linalg.matrix_rank(np.vstack(list(design))) < unknowns:
        return None

    def alone(part: slice) -> float | None:
        if unknowns > 2:
            return None
        return _deviation(design[:, part, part], theta[:, part], covariance[:, part, part])[1]

    chi2, p_value = _deviation(design, theta, covariance)
    return LawScore(
        algorithm=algorithm,
        chi2=chi2,
        criterion=chi2 + unknowns * math.log(theta.size),
        chance=p_value,
        num_unknowns=unknowns,
        latency_chance=alone(slice(0, 1)),
        bandwidth_chance=alone(slice(1, 2)),
    )


def _deviation(design: Floats, theta: Floats, covariance: Floats) -> tuple[float, float]:
    """Return the least chi² over non-negative unknowns, and its p-value; shapes as in `_score`."""
    root = np.linalg.cholesky(covariance)
    matrix = np.vstack(list(np.linalg.solve(root, design)))
    target = np.linalg.solve(root, theta[..., None]).ravel()
    norm = np.linalg.norm(matrix, axis=0)
    chi2 = float(nnls(matrix / np.where(norm > 0, norm, 1.0), target)[1] ** 2)
    return chi2, float(chdtrc(target.size - matrix.shape[1], chi2))


def _decide(world_sizes: Sequence[int], scores: Sequence[LawScore]) -> tuple[str | None, str]:
    """Return the name, if there is one, and the reason."""
    if len(world_sizes) == 1:
        n = world_sizes[0]
        return None, f"with N = {n} alone every law is the same straight line: measure another N"
    if not scores:
        return None, "no law could be judged at these numbers of ranks"
    best, *others = scores
    if best.chance < LEVEL:
        return None, _no_law(scores)
    rivals = [score for score in others if _rivals(score, best)]
    if rivals:
        names = " and ".join(score.algorithm for score in (best, *rivals))
        sizes = ", ".join(map(str, world_sizes))
        return None, f"{names} fit equally well at N = {sizes}: measure more, or larger, N"
    if not others:
        return None, f"{best.algorithm} fits, but there is no other law to compare it with"
    if len(world_sizes) < MIN_WORLD_SIZES:
        return None, f"{best.algorithm} fits best, but two N can match by accident: measure a third"
    gap = others[0].criterion - best.criterion
    return (
        best.algorithm,
        f"{best.algorithm} fits; the next, {others[0].algorithm}, by {gap:.0f} worse",
    )


def _rivals(score: LawScore, best: LawScore) -> bool:
    """Tell whether a law explains the lines about as well as the best does.

    A hierarchy of equal links is a ring: where a ring fits best, the hierarchy, whose law holds
    the ring's, fits too and says nothing more.
    """
    if (best.algorithm, score.algorithm) == ("ring", HIERARCHICAL):
        return False
    return score.criterion - best.criterion < DECISIVE and score.chance >= LEVEL


def _no_law(scores: Sequence[LawScore]) -> str:
    """Say that no law fits, and which would fit by one half of the evidence."""
    text = NONE
    for field, words in (("bandwidth_chance", "the bandwidths"), ("latency_chance", "latencies")):
        p_values = {s.algorithm: getattr(s, field) for s in scores}
        fitting = [name for name, p in p_values.items() if p is not None and p >= LEVEL]
        if fitting:
            text += f"; {words} alone would fit {', '.join(fitting)}"
    return text
