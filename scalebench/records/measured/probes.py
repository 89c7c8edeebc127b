"""What probes leave: timed transfers, and steps of pipelines that were played without a model."""

from pydantic import Field, FiniteFloat

from scalebench.records.measured.rank import NcclWires, RankError
from scalebench.records.measured.trace import ClockAlignment
from scalebench.spec.base import Record
from scalebench.spec.probes import PipelineRehearsal, StepRehearsal, Transfer


class TimedTransfer(Record):
    """A transfer as the ranks timed it.

    Attributes:
        size_bytes: What was really moved.
        time_s: Mean of the operations of one timing, for every repeat; seconds. Of each
            operation, the rank counts that took longest; on a GPU the mean over the ranks.
        each_s: Every single operation likewise, those of one timing after one another. Empty on a
            GPU, where only all operations of a timing together are timed.
        num_elements: Elements that were compared with the known result, over all ranks.
        num_wrong: Elements that differ from it.
    """

    transfer: Transfer
    size_bytes: int
    time_s: tuple[FiniteFloat, ...]
    each_s: tuple[FiniteFloat, ...] = ()
    num_elements: int
    num_wrong: int


StepTimes = tuple[FiniteFloat, ...]
"""Of every step, seconds."""


class PlayedSteps(Record):
    """What ranks played without a model.

    Attributes:
        pipelines: Of each pipeline, every step, all ranks together.
        exposed: Of each other step, how much of it ranks spent in messages; see `RehearsedStep`.
    """

    pipelines: tuple[StepTimes, ...] = ()
    exposed: tuple[StepTimes, ...] = ()


class ProbeRecord(Record):
    """What one rank brings back from a probe.

    Attributes:
        sweep: Of rank 0 only, which speaks for all.
        clock: This rank's against rank 0's.
        played: Of rank 0 only: what ranks played without a model.
        wires: From this rank's log of NCCL, if the sweep asked for it.
    """

    rank: int = Field(ge=0)
    error: RankError | None = None
    sweep: tuple[TimedTransfer, ...] = ()
    clock: ClockAlignment | None = None
    played: PlayedSteps | None = None
    wires: NcclWires | None = None


class RehearsedPipeline(Record):
    """A row's pipeline as ranks played it, without its model.

    Attributes:
        plan: What they played.
        step_s: Every step, all ranks together, seconds.
        action_s: What an action costs its rank besides the pass itself: on one rank, with passes
            that take no time.
    """

    suite: str
    case: str
    world_size: int
    plan: PipelineRehearsal
    step_s: StepTimes
    action_s: FiniteFloat


class RehearsedStep(Record):
    """A row's step as ranks played it, without its model.

    Attributes:
        plan: What they played.
        exposed_s: How much of each step ranks spent in messages, the mean over them: over those
            with as large a share of the processor as rank 0, next to whose computation it stands.
    """

    suite: str
    case: str
    world_size: int
    plan: StepRehearsal
    exposed_s: StepTimes
