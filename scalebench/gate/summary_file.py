"""BASE and NEW as a user names them: a run folder, a summary, a folder of accepted baselines.

The files come from other machines. What they say is checked before anything is worked out from it.
"""

import json
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.records.base import LARGE
from scalebench.records.files import read_model, read_text
from scalebench.records.summary import SUMMARY_FORMAT, Estimate, Row, StepSamples, Summary

LARGEST_BYTES = 64 * 1024 * 1024
"""A summary is smaller: three million steps fit."""

_COUNTS = ("world_size", "global_batch")
_SIZES = (
    *("peak_memory_bytes", "predicted_memory_bytes", "wire_bytes", "payload_bytes"),
    *("predicted_wire_bytes", "num_parameters", "rank_batch", "num_clean_steps"),
    "loss_last_steps",
)
_POSITIVE = ("step_s", "throughput", "speedup", "efficiency", "energy_j_per_sample")


def read_summary(path: Path) -> Summary:
    """Read a ``summary.json`` and check it.

    Raises:
        UsageError: It is no summary, of another format, or says what cannot be.
    """
    try:
        text = read_text(path, LARGEST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    _check_format(path, text)
    return _checked(read_model(path, Summary, strict=True), str(path))


def _check_format(path: Path, text: str) -> None:
    """Tell another version's file from a damaged one before its fields are looked at."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {str(error)[:200] or 'nested too deep'}.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != SUMMARY_FORMAT:
        told = "no format" if found is None else f"format {str(found)[:60]!r}"
        raise UsageError(
            f"{path} has {told}; this version reads {SUMMARY_FORMAT!r}. Give a "
            "run folder or a summary.json, of this version of scalebench."
        )


def _checked(summary: Summary, name: str) -> Summary:
    """Refuse rows that cannot be of a measurement; return the summary."""
    seen = set()
    for index, row in enumerate(summary.rows):
        wrong = _wrong(row)
        key = (row.suite, row.case, row.world_size)
        if key in seen:
            wrong = f"case: {row.case[:60]!r} at N={row.world_size} occurs twice"
        seen.add(key)
        if wrong:
            raise UsageError(f"{name} is damaged: rows.{index}.{wrong}.")
    return summary


def _wrong(row: Row) -> str | None:
    """Return the field of a row that cannot be right and why; None: none."""
    for name in _COUNTS:
        if not 1 <= getattr(row, name) < LARGE:
            return f"{name}: not between 1 and 2^60"
    for name in _SIZES:
        value = getattr(row, name)
        if value is not None and not 0 <= value < LARGE:
            return f"{name}: not between 0 and 2^60"
    for name in _POSITIVE:
        estimate = getattr(row, name)
        if estimate is not None and not _is_positive(estimate):
            return f"{name}: not a positive number with an interval around it"
    for place, samples in enumerate(row.samples):
        wrong = _wrong_samples(samples)
        if wrong:
            return f"samples.{place}.{wrong}"
    return None


def _wrong_samples(samples: StepSamples) -> str | None:
    for name in ("step_s", "pace_s"):
        if any(step <= 0 for step in getattr(samples, name)):
            return f"{name}: a step that took no time"
    if samples.pace_s and len(samples.pace_s) != len(samples.step_s):
        return "pace_s: not as many steps as step_s has"
    if samples.mean_s is not None and not 0 < samples.mean_s < LARGE:
        return "mean_s: not a positive number"
    peak = samples.peak_memory_bytes
    if peak is not None and not 0 <= peak < LARGE:
        return "peak_memory_bytes: not between 0 and 2^60"
    return None


def _is_positive(estimate: Estimate) -> bool:
    low, high = estimate.low, estimate.high
    if low is None or high is None:
        return 0 < estimate.value < LARGE
    return 0 < low <= estimate.value <= high < LARGE
