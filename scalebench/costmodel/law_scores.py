"""How well each law explains the lines that were fitted at several numbers of ranks.

A law is judged by how well it explains all latencies and slopes with one α and one B:
generalised least squares of the fitted parameters, with their covariances.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls
from scipy.special import chdtrc

from scalebench.costmodel.fitted_link import LinkFit, Regime
from scalebench.costmodel.laws import LAWS, Terms, hierarchical_all_reduce
from scalebench.costmodel.lines import Floats
from scalebench.costmodel.uncertainty import quantile
from scalebench.records import Record

TOLERANCE = 0.10
"""Standard deviation by which latency and slope may leave a law at each N.

What one launch has in common differs from N to N, and no interval of one sweep sees it.
"""

_SMALLEST = np.array([1e-12, 1e-18])
"""Latency (s) and slope (s per byte) that no measurement tells from 0."""

HIERARCHICAL = "hierarchical"

_Design = Callable[[int], Floats]


class LawScore(Record):
    """How well one law explains the lines of all N.

    Attributes:
        algorithm: Whose law.
        chi2: Sum of squared deviations, each over its variance.
        criterion: ``chi2 + p·log(2K)`` with p the law's parameters and K the numbers of ranks
            (Schwarz's BIC); the smaller the better.
        chance: Of a fit as bad as this if the law held.
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


@dataclass(frozen=True)
class Line:
    """A fitted line at one number of ranks.

    Attributes:
        world_size: N.
        min_bytes: Smallest size that supports it.
        max_bytes: Largest size that supports it.
        theta: Latency (s) and slope (s per byte), shape [2].
        covariance: Theirs, shape [2, 2].
    """

    world_size: int
    min_bytes: int
    max_bytes: int
    theta: Floats
    covariance: Floats

    @staticmethod
    def of(fit: LinkFit, regime: Regime) -> "Line":
        """Return the line of a fit's regime, whatever the law that divided it up.

        The fit's own covariance is widened to what its degrees of freedom allow to be said, and
        by `TOLERANCE`.
        """
        terms = fit.terms
        slope = terms.bytes_factor / (regime.bandwidth_byte_per_s or math.inf)
        theta = np.array([terms.latency_steps * regime.alpha_s, slope])
        v11, v12, v22 = regime.covariance
        wide = (float(quantile(regime.freedom)) / float(quantile(10**6))) ** 2
        own = np.array([[v11, v12], [v12, v22]]) * wide
        reach = np.maximum(TOLERANCE * theta, _SMALLEST)
        covariance = own + np.diag(reach**2)
        return Line(fit.world_size, regime.min_bytes, regime.max_bytes, theta, covariance)


def score_laws(op: str, lines: Sequence[Line], ranks_per_node: int | None) -> list[LawScore]:
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
        candidates[HIERARCHICAL] = _two_levels(ranks_per_node)
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


def _score(algorithm: str, lines: Sequence[Line], designs: Sequence[Floats]) -> LawScore | None:
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
        num_unknowns=num_unknowns,
        latency_chance=alone[0],
        bandwidth_chance=alone[1],
    )


def _least_chi2(lines: Sequence[Line], designs: Sequence[Floats], parts: list[int]) -> float:
    """Return the least chi² over non-negative parameters, of latency (0), slope (1) or both."""
    rows, targets = [], []
    for line, design in zip(lines, designs, strict=True):
        root = np.linalg.cholesky(line.covariance[np.ix_(parts, parts)])
        rows.append(np.linalg.solve(root, design[parts]))
        targets.append(np.linalg.solve(root, line.theta[parts]))
    matrix, target = np.vstack(rows), np.concatenate(targets)
    width = np.linalg.norm(matrix, axis=0)
    return float(nnls(matrix / np.where(width > 0, width, 1.0), target)[1] ** 2)
