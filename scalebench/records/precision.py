"""How precisely a run was asked to know the efficiency of its rows, and where it fell short."""

from pydantic import Field, FiniteFloat

from scalebench.records.base import Record


class ImpreciseRow(Record):
    """A row whose efficiency is not known as precisely as asked.

    Attributes:
        half_width: Of the 95 % interval of its efficiency, as a fraction of ideal; null: there is
            no interval.
        more_s: How much longer the run would have to go on, seconds; null: not known.
    """

    suite: str
    case: str
    world_size: int = Field(ge=1)
    half_width: FiniteFloat | None
    more_s: FiniteFloat | None


class PrecisionReached(Record):
    """What became of the wanted precision.

    Attributes:
        half_width: Wanted of the 95 % interval of every row's efficiency, as a fraction of ideal.
        budget_s: Time for it, seconds of the whole run.
        num_rows: Rows whose efficiency has a baseline.
        imprecise: Those of them that are not known as precisely.
    """

    half_width: FiniteFloat = Field(gt=0)
    budget_s: FiniteFloat = Field(gt=0)
    num_rows: int
    imprecise: list[ImpreciseRow] = []
