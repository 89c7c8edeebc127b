"""How the global batch was shared by measured speed, and what that should have gained."""

from pydantic import Field, FiniteFloat

from scalebench.records.rows.base import RowPart


class BalanceFigures(RowPart):
    """Of a row's first launch. What ranks compute was measured at equal shares, at its start.

    Attributes:
        shares: Samples of each rank at the end; they sum to the global batch.
        history: The steps from which on shares were in force, warm-up included, and the shares.
        num_changes: How often shares changed, warm-up included.
        sample_s: What a sample took each rank at equal shares, seconds, waiting not included.
        equal_s: Derived: what the slowest rank computes at equal shares.
        ideal_s: Derived: N / Σ(1/t), t being what each rank computes at equal shares.
        balanced_s: Derived: what the rank that is ready last computes with ``shares``.
    """

    shares: list[int]
    history: list[tuple[int, list[int]]] = []
    num_changes: int = Field(ge=0)
    sample_s: list[FiniteFloat]
    equal_s: FiniteFloat
    ideal_s: FiniteFloat
    balanced_s: FiniteFloat
