"""What a single rank takes longer for than the others."""

from typing import Literal

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart

RankPart = Literal["data_stall", "compute", "lateness"]


class RankExcess(RowPart):
    """A part of its steps for which one rank takes longer than the others.

    Attributes:
        part: ``data_stall``: it waits for its batches, in clean steps; ``compute``: it computes, in
            traced ones; ``lateness``: the others wait for it to arrive at an operation, likewise.
        own_s: Seconds per step, mean over steps and launches.
        others_s: The median of the other ranks, likewise.
        num_blocks: Blocks of steps that were compared, of all launches.
        num_longer: In how many of them it was longer.
        certain: False: the others waited for it in every traced step, but too few were traced to
            rule out chance.
    """

    part: RankPart
    rank: int
    own_s: FiniteFloat
    others_s: FiniteFloat
    num_blocks: int
    num_longer: int
    certain: bool = True
