"""What communication a row does not hide, estimated in three ways."""

from typing import Annotated

from pydantic import Field

from scalebench.records.rows.base import RowPart
from scalebench.stats import Estimate

Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class ExposedEstimates(RowPart):
    """Exposed communication, seconds per step, estimated in three ways.

    Attributes:
        trace: By the intervals of traced steps.
        differential: A step with synchronisation minus one without.
        ddp_logger: As DDP's own logger has it.
        disagree: The pairs whose intervals do not overlap; None: intervals are missing.
        unavailable: Name of a null estimate → why, where the strategy is the reason.
    """

    trace: Estimate | None = None
    differential: Estimate | None = None
    ddp_logger: Estimate | None = None
    disagree: list[Pair] | None = None
    unavailable: dict[str, str] = {}

    @property
    def by_name(self) -> dict[str, Estimate]:
        """The estimates that there are."""
        found = {
            "trace": self.trace, "differential": self.differential, "ddp_logger": self.ddp_logger,
        }  # fmt: skip
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    def disagreements(self, least_s: float) -> list[tuple[str, Estimate, str, Estimate]]:
        """Return the pairs that disagree, and by more than some seconds."""
        known = self.by_name
        pairs = [(a, known.get(a), b, known.get(b)) for a, b in self.disagree or ()]
        return [
            (a, first, b, second)
            for a, first, b, second in pairs
            if first is not None
            and second is not None
            and abs(first.value - second.value) > least_s
        ]
