"""What a row says of its experts: how many tokens each had, and where."""

from statistics import median

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart

STANDS_OUT = 1.5
"""Times as long for a token as on the other ranks; from there on a rank is called slow."""


class ExpertRank(RowPart):
    """What one rank's experts did in a step.

    Attributes:
        first_expert: Of every layer; its experts come one after the other.
        tokens: That came to them in a step, all layers together; one that goes to two counts twice.
        experts_s: What they computed on them in forward, seconds per traced step; None: not known.
        token_s: The same for one token, seconds.
    """

    rank: int
    first_expert: int
    num_experts: int
    tokens: FiniteFloat
    experts_s: FiniteFloat | None = None
    token_s: FiniteFloat | None = None


class BusiestExpert(RowPart):
    """The expert with the most tokens.

    Attributes:
        times_mean: Its tokens over the mean of its layer's experts.
    """

    layer: int
    expert: int
    times_mean: FiniteFloat


class ExpertFigures(RowPart):
    """How a mixture's tokens spread over its experts: means over the clean steps of all launches.

    Attributes:
        num_experts: In every layer.
        ranks_per_group: Among which they are divided.
        tokens: Layer → expert → tokens that it had in a step, of all ranks; one that goes to two
            experts counts twice.
        imbalance: Most tokens of an expert over the mean of all in its layer and step; 1: even.
        rank_imbalance: Most tokens of a rank over the mean of all ranks in a step; 1: even. Who
            has fewer waits.
        dropped_share: Of all choices of the router, those that found their expert full.
        busiest: The expert with the most tokens against the mean of its layer.
        all_to_all_share: Part of the traced steps in which all-to-alls were on their way, mean over
            ranks; None: not traced.
        ranks: In order.
    """

    num_experts: int
    ranks_per_group: int
    tokens: list[list[FiniteFloat]]
    imbalance: FiniteFloat
    rank_imbalance: FiniteFloat
    dropped_share: FiniteFloat
    busiest: BusiestExpert
    all_to_all_share: FiniteFloat | None
    ranks: list[ExpertRank]

    @property
    def slow_rank(self) -> tuple[ExpertRank, float] | None:
        """The rank whose experts take longest for a token, and times as long as the others' median.

        None: no rank stands out, or it is not known.
        """
        known = [rank for rank in self.ranks if rank.token_s]
        if len(known) < 2 or len(known) < len(self.ranks):
            return None
        slowest = max(known, key=lambda rank: rank.token_s or 0.0)
        others = [rank.token_s for rank in known if rank is not slowest and rank.token_s]
        times = (slowest.token_s or 0.0) / median(others)
        return (slowest, times) if times >= STANDS_OUT else None
