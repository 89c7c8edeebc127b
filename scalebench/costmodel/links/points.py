"""One measured point of a link: an operation, a size, a time."""

from typing import Self

from pydantic import Field, FiniteFloat, computed_field, model_validator

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
