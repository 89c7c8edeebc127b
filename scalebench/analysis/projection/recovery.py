"""How often to save, and what share of the time trains, at numbers of ranks that fail often.

What a save costs, and a restart, are taken as the run measured them at its largest number of ranks.
A job of another size has other costs: the user who knows them gives them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.costmodel import recovery
from scalebench.errors import UsageError
from scalebench.records.base import Record
from scalebench.records.rows.recovery import SaveFigures
from scalebench.records.summary import Row


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
