"""Recovery in the gate: each way to save and each kind of failure is a metric of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalebench.gate.metrics import Metric, named_metric
from scalebench.gate.observation import Observation, from_estimate
from scalebench.records.rows.recovery import FailureFigures, RecoveryFigures, SaveFigures
from scalebench.records.rows.recovery_times import times_of
from scalebench.records.summary import Row
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed


@dataclass(frozen=True)
class TimedRecovery:
    """One time of recovery in two rows; None: a row does not have it.

    Attributes:
        again: The same in further accepted runs of the baseline.
    """

    metric: Metric
    base: Observation | None
    new: Observation | None
    again: tuple[Observation | None, ...]


def timed_recoveries(
    base: Row, new: Row, further: Sequence[Row], settings: Sequence[Metric]
) -> Iterator[TimedRecovery]:
    """Yield every time of recovery that at least one of two rows has.

    Args:
        base: The baseline's row.
        new: The new run's.
        further: The row in further accepted runs.
        settings: See `scalebench.gate.metrics.RECOVERY`.
    """
    sides = [_times(row) for row in (base, new, *further)]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        chosen = next((m for m in settings if name.endswith(m.name)), None)
        if chosen is not None:
            was, is_, *again = (_observed(side.get(name)) for side in sides)
            yield TimedRecovery(named_metric(name, chosen), was, is_, tuple(again))


def _times(row: Row) -> dict[str, Estimate]:
    return {time.name: time.estimate for time in times_of(row.recovery)}


def _observed(estimate: Estimate | None) -> Observation | None:
    if estimate is None:
        return None
    return Observation(estimate.value, from_estimate(estimate, logarithmic=True))


def merged_recovery(runs: Sequence[RecoveryFigures | None]) -> RecoveryFigures | None:
    """Return the figures of several runs, one value each; what a run does not have is left out.

    Restores, which have no interval, are the first run's. None: a run has no figures.
    """
    known = [figures for figures in runs if figures is not None]
    if not known or len(known) < len(runs):
        return None
    saves = [[figures.save_by(save.method) for figures in known] for save in known[0].saves]
    failures = [[_failure_like(figures, one) for figures in known] for one in known[0].failures]
    update = {
        "saves": [_merged_save([s for s in of if s]) for of in saves if None not in of],
        "failures": [_merged_failure([f for f in of if f]) for of in failures if None not in of],
    }
    return known[0].model_copy(update=update)


def _failure_like(figures: RecoveryFigures, like: FailureFigures) -> FailureFigures | None:
    wanted = (like.kind, like.restarted_by)
    found = (one for one in figures.failures if (one.kind, one.restarted_by) == wanted)
    return next(found, None)


def _merged_save(saves: Sequence[SaveFigures]) -> SaveFigures:
    slower = [save.slower_s.value for save in saves if save.slower_s is not None]
    names = ("stall_s", "durable_s", "bandwidth_byte_per_s", "cost_s")
    means = {
        name: estimate_over_launches([getattr(save, name).value for save in saves])
        for name in names
    }
    complete = len(slower) == len(saves)
    return saves[0].model_copy(
        update={**means, "slower_s": estimate_signed(slower) if complete else None}
    )


def _merged_failure(failures: Sequence[FailureFigures]) -> FailureFigures:
    phases = [name for name in failures[0].phases_s if all(name in f.phases_s for f in failures)]
    return failures[0].model_copy(
        update={
            "phases_s": {
                name: estimate_signed([f.phases_s[name].value for f in failures]) for name in phases
            },
            "restart_s": estimate_signed([f.restart_s.value for f in failures]),
            "total_s": estimate_signed([f.total_s.value for f in failures]),
            "lost_steps": sum(f.lost_steps for f in failures) / len(failures),
        }
    )
