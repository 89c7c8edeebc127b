"""Which algorithm's law fits best, over several numbers of ranks together.

At one number of ranks every law is the same straight line, with another α and another B. What
tells them apart is how latency and slope of the line grow with N. So each N is fitted by itself
(`link_fit`), and each law is held against all of them together (`law_scores`).
"""

from collections.abc import Sequence
from typing import Literal

from scalebench.costmodel.law_scores import HIERARCHICAL, LawScore, Line, score_laws
from scalebench.costmodel.link_fit import fit_links
from scalebench.costmodel.points import LinkPoint
from scalebench.errors import UsageError
from scalebench.records import Record

LEVEL = 0.01
"""A law that fits worse than would happen with this chance is rejected."""

DECISIVE = 6.0
"""Twice the logarithm of a likelihood ratio from which evidence is strong (Kass & Raftery 1995)."""

MIN_WORLD_SIZES = 3
"""Two numbers of ranks give four numbers for a law's two: too easily matched by a wrong one."""

NONE = "none: in-network reduction or another algorithm"

Which = Literal["largest", "smallest"]


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
        told = "; ".join(sorted(str(kind) for kind in kinds)[:3])
        raise UsageError(f"An algorithm is named for points of one kind, not for {told}.")
    if not result.fits:
        why = result.refused[0].reason if result.refused else "no point was given."
        raise UsageError(f"No number of ranks could be fitted: {why}")
    fits = sorted(result.fits, key=lambda fit: fit.world_size)
    lines = [Line.of(fit, fit.regimes[-1 if regime == "largest" else 0]) for fit in fits]
    op = fits[0].op
    scores = score_laws(op, lines, ranks_per_node) if len(lines) > 1 else []
    name, reason = _decide(lines, scores)
    poor = ", ".join(str(fit.world_size) for fit in fits if fit.poor)
    if poor:
        reason += f"; the fits at N = {poor} are poor"
    return LawNaming(
        op=op,
        name=name,
        reason=reason,
        world_sizes=tuple(line.world_size for line in lines),
        regime=regime,
        ranges_bytes=tuple((line.min_bytes, line.max_bytes) for line in lines),
        scores=tuple(scores),
        left_out=tuple(refused.reason for refused in result.refused),
    )


def _decide(lines: Sequence[Line], scores: Sequence[LawScore]) -> tuple[str | None, str]:
    """Return the name, if there is one, and the reason."""
    if len(lines) == 1:
        n = lines[0].world_size
        return None, f"with N = {n} alone every law is the same straight line: measure another N"
    if not scores:
        return None, "no law could be judged at these numbers of ranks"
    best = scores[0]
    if best.chance < LEVEL:
        return None, _no_law(scores)
    rivals = [s for s in scores if _rivals(s, best)]
    if len(rivals) > 1:
        names = " and ".join(rival.algorithm for rival in rivals)
        sizes = ", ".join(str(line.world_size) for line in lines)
        return None, f"{names} cannot be told apart at N = {sizes}: measure more, or larger, N"
    others = [s for s in scores if s is not best]
    if not others:
        return None, f"{best.algorithm} fits, but there is no other law to tell it from"
    if len(lines) < MIN_WORLD_SIZES:
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
        chances = {s.algorithm: getattr(s, field) for s in scores}
        fitting = [name for name, c in chances.items() if c is not None and c >= LEVEL]
        if fitting:
            text += f"; {words} alone would fit {', '.join(fitting)}"
    return text
