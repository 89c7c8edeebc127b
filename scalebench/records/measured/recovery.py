"""What a rank writes about checkpoints: how long each save and each restore took."""

from pydantic import Field, FiniteFloat

from scalebench.records.base import LARGE, Record
from scalebench.spec.recovery import FaultKind, Restarter, SaveMethod


class SaveSample(Record):
    """One save, as one rank saw it.

    Attributes:
        step: Steps trained before it.
        stall_s: Seconds during which this rank could not train.
        durable_s: From the start of the save until every byte of the checkpoint is on the disk
            (``fsync``), seconds.
        bytes: Size of the checkpoint, all ranks together.
        quiet_s: Steps before the save, seconds each, without the first.
        later_s: Steps after it, seconds each.
        num_beside: Of these, how many began before the checkpoint was durable.
        extra_host_bytes: Peak of the process's memory during the save, above what it had before;
            null: this system does not tell.
        extra_device_bytes: The same of the GPU's memory; null: on CPU.
    """

    method: SaveMethod
    step: int = Field(ge=0)
    stall_s: FiniteFloat = Field(ge=0)
    durable_s: FiniteFloat = Field(ge=0)
    bytes: int = Field(ge=0, lt=LARGE)
    quiet_s: list[FiniteFloat]
    later_s: list[FiniteFloat]
    num_beside: int = Field(ge=0)
    extra_host_bytes: int | None = None
    extra_device_bytes: int | None = None


class RestoreSample(Record):
    """One restore, as one rank saw it. A state that is not equal to what was saved is an error.

    Attributes:
        saved_world_size: Ranks of the job that saved.
        load_s: From the search for the newest checkpoint until every rank has its state, seconds.
        first_step_s: The first step after it, seconds.
        num_tensors: Tensors that were compared, bit for bit, with those at the save.
        continues_equal: Whether the same steps then led to the same bits as in the run that never
            stopped; null: not compared, as with another number of ranks.
    """

    method: SaveMethod
    saved_world_size: int = Field(ge=1)
    load_s: FiniteFloat = Field(ge=0)
    first_step_s: FiniteFloat = Field(ge=0)
    num_tensors: int = Field(ge=1)
    continues_equal: bool | None = None


class FaultTimeline(Record):
    """One failure, from outside, by one clock: the machine's monotonic one.

    Attributes:
        restarted_by: Who started the ranks again.
        restart: Number of the restart in its job: 1: the first. A job that fails several times is
            hit again only after it has caught up.
        rank: Which one failed.
        failed_after: Steps trained when it failed.
        saved_after: Steps trained when the checkpoint was saved that was loaded.
        phases_s: Phase → seconds, in the order of `scalebench.spec.recovery.PHASES`; they follow
            one another without a gap.
        total_s: From the failure until the step in which it came is done: their sum.
        data_s: Part of ``load``: bringing the data to its place, seconds; null: not noted.
    """

    kind: FaultKind
    restarted_by: Restarter
    restart: int = Field(1, ge=1)
    rank: int = Field(ge=0)
    failed_after: int = Field(ge=0)
    saved_after: int = Field(ge=0)
    phases_s: dict[str, FiniteFloat]
    total_s: FiniteFloat = Field(ge=0)
    data_s: FiniteFloat | None = Field(None, ge=0)


class ElasticStretch(Record):
    """Steps of a job with one number of ranks.

    Attributes:
        rank_batch: Samples of a rank and step; with ``world_size`` times it the global batch.
        accumulate: Parts in which a rank trains them.
        first: Number of the first step.
        loss: Of the global batch, step by step.
        step_s: From one step to the next, seconds: where no save lies between them.
    """

    world_size: int = Field(ge=1)
    rank_batch: int = Field(ge=1)
    accumulate: int = Field(1, ge=1)
    first: int = Field(ge=1)
    loss: list[FiniteFloat]
    step_s: list[FiniteFloat]


class ElasticRun(Record):
    """A job that lost a rank, went on with fewer, and had all again later.

    Attributes:
        stretches: With all ranks, with fewer, with all again.
        shrink_s: From the failure until fewer ranks have done a step, seconds.
        grow_s: From the last step of the fewer until all have done one, seconds.
        unbroken_loss: The same steps in a run that nothing stopped.
    """

    stretches: list[ElasticStretch]
    shrink_s: FiniteFloat = Field(ge=0)
    grow_s: FiniteFloat = Field(ge=0)
    unbroken_loss: list[FiniteFloat]


class RecoveryRecord(Record):
    """What one rank saw of checkpoints in one launch.

    Attributes:
        file_system: Kind of file system of the directory, as the system calls it; null: not known.
        unavailable: Method → why it was not tried.
    """

    saves: list[SaveSample] = []
    restores: list[RestoreSample] = []
    file_system: str | None = None
    unavailable: dict[str, str] = {}
