"""BASE and NEW as a user names them: a run folder, a summary, a folder of accepted baselines.

The files come from other machines. What they say is checked before anything is worked out from it.
"""

import json
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.paths import RunPaths
from scalebench.records import LARGE, RunInfo
from scalebench.store import is_run_folder, load_run, read_model, read_text
from scalebench.summary import SUMMARY_FORMAT, Estimate, Row, Summary
from scalebench.verdict.gate import Results

LARGEST_BYTES = 64 * 1024 * 1024
"""A summary is smaller: three million steps fit."""

_COUNTS = ("world_size", "global_batch")
_SIZES = (
    *("peak_memory_bytes", "predicted_memory_bytes", "wire_bytes", "payload_bytes"),
    *("predicted_wire_bytes", "num_parameters", "rank_batch", "num_clean_steps"),
)
_POSITIVE = ("step_s", "throughput", "speedup", "efficiency", "energy_j_per_sample")


def read_results(path: Path) -> Results:
    """Return what a path stands for.

    A run folder's ``summary.json`` is taken if it is of the run as it stands; otherwise, for
    example after an interruption, the summary is worked out again from the cells.

    Raises:
        UsageError: There is nothing, or it is damaged; the text names the field at fault.
    """
    name = str(path)
    if path.is_dir() and is_run_folder(path):
        return Results(name, (_summary_of_run(path),))
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise UsageError(
                f"There is no run and no baseline in {path}. Give a run folder, a summary.json, or "
                "a folder of reports/baselines/ (`scalebench baseline list`)."
            )
        return Results(name, tuple(read_summary(file) for file in files), partial=True)
    if not path.exists():
        raise UsageError(
            f"There is no {path}. Give a run folder, a summary.json, or a folder of "
            "reports/baselines/; `scalebench list` names the runs, `scalebench baseline list` the "
            "baselines."
        )
    return Results(name, (read_summary(path),))


def _summary_of_run(root: Path) -> Summary:
    paths = RunPaths(root)
    if paths.summary_json.is_file():
        info = read_model(paths.run_json, RunInfo)
        summary = read_summary(paths.summary_json)
        if (summary.run_id, summary.status) == (info.run_id, info.status):
            return summary
    from scalebench.scaling import summarise  # only where it is needed: costs a third of the start

    return _checked(summarise(load_run(root)), str(root))


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
            wrong = f"case: {row.case[:60]!r} at N={row.world_size} is there twice"
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
        if any(step <= 0 for step in samples.step_s):
            return f"samples.{place}.step_s: a step that took no time"
    return None


def _is_positive(estimate: Estimate) -> bool:
    low, high = estimate.low, estimate.high
    if low is None or high is None:
        return 0 < estimate.value < LARGE
    return 0 < low <= estimate.value <= high < LARGE
