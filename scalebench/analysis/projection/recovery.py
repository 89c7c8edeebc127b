"""A projection as it is stored and shown, and how often a job of its size should save.

How often to save, and what share of the time trains, at numbers of ranks that fail often.

What a save costs, and a restart, are taken as the run measured them at its largest number of ranks.
A job of another size has other costs: the user who knows them gives them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.analysis.projection.scores import PREDICTION_CONFIDENCE
from scalebench.costmodel import recovery
from scalebench.errors import ExitCode, ScalebenchError, UsageError
from scalebench.records.rows.race import SaveFigures
from scalebench.records.summary import Row
from scalebench.spec.base import Record
from scalebench.stats import Estimate


@dataclass(frozen=True)
class FailureRates:
    """What is assumed of failures, and what replaces measured costs; times in seconds.

    Attributes:
        mtbf_s: Mean time between failures of the job, whatever its size; None: by its devices.
        device_mtbf_s: Of one device: N devices fail N times as often.
        interval_s: Training between saves, as it is now; None: only the best one is worked out.
        restart_s: From a failure until the job trains again; None: as measured.
        cost_s: What a save costs training; None: as measured.
    """

    mtbf_s: float | None = None
    device_mtbf_s: float | None = None
    interval_s: float | None = None
    restart_s: float | None = None
    cost_s: float | None = None

    def mtbf_at(self, world_size: int) -> float:
        """Return the mean time between failures of a job of so many devices, seconds."""
        if self.mtbf_s is not None:
            return self.mtbf_s
        assert self.device_mtbf_s is not None, "one of the two is given"
        return recovery.mtbf_of_job(self.device_mtbf_s, world_size)


class TimeShares(Record):
    """Where the time of a job goes; see `scalebench.costmodel.recovery.Shares`."""

    training: float
    save: float
    lost: float
    restart: float


class ProjectedRecovery(Record):
    """One way to save a case at one number of ranks, with failures; everything is derived.

    Attributes:
        mtbf_s: Mean time between failures of the job, seconds.
        cost_s: What a save costs training, seconds.
        restart_s: From a failure until the job trains again, seconds; null: see ``reason``.
        measured_world_size: Where both were measured; null: they were given.
        young_interval_s: Training between saves by Young 1974, seconds.
        daly_interval_s: The same by Daly 2006.
        optimal_interval_s: The same, exact.
        at_optimum: Where the time goes with it; ``training`` is the goodput.
        durable_after_s: From the end of a save's cost until its checkpoint is on the disk, as
            measured, seconds; 0 where the cost was given. The formulas leave it out.
        interval_s: Training between saves as given.
        at_interval: Where the time goes with that; null: none was given.
    """

    suite: str
    case: str
    method: str
    world_size: int
    mtbf_s: float
    cost_s: float
    restart_s: float | None = None
    measured_world_size: int | None = None
    young_interval_s: float
    daly_interval_s: float
    optimal_interval_s: float
    at_optimum: TimeShares | None = None
    durable_after_s: float = 0.0
    interval_s: float | None = None
    at_interval: TimeShares | None = None
    reason: str | None = None


def check_rates(rates: FailureRates) -> None:
    """Raise UsageError unless it is said, in one way, how often jobs fail."""
    if rates.mtbf_s is not None and rates.device_mtbf_s is not None:
        raise UsageError("--mtbf and --device-mtbf both say how often jobs fail. Give one of them.")
    if rates.mtbf_s is None and rates.device_mtbf_s is None:
        raise UsageError(
            "--interval, --restart and --checkpoint-cost need a failure rate: add --mtbf 8h (of "
            "the job) or --device-mtbf 50000h (of each device)."
        )


def project_recovery(
    rows: Sequence[Row], world_sizes: Sequence[int], rates: FailureRates
) -> list[ProjectedRecovery]:
    """Return, for every case and way to save, what failures leave of the time.

    Raises:
        UsageError: The interval is shorter than a save, no row was saved and no cost is given.
    """
    check_rates(rates)
    found = _saved_at_most_ranks(rows)
    if not found:
        raise UsageError(
            "--mtbf and --device-mtbf need a run that measured checkpoints, and no row of this one "
            "was saved. Run scalebench run recovery, and project that run."
        )
    return [
        _projected(row, save, world_size, rates)
        for row, save in found
        for world_size in world_sizes
    ]


def _saved_at_most_ranks(rows: Sequence[Row]) -> list[tuple[Row, SaveFigures]]:
    """Return the row of each case at most ranks, once for each way to save."""
    largest: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.recovery is not None and row.recovery.saves:
            known = largest.get((row.suite, row.case))
            if known is None or row.world_size > known.world_size:
                largest[row.suite, row.case] = row
    return [
        (row, save)
        for row in largest.values()
        for save in (row.recovery.saves if row.recovery else [])
    ]


def _projected(
    row: Row, save: SaveFigures, world_size: int, rates: FailureRates
) -> ProjectedRecovery:
    method, measured_cost_s = save.method, save.cost_s.value
    cost_s = measured_cost_s if rates.cost_s is None else rates.cost_s
    late_s = max(0.0, save.durable_s.value - measured_cost_s) if rates.cost_s is None else 0.0
    if rates.interval_s is not None and rates.interval_s < cost_s:
        raise UsageError(
            f"--interval {units.seconds(rates.interval_s)} is shorter than one checkpoint of "
            f"{row.case} by {method}, which costs {units.seconds(cost_s)}. Give a longer interval."
        )
    mtbf_s = rates.mtbf_at(world_size)
    restart_s = restart_of(row) if rates.restart_s is None else rates.restart_s
    best_s = recovery.optimal_interval(cost_s, mtbf_s)
    given = restart_s is not None and rates.interval_s is not None
    both_given = rates.cost_s is not None and rates.restart_s is not None
    return ProjectedRecovery(
        suite=row.suite,
        case=row.case,
        method=method,
        world_size=world_size,
        mtbf_s=mtbf_s,
        cost_s=cost_s,
        restart_s=restart_s,
        measured_world_size=None if both_given else row.world_size,
        young_interval_s=recovery.young_interval(cost_s, mtbf_s),
        daly_interval_s=recovery.daly_interval(cost_s, mtbf_s),
        optimal_interval_s=best_s,
        at_optimum=_shares(best_s, cost_s, restart_s, mtbf_s),
        durable_after_s=late_s,
        interval_s=rates.interval_s,
        at_interval=_shares(rates.interval_s, cost_s, restart_s, mtbf_s) if given else None,
        reason=None if restart_s is not None else "no restart was measured; give --restart",
    )


def _shares(
    interval_s: float | None, cost_s: float, restart_s: float | None, mtbf_s: float
) -> TimeShares | None:
    if interval_s is None or restart_s is None:
        return None
    return TimeShares(**vars(recovery.shares(interval_s, cost_s, restart_s, mtbf_s)))


def restart_of(row: Row) -> float | None:
    """Return what a restart of a row took, seconds: the mean over its kills; None: not measured."""
    failures = row.recovery.failures if row.recovery else []
    killed = [one.restart_s.value for one in failures if one.kind == "kill"]
    return killed[0] if killed else None


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
