"""Which of several all-reduces is fastest at which size, measured and by the fitted lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from scalebench.costmodel.links.fitted import LinkFit
from scalebench.costmodel.links.points import LinkPoint


@dataclass(frozen=True)
class Winner:
    """Neighbouring sizes at which the same algorithm is fastest.

    Attributes:
        measured: Its name.
        predicted: The one whose fitted line is fastest at the geometric middle of the sizes, of
            those that have a line there; None: fewer than two have.
    """

    world_size: int
    min_bytes: int
    max_bytes: int
    measured: str
    predicted: str | None


def crossovers(points: Sequence[LinkPoint], fits: Sequence[LinkFit]) -> list[Winner]:
    """Return who wins where, by N and size; nothing where there is one algorithm only.

    Args:
        points: All-reduces of several algorithms; others are not looked at.
        fits: Of the same points.
    """
    reduces = [point for point in points if point.op == "all_reduce"]
    winners = []
    for key in dict.fromkeys((p.world_size, p.dtype, p.link) for p in reduces):
        mine = [p for p in reduces if (p.world_size, p.dtype, p.link) == key]
        if len({point.algorithm for point in mine}) > 1:
            fitted = [
                fit
                for fit in fits
                if fit.op == "all_reduce" and (fit.world_size, fit.dtype, fit.link) == key
            ]
            winners += _winners(mine, fitted)
    return winners


def _winners(points: Sequence[LinkPoint], fits: Sequence[LinkFit]) -> list[Winner]:
    algorithms = {point.algorithm for point in points}
    by_size: dict[int, dict[str, float]] = {}
    for point in points:
        by_size.setdefault(point.size_bytes, {})[point.algorithm] = point.time_s
    complete = sorted(size for size, found in by_size.items() if set(found) == algorithms)
    fastest = [(size, min(by_size[size], key=by_size[size].__getitem__)) for size in complete]
    found = []
    for name, together in groupby(fastest, key=lambda pair: pair[1]):
        sizes = [size for size, _ in together]
        middle = (sizes[0] * sizes[-1]) ** 0.5
        predicted = _predicted(middle, fits)
        found.append(Winner(points[0].world_size, sizes[0], sizes[-1], name, predicted))
    return found


def _predicted(size_bytes: float, fits: Sequence[LinkFit]) -> str | None:
    times = {}
    for fit in fits:
        prediction = fit.predict(size_bytes)
        if prediction.outside is None:
            times[fit.algorithm] = prediction.time_s
    return min(times, key=times.__getitem__) if len(times) > 1 else None
