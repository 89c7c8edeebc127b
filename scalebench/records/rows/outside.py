"""What a user's script does between its steps."""

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
