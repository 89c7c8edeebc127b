"""Jobs that train nothing: ranks time operations, play steps, compare clocks; injected faults."""

from typing import Annotated, Literal

from pydantic import Field

from scalebench.spec import Job, ScheduleName, Spec
from scalebench.spec.base import (
    BACKEND,
    EITHER_PLACE,
    ONLY_IN_PLACE,
    CollectiveName,
    DtypeName,
)


class Transfer(Spec):
    """One operation at one size.

    Attributes:
        size_bytes: The full size, as nccl-tests counts: of all-gather, reduce-scatter and
            all-to-all the whole of it, not a rank's part. Rounded down to whole elements, and to
            the same number of them for every rank. A barrier carries nothing, whatever is given.
        peers: Sender and receiver of ``send_recv``; the root of a rooted operation is rank 0.
        algorithm: ``backend``: whatever the backend does; else a name of
            ``worker/collectives``, for an all-reduce carried out by scalebench itself.
        in_place: Of `EITHER_PLACE`: whether the input lies where the result goes.
        back_to_back: Operations in one timing, after one that does not count: the first one after
            a pause finds a link's buffers empty.
    """

    operation: CollectiveName
    size_bytes: int = Field(gt=0)
    dtype: DtypeName = "float32"
    peers: tuple[int, int] = (0, 1)
    algorithm: str = BACKEND
    in_place: bool = False
    back_to_back: int = Field(2, ge=1)

    @property
    def place(self) -> bool | None:
        """Whether the result overwrites the input; None: there is no such choice."""
        if self.operation in ONLY_IN_PLACE:
            return True
        return self.in_place if self.operation in EITHER_PLACE else None


class Sweep(Job):
    """Time operations, and check every result against the known one.

    Attributes:
        repeats: Times that each transfer is timed, by turns.
        time_limit_s: With a limit, small transfers are timed before large ones; what would take
            longer is left out, or timed fewer times. Three sizes of each operation are always
            timed. None: everything is.
        nccl_log: Have NCCL write its log; then no time counts.
    """

    kind: Literal["sweep"] = "sweep"
    transfers: tuple[Transfer, ...]
    repeats: int = Field(5, ge=1)
    time_limit_s: float | None = Field(None, gt=0)
    nccl_log: bool = False


class ClockCheck(Job):
    """Compare the clocks of the ranks over the network, even where they are one."""

    kind: Literal["clock"] = "clock"


class RehearsedStage(Spec):
    """What one microbatch costs in a stage of a pipeline.

    Attributes:
        forward_s: Of its forward pass, seconds.
        backward_s: Of its backward pass.
        output_bytes: What the stage hands on.
    """

    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    output_bytes: int = Field(gt=0)


class PipelineRehearsal(Spec):
    """A pipeline without a model: real schedule and messages, passes that only take their time.

    Attributes:
        stages: Of all ranks together, in order.
    """

    schedule: ScheduleName
    microbatches: int = Field(ge=1)
    stages: tuple[RehearsedStage, ...]


class RehearsedOperation(Spec):
    """A message of a step that is played.

    Attributes:
        size_bytes: The full size, as of `Transfer`.
        ready_s: How far the computation has come when it is asked for, seconds.
        needed_s: How far it comes before it waits for the result; at least ``ready_s``.
        groups: The ranks of each group that does it by itself; every rank is in one. None: all
            ranks do it together.
    """

    op: CollectiveName
    size_bytes: int = Field(gt=0)
    ready_s: float = Field(ge=0)
    needed_s: float = Field(ge=0)
    groups: tuple[tuple[int, ...], ...] | None = None

    @property
    def num_ranks(self) -> int | None:
        """Ranks that take part; None: all."""
        return None if self.groups is None else len(self.groups[0])


class StepRehearsal(Spec):
    """A step without a model: its computation takes its time, and its messages are real.

    Attributes:
        computing_s: Of the step, seconds.
        operations: By the moment at which they are asked for.
        computing_cpu_s: Processor time of it; the rest is waiting, for a share of the processor or
            for anything else. None: the rank is busy all the time.
        blocks: Of it; None: as of the whole rehearsal.
        num_steps: Of a block, likewise.
    """

    computing_s: float = Field(gt=0)
    computing_cpu_s: float | None = Field(None, ge=0)
    operations: tuple[RehearsedOperation, ...]
    blocks: int | None = Field(None, ge=1)
    num_steps: int | None = Field(None, ge=1)


class Rehearsal(Job):
    """Have ranks play the steps of pipelines and of other strategies, in blocks by turns.

    Attributes:
        blocks: Of each of them.
        num_steps: Steps of a block that are timed, after one that does not count.
    """

    kind: Literal["rehearsal"] = "rehearsal"
    pipelines: tuple[PipelineRehearsal, ...] = ()
    steps: tuple[StepRehearsal, ...] = ()
    blocks: int = Field(3, ge=1)
    num_steps: int = Field(4, ge=1)


Probe = Annotated[Sweep | ClockCheck | Rehearsal, Field(discriminator="kind")]


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
