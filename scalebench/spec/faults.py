"""What the self-test injects into a launch: a fault, or a load, whose size is known from outside.

The ranks know the fault and inject it; the code that analyses the results does not.
"""

from typing import Literal

from pydantic import Field

from scalebench.spec.base import Spec

SAMPLE_S = 0.02
"""What the self-test's model computes for one sample on its own; seconds."""

FaultKind = Literal[
    "late_rank",
    "slow_compute",
    "late_batches",
    "late_bucket",
    "transfer_behind_compute",
    "wrong_elements",
    "false_clock",
]


class InjectedFault(Spec):
    """One thing with a known size.

    Attributes:
        kind: ``late_rank``: one rank comes ``seconds`` later at every step; ``slow_compute``: the
            stages of every rank last ``factor`` times as long as `SAMPLE_S`;
            ``late_batches``: every batch comes ``seconds`` late; ``late_bucket``: one rank hands
            over one gradient bucket ``seconds`` later than the others;
            ``transfer_behind_compute``: one bucket of ``count`` bytes, and ``seconds`` of
            backward pass left when it is ready; ``wrong_elements``: ``count`` elements of an
            all-reduce's result are changed; ``false_clock``: a rank's clock is ahead by
            ``seconds``.
        rank: Where, if it is one rank's.
        log: File, one for each rank, in which ranks write what it really took, a line each;
            sleeping takes longer than asked.
    """

    kind: FaultKind
    rank: int = Field(0, ge=0)
    seconds: float = 0.0
    factor: float = 1.0
    count: int = 0
    log: str = ""
