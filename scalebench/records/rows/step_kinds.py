"""Steps of two kinds, short and long ones, where the mean step is not the typical one."""

from pydantic import Field, FiniteFloat

from scalebench.records.rows.base import RowPart


class StepKinds(RowPart):
    """How the steps of a row's first launch divide.

    Attributes:
        period: Steps after which short and long ones repeat; null: at no regular distance.
        short_s: Mean of the short ones, seconds.
        long_s: Mean of the long ones.
        long_share: How many of all steps are long; a plain ratio.
    """

    period: int | None = Field(None, ge=2)
    short_s: FiniteFloat
    long_s: FiniteFloat
    long_share: FiniteFloat = Field(gt=0, lt=1)
