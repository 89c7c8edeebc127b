"""Where the time of a race's ranks went, and how stale gradients were."""

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart


class RankShares(RowPart):
    """Where one rank's time went: parts of the training, which sum to 1; means over the launches.

    Attributes:
        compute: Its own work.
        exchange: From the start of an exchange until it has the result, transfer and waiting
            together; of traced steps the transfer alone.
        wait: For ranks that are slower: until the end of a block of steps; of traced steps in
            operations too.
        num_batches: That it trained in a launch; null: as many as there were steps.
    """

    rank: int
    compute: FiniteFloat
    exchange: FiniteFloat
    wait: FiniteFloat
    num_batches: FiniteFloat | None = None


class LockstepFigures(RowPart):
    """Where the ranks' time went, and what training without lockstep cost instead.

    Attributes:
        ranks: In order.
        traced: Whether traced steps told, not the strategy's own clock.
        staleness: Steps that the servers made between a gradient's parameters and its arrival →
            gradients, of all servers and launches; null: there are no servers.
        num_dropped: Of these, gradients that came after the step that they were for.
    """

    ranks: list[RankShares]
    traced: bool
    staleness: dict[int, int] | None = None
    num_dropped: int = 0

    @property
    def mean_staleness(self) -> float | None:
        """The mean over the gradients; None: not counted."""
        counts = self.staleness or {}
        total = sum(counts.values())
        return sum(steps * count for steps, count in counts.items()) / total if total else None
