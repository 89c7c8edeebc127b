"""Which algorithm's law fits best, over several numbers of ranks together.

At one number of ranks every law is the same straight line, with another α and another B. What
tells them apart is how latency and slope of the line grow with N. So each N is fitted by itself
(`link_fit`), and a law is judged by how well it explains all latencies and slopes with one α and
one B: generalised least squares of the fitted parameters, with their covariances.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls
from scipy.special import chdtrc

from scalebench.costmodel.fitted_link import LinkFit, Regime
from scalebench.costmodel.laws import LAWS, Terms, hierarchical_all_reduce
from scalebench.costmodel.lines import Floats
from scalebench.costmodel.link_fit import fit_links
from scalebench.costmodel.points import LinkPoint
from scalebench.costmodel.uncertainty import quantile
from scalebench.errors import UsageError
from scalebench.records import Record

TOLERANCE = 0.05
"""Standard deviation by which latency and slope may leave a law at each N.

What one launch has in common differs from N to N, and no interval of one sweep sees it.
"""

LEVEL = 0.01
"""A law that fits worse than would happen with this chance is rejected."""

DECISIVE = 6.0
"""Twice the logarithm of a likelihood ratio from which evidence is strong (Kass & Raftery 1995)."""

NONE = "none: in-network reduction or another algorithm"

Which = Literal["largest", "smallest"]
_Design = Callable[[int], Floats]


class LawScore(Record):
    """How well one law explains the lines of all N.

    Attributes:
        algorithm: Whose law.
        chi2: Sum of squared deviations, each over its variance.
        criterion: ``chi2 + p·log(2K)`` with p the law's parameters and K the numbers of ranks
            (Schwarz's BIC); the smaller the better.
        chance: Of a fit as bad as this if the law held; below `LEVEL` the law is rejected.
        bandwidth_chance: The same for the slopes alone; None: not judged by itself.
        latency_chance: The same for the latencies alone.
    """

    algorithm: str
    chi2: float
    criterion: float
    chance: float
    bandwidth_chance: float | None = None
    latency_chance: float | None = None


class LawNaming(Record):
    """What the measurements say about the algorithm.

    Attributes:
        op: Operation.
        name: The algorithm whose law fits and is told apart from all others; None: no name.
        reason: In one sentence why this name, or why none.
        world_sizes: Numbers of ranks, ascending.
        regime: Which messages were judged, those of each N's largest or smallest regime.
        ranges_bytes: The smallest and the largest size of that regime, for each N.
        scores: One for each candidate that could be judged, the best first.
    """

    op: str
    name: str | None
    reason: str
    world_sizes: tuple[int, ...]
    regime: Which
    ranges_bytes: tuple[tuple[int, int], ...]
    scores: tuple[LawScore, ...] = ()


def name_law(
    points: Sequence[LinkPoint],
    ranks_per_node: int | None = None,
    regime: Which = "largest",
) -> LawNaming:
    """Name the algorithm by whose law the times grow with the number of ranks.

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
        told = "; ".join(sorted(str(kind) for kind in kinds)[:3])
        raise UsageError(f"An algorithm is named for points of one kind, not for {told}.")
    if not result.fits:
        why = result.refused[0].reason if result.refused else "no point was given."
        raise UsageError(f"No number of ranks could be fitted: {why}")
    fits = sorted(result.fits, key=lambda fit: fit.world_size)
    lines = [_Line.of(fit, fit.regimes[-1 if regime == "largest" else 0]) for fit in fits]
    op = fits[0].op
    scores = _scores(op, lines, ranks_per_node) if len(lines) > 1 else []
    name, reason = _decide(lines, scores)
    return LawNaming(
        op=op,
        name=name,
        reason=reason,
        world_sizes=tuple(line.world_size for line in lines),
        regime=regime,
        ranges_bytes=tuple((line.min_bytes, line.max_bytes) for line in lines),
        scores=tuple(scores),
    )


@dataclass(frozen=True)
class _Line:
    """Latency (s) and slope (s per byte) at one N, and what whitens their deviations."""

    world_size: int
    min_bytes: int
    max_bytes: int
    theta: Floats
    covariance: Floats

    @staticmethod
    def of(fit: LinkFit, regime: Regime) -> "_Line":
        terms = fit.terms
        slope = terms.bytes_factor / (regime.bandwidth_byte_per_s or math.inf)
        theta = np.array([terms.latency_steps * regime.alpha_s, slope])
        v11, v12, v22 = regime.covariance
        wide = (float(quantile(regime.freedom)) / float(quantile(10**6))) ** 2
        own = np.array([[v11, v12], [v12, v22]]) * wide
        covariance = own + np.diag((TOLERANCE * theta) ** 2)
        return _Line(fit.world_size, regime.min_bytes, regime.max_bytes, theta, covariance)


def _decide(lines: Sequence[_Line], scores: Sequence[LawScore]) -> tuple[str | None, str]:
    """Return the name, if there is one, and the reason."""
    if len(lines) == 1:
        n = lines[0].world_size
        return None, f"with N = {n} alone every law is the same straight line: measure another N"
    if not scores:
        return None, "no law could be judged at these numbers of ranks"
    best = scores[0]
    if best.chance < LEVEL:
        return None, _no_law(scores)
    rivals = [s for s in scores if s.criterion - best.criterion < DECISIVE and s.chance >= LEVEL]
    if len(rivals) > 1:
        names = " and ".join(rival.algorithm for rival in rivals)
        sizes = ", ".join(str(line.world_size) for line in lines)
        return None, f"{names} cannot be told apart at N = {sizes}: measure more, or larger, N"
    others = [s for s in scores if s is not best]
    if not others:
        return None, f"{best.algorithm} fits, but there is no other law to tell it from"
    gap = others[0].criterion - best.criterion
    return (
        best.algorithm,
        f"{best.algorithm} fits; the next, {others[0].algorithm}, by {gap:.0f} worse",
    )


def _no_law(scores: Sequence[LawScore]) -> str:
    """Say that no law fits, and which would fit by one half of the evidence."""
    text = NONE
    for field, words in (("bandwidth_chance", "the bandwidths"), ("latency_chance", "latencies")):
        chances = {s.algorithm: getattr(s, field) for s in scores}
        fitting = [name for name, c in chances.items() if c is not None and c >= LEVEL]
        if fitting:
            text += f"; {words} alone would fit {', '.join(fitting)}"
    return text


def _scores(op: str, lines: Sequence[_Line], ranks_per_node: int | None) -> list[LawScore]:
    """Judge every law that holds at all N, the best first."""
    scores = []
    for algorithm, design in _candidates(op, ranks_per_node).items():
        try:
            columns = [design(line.world_size) for line in lines]
        except ValueError:  # the law does not hold for one of these numbers of ranks
            continue
        score = _score(algorithm, lines, columns)
        if score is not None:
            scores.append(score)
    return sorted(scores, key=lambda score: score.criterion)


def _candidates(op: str, ranks_per_node: int | None) -> Mapping[str, _Design]:
    """Return algorithm → what multiplies (α, 1/B) in (latency, slope), a matrix for each N.

    Laws without a latency term (the parameter server's bound) are no candidates: measured
    latencies cannot be held against them.
    """
    candidates: dict[str, _Design] = {
        algorithm: _flat(law)
        for (of_op, algorithm), law in LAWS.items()
        if of_op == op and law(2).latency_steps > 0
    }
    if op == "all_reduce" and ranks_per_node is not None:
        candidates["hierarchical"] = _two_levels(ranks_per_node)
    return candidates


def _flat(law: Callable[[int], Terms]) -> _Design:
    return lambda n: np.diag(np.array(law(n), dtype=float))


def _two_levels(ranks_per_node: int) -> _Design:
    """Return the columns of (α_i, 1/B_i, α_e, 1/B_e)."""

    def design(n: int) -> Floats:
        if n > ranks_per_node and n % ranks_per_node:
            raise ValueError(f"{n} ranks do not fill nodes of {ranks_per_node}")
        inside, across = hierarchical_all_reduce(
            min(n, ranks_per_node), max(n // ranks_per_node, 1)
        )
        return np.hstack([np.diag(np.array(part, dtype=float)) for part in (inside, across)])

    return design


def _score(algorithm: str, lines: Sequence[_Line], designs: Sequence[Floats]) -> LawScore | None:
    """Judge one law; None: these N cannot judge it, it has as many unknowns as they have lines."""
    num_unknowns = designs[0].shape[1]
    num_known = 2 * len(lines)
    if np.linalg.matrix_rank(np.vstack(designs)) < num_unknowns or num_known <= num_unknowns:
        return None
    chi2 = _least_chi2(lines, designs, [0, 1])
    alone: list[float | None] = [None, None]
    if num_unknowns == 2:
        for part in (0, 1):
            single = _least_chi2(lines, [d[:, part : part + 1] for d in designs], [part])
            alone[part] = float(chdtrc(len(lines) - 1, single))
    return LawScore(
        algorithm=algorithm,
        chi2=chi2,
        criterion=chi2 + num_unknowns * math.log(num_known),
        chance=float(chdtrc(num_known - num_unknowns, chi2)),
        latency_chance=alone[0],
        bandwidth_chance=alone[1],
    )


def _least_chi2(lines: Sequence[_Line], designs: Sequence[Floats], parts: list[int]) -> float:
    """Return the least chi² over non-negative parameters, of latency (0), slope (1) or both."""
    rows, targets = [], []
    for line, design in zip(lines, designs, strict=True):
        root = np.linalg.cholesky(line.covariance[np.ix_(parts, parts)])
        rows.append(np.linalg.solve(root, design[parts]))
        targets.append(np.linalg.solve(root, line.theta[parts]))
    matrix, target = np.vstack(rows), np.concatenate(targets)
    width = np.linalg.norm(matrix, axis=0)
    return float(nnls(matrix / np.where(width > 0, width, 1.0), target)[1] ** 2)
