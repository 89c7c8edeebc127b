"""What a row says of its steps: short and long ones, a slow rank, whether launches are equal."""

from typing import Literal

from pydantic import BaseModel, Field, FiniteFloat

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


class Reproducible(BaseModel):
    """The losses of a row's launches, compared bit for bit in every rank.

    Attributes:
        equal: Whether all are the same.
        first_step: The first step whose losses differ, by number from 0; null: none.
        num_steps: So many steps were compared.
        num_launches: So many launches.
        seeds_differ: Whether torch's seed was another, so that a script sets none; null: it was not
            recorded, as in suites, whose seed is fixed.
        operations: Those that torch says are not deterministic, where the script asks it with
            ``use_deterministic_algorithms(True, warn_only=True)``.
    """

    equal: bool
    first_step: int | None = None
    num_steps: int
    num_launches: int
    seeds_differ: bool | None = None
    operations: list[str] = []

    @property
    def sentence(self) -> str:
        """What that comes to, without a full stop."""
        launches = f"{self.num_launches} launches"
        if self.equal:
            return f"{launches} have the same losses in {self.num_steps} steps, bit for bit"
        said = f"{launches} have other losses from step {self.first_step} on"
        if self.seeds_differ:
            return f"{said}: torch's seed differs, as nothing sets it"
        if self.operations:
            return (
                f"{said}; torch says of {', '.join(self.operations)} that it is not deterministic"
            )
        return said
