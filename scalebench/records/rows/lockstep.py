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


class StageFigures(RowPart):
    """How old the weights of a stage's gradients were, and what keeping them took, with its law.

    Attributes:
        stage: From 0.
        staleness: The most steps between the weights of a gradient and the step by it.
        weight_versions: The most that were kept at a time, the newest ones among them.
        stash_bytes: The most that the others took.
    """

    stage: int
    staleness: int
    staleness_law: int
    weight_versions: int
    weight_versions_law: int
    stash_bytes: int
    stash_law_bytes: int


class LockstepFigures(RowPart):
    """Where the ranks' time went, and what training without lockstep cost instead.

    Attributes:
        ranks: In order.
        traced: Whether traced steps told, not the strategy's own clock.
        staleness: Steps that a server or a stage made between a gradient's parameters and its
            arrival → gradients, of all of them and all launches; null: there are none.
        stages: Of a pipeline that is never flushed, in order; null: it is none.
        num_dropped: Of these, gradients that came after the step that they were for.
    """

    ranks: list[RankShares]
    traced: bool
    staleness: dict[int, int] | None = None
    stages: list[StageFigures] | None = None
    num_dropped: int = 0

    @property
    def mean_staleness(self) -> float | None:
        """The mean over the gradients; None: not counted."""
        counts = self.staleness or {}
        total = sum(counts.values())
        return sum(steps * count for steps, count in counts.items()) / total if total else None
