"""Several runs of the same things, one launch each, made into one result with as many launches."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.records.baseline import key_of, series_of, step_of
from scalebench.records.rows.budget import Budget
from scalebench.records.rows.recovery import FailureFigures, RecoveryFigures, SaveFigures
from scalebench.records.summary import Row, RowKey, Summary
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed

_POSITIVE = ("throughput", "tokens_per_s", "speedup", "efficiency", "energy_j_per_sample")
_SIGNED = (
    *("comm_s", "exposed_comm_s", "exposed_transfer_s", "wait_s"),
    *("compute_s", "copies_s", "comm_beside_copies_s"),
)


def merged(runs: Sequence[Summary]) -> Summary:
    """Return one summary whose launches are those of all runs, numbered by run.

    A row that failed in one of the runs is that run's row. Budgets and times of recovery are the
    means of the runs', peak memory is the largest; what else is not estimated over launches is the
    first run's.

    Args:
        runs: In the order in which they were made, at least one.
    """
    first = runs[0]
    by_run = [{key_of(row): row for row in run.rows} for run in runs]
    keys = dict.fromkeys(key for rows in by_run for key in rows)
    statuses = [run.status for run in runs if run.status != "complete"]
    return first.model_copy(
        update={
            "rows": [_merged_row(key, by_run) for key in keys],
            "status": statuses[0] if statuses else "complete",
        }
    )


def _merged_row(key: RowKey, by_run: Sequence[dict[RowKey, Row]]) -> Row:
    rows = [found[key] for found in by_run if key in found]
    bad = next((row for row in rows if row.status != "ok"), None)
    if bad is not None:
        return bad
    samples = [
        launch.model_copy(update={"repeat": number})
        for number, found in enumerate(by_run)
        if key in found
        for launch in found[key].samples[:1]
    ]
    measured = [launch for launch in samples if launch.step_s]
    series = series_of(*rows)
    steps = [step_of(launch, series) for launch in measured]
    peaks = [row.peak_memory_bytes for row in rows if row.peak_memory_bytes is not None]
    return rows[0].model_copy(
        update={
            "samples": samples,
            "step_s": estimate_over_launches(steps) if steps else None,
            "peak_memory_bytes": max(peaks, default=None),
            "budget": _mean_budget([row.budget for row in rows]),
            "recovery": merged_recovery([row.recovery for row in rows]),
            "num_clean_steps": sum(len(launch.step_s) for launch in samples),
            **{name: _estimate(rows, name, signed=False) for name in _POSITIVE},
            **{name: _estimate(rows, name, signed=True) for name in _SIGNED},
        }
    )


def _mean_budget(budgets: Sequence[Budget | None]) -> Budget | None:
    """Return the mean of the loss budgets, part by part; None: a run has none."""
    known = [budget for budget in budgets if budget is not None]
    if not known or len(known) < len(budgets):
        return None
    means = _means([dict(budget) for budget in known])
    return known[0].model_copy(update={**means, "points": _means([b.points for b in known])})


def _means(tables: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        name: sum(table[name] for table in tables) / len(tables)
        for name in tables[0]
        if all(isinstance(table.get(name), float) for table in tables)
    }


def _estimate(rows: Sequence[Row], name: str, signed: bool) -> Estimate | None:
    found = [getattr(row, name) for row in rows]
    values = [estimate.value for estimate in found if estimate is not None]
    if len(values) < len(rows):
        return None
    return estimate_signed(values) if signed else estimate_over_launches(values)


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
