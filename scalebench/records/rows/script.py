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


class LearningRate(BaseModel):
    """The largest learning rate of a script's first optimizer, and that of N=1.

    Attributes:
        first: In the first step.
        last: After ``last_step`` steps.
        at_one: In the first step of N=1; null, like the rest: not measured, or a step has as many
            samples as there.
        batch: Samples of a step.
        batch_at_one: Likewise, at N=1.
        linear: What the linear rule makes of that of N=1 (Goyal et al. 2017, with warm-up).
        square_root: What the square-root rule makes of it (Krizhevsky 2014; for Adam Malladi et al.
            2022).
    """

    first: FiniteFloat
    last: FiniteFloat
    last_step: int
    at_one: FiniteFloat | None = None
    batch: FiniteFloat | None = None
    batch_at_one: FiniteFloat | None = None
    linear: FiniteFloat | None = None
    square_root: FiniteFloat | None = None


class ScriptChecks(BaseModel):
    """Whether the ranks of a script train one model on different samples, in the first launch.

    Attributes:
        in_sync: Whether what ranks hold alike is equal at the last moment, but for rounding; null:
            see ``in_sync_unavailable``.
        observed_steps: Before which steps it was looked at, the last: after the last step.
        in_sync_until: The last of them at which all was equal; null: at none, or it still is.
        drift_from: The first of them from which on something differs; null: nothing does.
        differing: Names of some parameters that differ in the end.
        num_differing: How many.
        differing_buffers: Names of some buffers that differ at some moment; not BatchNorm's.
        buffers_broadcast: Whether DDP gives all ranks the buffers of rank 0 in each forward pass.
        same_batches: Whether all ranks trained on the same batches, one after the other; null: no
            DataLoader feeds them and what models are given differs, or is one batch, or is not
            seen; or the ranks do not all divide the data.
        shared_samples: Part of the samples of the first batches that more than one rank trained on;
            null: the batches do not show single samples, or a rank draws some of them twice.
        same_order: Whether an epoch had the order of the one before, because nothing called
            ``set_epoch``; null: no two epochs began.
        batch_norms: Modules that normalise by the batch of one rank.
        same_dropout: Whether dropout draws the same random numbers on all ranks; null: there is
            none, or the ranks do not all divide the data.
        accumulated: Micro-batches of a step; null: one, or not recognised.
        accumulation: Whether their gradients are averaged or summed; null: likewise.
        cleared: Whether a step clears the gradients between its backward passes, so that each of
            them has to be exchanged.
        exchanged: Whether gradients are exchanged ``once`` a step or in ``each pass``; null: not
            traced, or nothing is accumulated.
        learning_rate: Null: not read.
        divided: How often the gradient of the same samples is divided by N: ``once`` is right;
            null: see ``divided_unavailable``.
        gradient_scale: Norm of the gradient of the first step over that at N=1 on the same samples;
            null: these were not seen.
        loss_lost_from: The step, by number from 1, from which on the loss of some rank is NaN or
            infinite in all of the first 32 backward passes; null: in none of the last of them.
        took_ratio: What the checks took, of all steps that were watched, in the rank where it is
            most. None of them is in a step that counts, but for the loss, which is noted.
    """

    in_sync: bool | None = None
    in_sync_unavailable: str | None = None
    observed_steps: list[int] = []
    in_sync_until: int | None = None
    drift_from: int | None = None
    differing: list[str] = []
    num_differing: int = 0
    differing_buffers: list[str] = []
    buffers_broadcast: bool | None = None
    same_batches: bool | None = None
    shared_samples: FiniteFloat | None = None
    same_order: bool | None = None
    batch_norms: int = 0
    same_dropout: bool | None = None
    accumulated: int | None = None
    accumulation: Literal["averaged", "summed"] | None = None
    cleared: bool = False
    exchanged: Literal["once", "each pass"] | None = None
    learning_rate: LearningRate | None = None
    divided: Literal["once", "twice", "never"] | None = None
    divided_unavailable: str | None = None
    gradient_scale: FiniteFloat | None = None
    loss_lost_from: int | None = None
    took_ratio: FiniteFloat | None = None


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
