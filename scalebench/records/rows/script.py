"""What a row says of a user's script alone: what it does between steps, how it is distributed."""

from typing import Literal

from pydantic import BaseModel, FiniteFloat


class LongestGap(BaseModel):
    """One time between two steps.

    Attributes:
        step: The step after it, by number from 0.
        rank: Where it was longest.
        repeat: Number of the launch.
        kind: What took most of it: ``evaluation`` or ``checkpoint``, in earlier summaries also
            ``other``; null: not recorded.
    """

    step: int
    rank: int
    repeat: int
    seconds: FiniteFloat
    kind: Literal["evaluation", "checkpoint", "other"] | None = None


class OutsideSteps(BaseModel):
    """Time between steps in which a script evaluated or saved, as far as that is recognised.

    It is no part of any step, and of no part of the loss budget.

    Attributes:
        seconds: Of the rank that has most, in all launches together.
        share: Of the time from the first clean step to the last, these gaps included.
        num_gaps: How many of them.
        largest: The longest first, at most three.
        evaluation_s: The part of ``seconds`` in which the script evaluated; null: not recorded.
        checkpoint_s: The part in which it saved.
        other_s: The rest; null since all other work is part of the steps.
    """

    seconds: FiniteFloat
    share: FiniteFloat
    num_gaps: int
    largest: list[LongestGap]
    evaluation_s: FiniteFloat | None = None
    checkpoint_s: FiniteFloat | None = None
    other_s: FiniteFloat | None = None


class Wrapper(BaseModel):
    """What a script has wrapped its modules in, as it was found in rank 0 after the measurement.

    Attributes:
        kind: ``DistributedDataParallel``, ``FSDPModule`` (FSDP2), ``FullyShardedDataParallel``,
            ``DeepSpeedEngine``, ``ZeroRedundancyOptimizer``, ``_PipelineStageBase``,
            ``_PipelineSchedule``, or ``DTensor``: a layout of parameters over a mesh.
        modules: How many of them, for FSDP.
        bucket_bytes: DDP's ``bucket_cap_mb``.
        unused_bytes: Size of the parameters that DDP's last search found unused; null: not known.
        hook: DDP's communication hook.
        stage: DeepSpeed's ZeRO stage, or the number of a pipeline's stage.
        of: Stages of the pipeline.
        schedule: The pipeline's, by torch's name.
        sharding: FSDP1's sharding strategy.
        mesh: Name → size of the dimensions of the device mesh.
        placements: What each dimension of the mesh does to the parameters.
        parameters: How many have this layout.
        data_ranks: Over how many ranks FSDP2 divides the data; the rest of the mesh divides layers.
    """

    kind: str
    modules: int | None = None
    bucket_bytes: int | None = None
    find_unused_parameters: bool | None = None
    unused_bytes: int | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    hook: str | None = None
    stage: int | None = None
    of: int | None = None
    schedule: str | None = None
    microbatches: int | None = None
    sharding: str | None = None
    mesh: dict[str, int] | None = None
    placements: list[str] | None = None
    parameters: int | None = None
    data_ranks: int | None = None


class HostWaitPlace(BaseModel):
    """Where in a script's code the host waits for the device.

    Attributes:
        file: Below the folder in which the script ran.
        call: For example ``.item()``.
        calls: In all steps that were looked at.
    """

    file: str
    line: int
    call: str
    calls: int


class HostWaits(BaseModel):
    """Calls that have the host wait for the device, in the traced steps of rank 0.

    Attributes:
        per_step: How many.
        steps: In how many steps they were counted.
        seconds_per_step: What the host spends in them; null: not recorded.
        places: The first comes first.
    """

    per_step: FiniteFloat
    steps: int
    seconds_per_step: FiniteFloat | None = None
    places: list[HostWaitPlace]


class LoaderSettings(BaseModel):
    """How the DataLoader makes the batches of the training."""

    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None


class ProcessGroups(BaseModel):
    """Process groups of one name and size that rank 0 belongs to or knows.

    Attributes:
        name: ``world``, or what their maker calls them; empty: no name was given.
        ranks: In each of them.
        count: How many.
    """

    name: str
    ranks: int
    count: int


class ScriptChecks(BaseModel):
    """Whether the ranks of a script train one model on different samples, in the first launch.

    Attributes:
        in_sync: Whether the ranks' parameters are equal after the measurement, but for rounding;
            null: the script has no DDP, or divides them, or averages now and then.
        differing: Names of some parameters that are not.
        num_differing: How many.
        same_batches: Whether all ranks trained on the same batches, one after the other; null: no
            DataLoader feeds them, or the ranks do not all divide the data.
        same_order: Whether an epoch had the order of the one before, because nothing called
            ``set_epoch``; null: no two epochs began.
        batch_norms: Modules that normalise by the batch of one rank.
    """

    in_sync: bool | None = None
    differing: list[str] = []
    num_differing: int = 0
    same_batches: bool | None = None
    same_order: bool | None = None
    batch_norms: int = 0


class ScriptFacts(BaseModel):
    """What was seen of a script's own code besides its steps, in rank 0 of the first launch.

    Attributes:
        host_waits: Null: see ``host_waits_unavailable``.
        unused_search_s: What DDP's search for unused parameters takes of a step, on the host, the
            median of all ranks and launches; null: there is none, or no step was traced.
        loader: Null: no DataLoader feeds the training.
        groups: The process groups.
        calls_per_step: Calls of optimizers, or of ``scalebench.step()``, that make a step; null:
            not recorded.
        backwards_per_step: Backward passes, mean over the steps; null: likewise.
        batch_wait_s: Waiting for the next batch, per clean step, of the rank that waits least; mean
            over the launches, seconds; null: likewise.
        checks: Whether the script trains rightly; null: on one rank, or not recorded.
    """

    host_waits: HostWaits | None = None
    host_waits_unavailable: str | None = None
    unused_search_s: FiniteFloat | None = None
    loader: LoaderSettings | None = None
    groups: list[ProcessGroups] = []
    calls_per_step: int | None = None
    backwards_per_step: FiniteFloat | None = None
    batch_wait_s: FiniteFloat | None = None
    checks: ScriptChecks | None = None
