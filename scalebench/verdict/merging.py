"""Several runs of the same things, one launch each, made into one result with as many launches."""

from collections.abc import Sequence

import numpy as np

from scalebench.stats import Estimate, estimate_over_launches, estimate_signed
from scalebench.summary import Row, StepSamples, Summary
from scalebench.verdict.results import Key, key_of

_POSITIVE = ("throughput", "tokens_per_s", "speedup", "efficiency", "energy_j_per_sample")
_SIGNED = ("comm_s", "exposed_comm_s", "exposed_transfer_s", "wait_s", "compute_s")


def merged(runs: Sequence[Summary]) -> Summary:
    """Return one summary whose launches are those of all runs, numbered by run.

    A row that did not go well in one of the runs is that run's row. What is not estimated over
    launches is the first run's, but for peak memory: that is the largest.

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


def _merged_row(key: Key, by_run: Sequence[dict[Key, Row]]) -> Row:
    rows = [found[key] for found in by_run if key in found]
    bad = next((row for row in rows if row.status != "ok"), None)
    if bad is not None:
        return bad
    samples = [
        StepSamples(repeat=number, step_s=launch.step_s)
        for number, found in enumerate(by_run)
        if key in found
        for launch in found[key].samples[:1]
    ]
    medians = [float(np.median(launch.step_s)) for launch in samples if launch.step_s]
    peaks = [row.peak_memory_bytes for row in rows if row.peak_memory_bytes is not None]
    return rows[0].model_copy(
        update={
            "samples": samples,
            "step_s": estimate_over_launches(medians) if medians else None,
            "peak_memory_bytes": max(peaks, default=None),
            "num_clean_steps": sum(len(launch.step_s) for launch in samples),
            **{name: _estimate(rows, name, signed=False) for name in _POSITIVE},
            **{name: _estimate(rows, name, signed=True) for name in _SIGNED},
        }
    )


def _estimate(rows: Sequence[Row], name: str, signed: bool) -> Estimate | None:
    found = [getattr(row, name) for row in rows]
    values = [estimate.value for estimate in found if estimate is not None]
    if len(values) < len(rows):
        return None
    return estimate_signed(values) if signed else estimate_over_launches(values)
