"""A projection as it is stored and shown: the shards it rests on, its rows, its assumptions."""

from scalebench.analysis.projection.recovery import ProjectedRecovery
from scalebench.analysis.projection.scores import PREDICTION_CONFIDENCE
from scalebench.errors import ExitCode, ScalebenchError
from scalebench.records.base import Record
from scalebench.stats import Estimate


class NothingToProject(ScalebenchError):
    """A run that supports no projection."""

    exit_code = ExitCode.INCONCLUSIVE


class MeasuredShard(Record):
    """What one rank's shard of a job takes by itself, measured without the other ranks.

    Attributes:
        step_s: Its step, no communication in it, seconds; null: see ``reason``.
        peak_memory_bytes: The peak of its tensors.
    """

    suite: str
    case: str
    world_size: int
    step_s: float | None = None
    peak_memory_bytes: int | None = None
    reason: str | None = None


class ProjectedRow(Record):
    """One case at one number of ranks.

    Attributes:
        step_s: Predicted, seconds; null: see ``reason``.
        low_s: Lower end of the prediction interval; null: see ``interval_reason``.
        high_s: Upper end, likewise.
        throughput: Samples per second of the job.
        efficiency: Against the plain model; null: the run has no plain baseline.
        ideal_s: Time of a rank's share of the plain model's step.
        compute_inflation_s: What computing takes longer than that: the wrapper, and a smaller
            batch.
        bubble_s: Idle by the schedule of a pipeline.
        exposed_transfer_s: Communication that nothing hides. With the three before it sums to the
            step; waits, stalls and contention are not predicted.
        calibrated_world_sizes: Where the link was measured; empty: it is nominal.
        outside: Sizes at which a line of the link was continued beyond its support, in words.
        share: A rank's shard as it was measured here; null: the line through what N=1 measured
            stands for it.
        noise_scale: Gradient noise scale of the workload, samples; null: neither given nor
            measured by a race of the run.
        statistical_efficiency: By the noise scale: samples to a loss that the plain model needs on
            one rank over samples that this needs, each batch at its best learning rate.
        speedup_to_loss: Seconds to a loss that the plain model needs on one rank over seconds that
            this needs.
        speedup_to_loss_low: The same with step and noise scale at the worse ends of their
            intervals; null: one of them has none.
        speedup_to_loss_high: Likewise, at the better ends.
    """

    suite: str
    case: str
    world_size: int
    global_batch: int
    rank_batch: int
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    confidence: float = PREDICTION_CONFIDENCE
    interval_reason: str | None = None
    throughput: float | None = None
    efficiency: float | None = None
    ideal_s: float | None = None
    compute_inflation_s: float | None = None
    bubble_s: float | None = None
    exposed_transfer_s: float | None = None
    calibrated_world_sizes: tuple[int, ...] = ()
    outside: tuple[str, ...] = ()
    reason: str | None = None
    share: MeasuredShard | None = None
    noise_scale: Estimate | None = None
    statistical_efficiency: float | None = None
    speedup_to_loss: float | None = None
    speedup_to_loss_low: float | None = None
    speedup_to_loss_high: float | None = None


class Projection(Record):
    """All projected rows of a run.

    Attributes:
        assumptions: What is taken for granted, in words.
        typical_error: Root mean square of the logarithm of predicted over measured step, of rows
            that were predicted without links of so many ranks if there are such; null: nothing
            could be compared with a measurement.
        num_scored: How many rows that rests on.
        recovery: What failures leave of the time; empty: no failure rate was given.
    """

    format: str = "scalebench.projection/1"
    run_id: str
    assumptions: tuple[str, ...]
    typical_error: float | None
    num_scored: int
    rows: tuple[ProjectedRow, ...]
    recovery: tuple[ProjectedRecovery, ...] = ()

    @classmethod
    def without_steps(cls, run_id: str, reason: str) -> "Projection":
        """Return a projection of no steps, with the reason among its assumptions."""
        return cls(run_id=run_id, assumptions=(reason,), typical_error=None, num_scored=0, rows=())
