"""What a row says of a race to a loss, and of its checkpoints."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import FiniteFloat

from scalebench.spec.base import RowPart
from scalebench.stats import Estimate


class RaceFigures(RowPart):
    """A case's race towards a loss, over its seeds.

    Estimates are geometric means over seeds, losses means, with Student's t interval. Ratios are
    formed between launches of the same seed: the same initial parameters and samples.

    Attributes:
        target_loss: Mean loss on the held-out samples.
        target_from: Who set it: ``given``, or which case after how many samples.
        baseline: Case and ranks that the ratios compare with.
        samples: That every seed trained on.
        num_seeds: Launches.
        num_reached: Of these, how many reached the target, and held it at the next evaluation.
        time_to_target_s: Of training; null where a seed did not reach it.
        elapsed_to_target_s: The same with the evaluations until then.
        samples_to_target: Of all ranks together.
        steps_to_target: Steps of the optimizer.
        bytes_to_target: On the wire, of the rank that sends most. Derived: steps times a step's
            bytes; counted where ranks do not exchange in every step.
        energy_to_target_j: Derived: samples times a sample's energy.
        median_time_to_target_s: Over the seeds, one that did not reach it being later than all
            that did; null where half of them or more did not.
        statistical_efficiency: Samples that the baseline needs over samples that this needs.
        hardware_efficiency: Samples per second over N times those of the baseline, until each
            reached the target.
        speedup_to_target: Time that the baseline needs over time that this needs: N times the
            product of the two efficiencies.
        noise_scale: Gradient noise scale of the baseline until it reached the target, samples; from
            held-out samples at the end of each block of steps.
        noise_scale_of_steps: The same of this row's own training, from the gradients that its ranks
            had in its steps; DDP on several ranks.
        predicted_statistical_efficiency: Predicted: what the noise scale leaves of the baseline's
            at this batch, each batch at its best learning rate.
        final_loss: After all samples.
        lowest_loss: Of all seeds and evaluations.
        equal_time_s: The shortest training time of any launch of the suite.
        loss_at_equal_time: After so many seconds of training.
        unavailable: Field → why it is null.
    """

    target_loss: FiniteFloat
    target_from: str
    baseline: tuple[str, int]
    samples: int
    num_seeds: int
    num_reached: int
    time_to_target_s: Estimate | None = None
    elapsed_to_target_s: Estimate | None = None
    samples_to_target: Estimate | None = None
    steps_to_target: Estimate | None = None
    bytes_to_target: Estimate | None = None
    energy_to_target_j: Estimate | None = None
    median_time_to_target_s: FiniteFloat | None = None
    statistical_efficiency: Estimate | None = None
    hardware_efficiency: Estimate | None = None
    speedup_to_target: Estimate | None = None
    noise_scale: Estimate | None = None
    noise_scale_of_steps: Estimate | None = None
    predicted_statistical_efficiency: FiniteFloat | None = None
    final_loss: Estimate | None = None
    lowest_loss: FiniteFloat | None = None
    equal_time_s: FiniteFloat | None = None
    loss_at_equal_time: Estimate | None = None
    unavailable: dict[str, str] = {}


class RankShares(RowPart):
    """Where one rank's time went: parts of the training, which sum to 1; means over the launches.

    Attributes:
        compute: Its own work.
        exchange: From the start of an exchange until it has the result, transfer and waiting
            together; of traced steps the transfer alone.
        wait: For ranks that are slower: until the end of a block of steps; of traced steps in
            operations too.
        num_batches: That it trained in a launch; null: as many as there were steps.
    """

    rank: int
    compute: FiniteFloat
    exchange: FiniteFloat
    wait: FiniteFloat
    num_batches: FiniteFloat | None = None


class StageFigures(RowPart):
    """How old the weights of a stage's gradients were, and what keeping them took, with its law.

    Attributes:
        stage: From 0.
        staleness: The most steps between the weights of a gradient and the step by it.
        weight_versions: The most that were kept at a time, the newest ones among them.
        stash_bytes: The most that the others took.
    """

    stage: int
    staleness: int
    staleness_law: int
    weight_versions: int
    weight_versions_law: int
    stash_bytes: int
    stash_law_bytes: int


class LockstepFigures(RowPart):
    """Where the ranks' time went, and what training without lockstep cost instead.

    Attributes:
        ranks: In order.
        traced: Whether traced steps told, not the strategy's own clock.
        staleness: Steps that a server or a stage made between a gradient's parameters and its
            arrival → gradients, of all of them and all launches; null: there are none.
        stages: Of a pipeline that is never flushed, in order; null: it is none.
        num_dropped: Of these, gradients that came after the step that they were for.
    """

    ranks: list[RankShares]
    traced: bool
    staleness: dict[int, int] | None = None
    stages: list[StageFigures] | None = None
    num_dropped: int = 0

    @property
    def mean_staleness(self) -> float | None:
        """The mean over the gradients; None: not counted."""
        counts = self.staleness or {}
        total = sum(counts.values())
        return sum(steps * count for steps, count in counts.items()) / total if total else None


class SaveFigures(RowPart):
    """One way to save, over the saves of one launch; ``n`` of an estimate counts saves.

    Attributes:
        stall_s: Seconds in which no rank trains; the slowest rank.
        durable_s: From the start of a save until every byte is on the disk (``fsync``), seconds.
        bytes: Of a checkpoint.
        bandwidth_byte_per_s: Derived: bytes over ``durable_s``.
        steps_beside: Steps that began before the checkpoint was durable, mean.
        slower_s: How much longer these took than the same number of steps before the save, seconds;
            null: there were none.
        slowdown: The same over their time before; null: there were none.
        cost_s: Derived: what a save costs training: the stall, and the slower steps where they
            are slower.
        extra_host_bytes: Host memory on top during a save: the largest over ranks and saves.
        extra_device_bytes: The same of the GPU's memory.
        unavailable: Field → why it is null.
    """

    method: str
    stall_s: Estimate
    durable_s: Estimate
    bytes: int
    bandwidth_byte_per_s: Estimate
    steps_beside: FiniteFloat
    slower_s: Estimate | None = None
    slowdown: FiniteFloat | None = None
    cost_s: Estimate
    extra_host_bytes: int | None = None
    extra_device_bytes: int | None = None
    unavailable: dict[str, str] = {}


class RestoreFigures(RowPart):
    """One restore in fresh processes; it brought back every bit, or its launch failed.

    Attributes:
        saved_world_size: Ranks that saved.
        load_s: From the search for the newest checkpoint until every rank has its state, seconds.
        first_step_s: The first step after it, seconds.
        num_tensors: Compared, bit for bit, with what was saved.
        continues_equal: Whether further steps led to the same bits as without a stop; null: the
            number of ranks differs.
    """

    method: str
    saved_world_size: int
    load_s: FiniteFloat
    first_step_s: FiniteFloat
    num_tensors: int
    continues_equal: bool | None = None


class FailureFigures(RowPart):
    """One kind of failure and who started the ranks again; ``n`` of an estimate counts failures.

    Attributes:
        phases_s: Phase → seconds, in the order of `scalebench.spec.recovery.PHASES`. Their means
            sum to the mean of ``total_s``.
        restart_s: From the failure until the state is loaded, seconds: what is called R.
        total_s: Until the step in which it came is done, seconds.
        lost_steps: Steps trained since the checkpoint that was loaded, mean.
        badput_s: The field's name for lost time → seconds, see `scalebench.spec.recovery.BADPUT`.
            Their means sum to that of ``total_s``. Where ``data`` is null, ``restore`` holds it.
        unavailable: Name → why it is null.
    """

    kind: str
    restarted_by: str
    phases_s: dict[str, Estimate]
    restart_s: Estimate
    total_s: Estimate
    lost_steps: FiniteFloat
    badput_s: dict[str, Estimate | None] = {}
    unavailable: dict[str, str] = {}


class ElasticStretchFigures(RowPart):
    """A job with one number of ranks, of one that lost a rank and had it again later.

    Attributes:
        rank_batch: Samples of a rank and step.
        accumulate: Parts in which a rank trains them.
        first_step: Its number in the job.
        num_steps: Trained.
        step_s: From one step to the next, median; null: too few steps.
        throughput: Derived: samples of the global batch over ``step_s``.
        throughput_over_losses: Its mean and interval over repeated losses; null: lost once.
        loss: Of the global batch, step by step.
    """

    world_size: int
    rank_batch: int
    accumulate: int = 1
    first_step: int
    num_steps: int
    step_s: FiniteFloat | None = None
    throughput: FiniteFloat | None = None
    throughput_over_losses: Estimate | None = None
    loss: list[FiniteFloat] = []


class ElasticFigures(RowPart):
    """A job that lost a rank, went on with fewer, and had all again later.

    All but the intervals is of the first loss.

    Attributes:
        stretches: With all ranks, with fewer, with all again.
        shrink_s: From the failure until fewer ranks have done a step, seconds.
        grow_s: From the last step of the fewer until all have done one, seconds.
        loss_deviation: The largest relative difference of a step's loss from that of the same
            step in a run that nothing stopped, over all losses; null: no step is in both.
        shrink_over_losses_s: Of ``shrink_s``, mean and interval over repeated losses, whose number
            is ``n``; null: a rank was lost once.
        grow_over_losses_s: The same of ``grow_s``.
    """

    stretches: list[ElasticStretchFigures]
    shrink_s: FiniteFloat
    grow_s: FiniteFloat
    loss_deviation: FiniteFloat | None = None
    shrink_over_losses_s: Estimate | None = None
    grow_over_losses_s: Estimate | None = None


class RecoveryFigures(RowPart):
    """What checkpoints of a row cost, and what came back from them.

    Attributes:
        elastic: How the job went on with fewer ranks; null: it was not tried.
        file_system: Where they were: ``ext4``, ``tmpfs``, …; null: not known.
        unavailable: Method → why it was not tried.
    """

    file_system: str | None = None
    saves: list[SaveFigures] = []
    restores: list[RestoreFigures] = []
    failures: list[FailureFigures] = []
    elastic: ElasticFigures | None = None
    unavailable: dict[str, str] = {}

    def save_by(self, method: str) -> SaveFigures | None:
        """Return the figures of a way to save; None: it was not tried."""
        return next((one for one in self.saves if one.method == method), None)

    @property
    def cheapest(self) -> SaveFigures | None:
        """The way to save that costs training least; None: nothing was saved."""
        return min(self.saves, key=lambda one: one.cost_s.value, default=None)


Quantity = Literal["checkpoint_stall_s", "checkpoint_durable_s", "checkpoint_cost_s", "restart_s"]

STALL: Quantity = "checkpoint_stall_s"
RESTART: Quantity = "restart_s"

ABOUT: Mapping[Quantity, str] = {
    "checkpoint_stall_s": "Time in which a checkpoint lets no rank train.",
    "checkpoint_durable_s": "From the start of a save until the checkpoint is on the disk.",
    "checkpoint_cost_s": "What a checkpoint costs training: its stall, and slower steps.",
    "restart_s": "From a failure until the state is loaded again.",
}


@dataclass(frozen=True)
class RecoveryTime:
    """One time of a row.

    Attributes:
        quantity: What it is.
        labels: Of which way to save, or of which failure and who started the ranks again.
        estimate: In seconds; its ``n`` counts saves or failures.
    """

    quantity: Quantity
    labels: Mapping[str, str]
    estimate: Estimate = field(compare=False)

    @property
    def name(self) -> str:
        """Its name among all of a row, for example ``kill_torchrun_restart_s``."""
        return "_".join([*self.labels.values(), self.quantity]).replace("-", "_")


def times_of(figures: RecoveryFigures | None) -> Iterator[RecoveryTime]:
    """Yield every time of a row; none where nothing was saved."""
    if figures is None:
        return
    for save in figures.saves:
        method = {"method": save.method}
        yield RecoveryTime("checkpoint_stall_s", method, save.stall_s)
        yield RecoveryTime("checkpoint_durable_s", method, save.durable_s)
        yield RecoveryTime("checkpoint_cost_s", method, save.cost_s)
    for failure in figures.failures:
        who = {"failure": failure.kind, "restarted_by": failure.restarted_by}
        yield RecoveryTime("restart_s", who, failure.restart_s)
