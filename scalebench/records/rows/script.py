"""What a row says of a user's script alone: what it does between steps, how it is distributed."""

from pydantic import BaseModel, FiniteFloat


class LongestGap(BaseModel):
    """One time between two steps.

    Attributes:
        step: The step after it, by number from 0.
        rank: Where it was longest.
        repeat: Number of the launch.
    """

    step: int
    rank: int
    repeat: int
    seconds: FiniteFloat


class OutsideSteps(BaseModel):
    """Time between steps in which a script evaluated, saved or did something else than train.

    It is no part of any step, and of no part of the loss budget.

    Attributes:
        seconds: Of the rank that has most, in all launches together.
        share: Of the time from the first clean step to the last, these gaps included.
        num_gaps: How many of them.
        largest: The longest first, at most three.
    """

    seconds: FiniteFloat
    share: FiniteFloat
    num_gaps: int
    largest: list[LongestGap]


class Wrapper(BaseModel):
    """What a script has wrapped its modules in, as it was found in rank 0 after the measurement.

    Attributes:
        kind: ``DistributedDataParallel``, ``FSDPModule`` (FSDP2) or ``FullyShardedDataParallel``.
        modules: How many of them, for FSDP.
        bucket_bytes: DDP's ``bucket_cap_mb``.
    """

    kind: str
    modules: int | None = None
    bucket_bytes: int | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
