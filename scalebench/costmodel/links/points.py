"""One measured point of a link: an operation, a size, a time.

Which of several all-reduces is fastest at which size, measured and by the fitted lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from pydantic import Field, FiniteFloat, computed_field, model_validator

from scalebench.costmodel.links.fitted import LinkFit
from scalebench.costmodel.links.laws import OPERATIONS, busbw_factor
from scalebench.records.base import LARGE, Record


class LinkPoint(Record):
    """The median time of one operation at one size.

    Attributes:
        op: Operation; those with a law are `scalebench.costmodel.links.laws.OPERATIONS`.
        dtype: Element type, for example ``float32``.
        world_size: Ranks that took part.
        size_bytes: Full size D, as nccl-tests counts it; 0: of a barrier.
        time_s: Median over the iterations of one launch, of the slowest rank; of GPUs the mean of
            the ranks.
        in_place: Whether the result overwrote the input; None: no such choice, or not known.
        algorithm: What was asked of the backend; ``backend``: its own choice.
        num_wrong: Elements of the result that were wrong; None: not checked, or not counted.
        failed_check: Whether it was found wrong without its elements being counted.
        low_s: Lower end of the median's 95 % interval; None: not known.
        high_s: Upper end, likewise.
        link: Which link, for example the name of a lab's network, or which table of a log;
            empty: there is only one.
    """

    op: str
    dtype: str
    world_size: int = Field(ge=1, lt=LARGE)
    size_bytes: int = Field(ge=0, lt=LARGE)
    time_s: FiniteFloat = Field(gt=0)
    in_place: bool | None = None
    algorithm: str = "backend"
    num_wrong: int | None = Field(default=None, ge=0)
    failed_check: bool = False
    low_s: FiniteFloat | None = Field(default=None, gt=0)
    high_s: FiniteFloat | None = Field(default=None, gt=0)
    link: str = ""

    @model_validator(mode="after")
    def _interval_holds_the_time(self) -> Self:
        if (self.low_s is None) != (self.high_s is None):
            raise ValueError("give both low_s and high_s, or neither")
        ends = (self.low_s or self.time_s, self.high_s or self.time_s)
        if not ends[0] <= self.time_s <= ends[1]:
            raise ValueError("time_s does not lie between low_s and high_s")
        return self

    @property
    def is_wrong(self) -> bool:
        """Whether the result was found to be wrong."""
        return self.failed_check or bool(self.num_wrong)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def algbw_byte_per_s(self) -> float:
        """Algorithm bandwidth: size over time."""
        return self.size_bytes / self.time_s

    @computed_field  # type: ignore[prop-decorator]
    @property
    def busbw_byte_per_s(self) -> float | None:
        """Bus bandwidth as nccl-tests defines it; None: not defined for this operation."""
        if self.op not in OPERATIONS:
            return None
        return self.algbw_byte_per_s * busbw_factor(self.op, self.world_size)


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
