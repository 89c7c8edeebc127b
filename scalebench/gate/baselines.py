"""Summaries that the gate compares with: files of any machine, and accepted baselines.

What a file says is checked before anything is worked out from it. A baseline is a file
``reports/baselines/<machine>/<suite>.json``, made to be committed. Further runs of the same code
and machine are kept as ``<suite>/2.json`` and so on. They tell how much runs differ from job to
job.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError
from scalebench.gate.results import Results, environment_mismatches
from scalebench.records.files import read_model, read_text, write_model
from scalebench.records.paths import baseline_file, baselines_folder, further_baselines
from scalebench.records.summary import SUMMARY_FORMAT, Estimate, Row, StepSamples, Summary
from scalebench.spec.base import LARGE

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
    try:
        return checked(read_model(path, Summary, strict=True), str(path))
    except UsageError as error:
        raise UsageError(f"{error} {_remedy(path)}") from error


def _remedy(path: Path) -> str:
    """Say what to do with a summary that is damaged."""
    if path.name == "summary.json" and (path.parent / "run.json").is_file():
        return f"Remove it and give {path.parent}: it is made again from the records of the run."
    return "Copy it again, or make it again with `scalebench baseline accept`."


def _check_format(path: Path, text: str) -> None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        told = str(error)[:200] or "nested too deep"
        raise UsageError(f"{path} is damaged: {told}. {_remedy(path)}") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != SUMMARY_FORMAT:
        told = "no format" if found is None else f"format {str(found)[:60]!r}"
        raise UsageError(
            f"{path} has {told}; this version reads {SUMMARY_FORMAT!r}. Give a "
            "run folder or a summary.json, of this version of scalebench."
        )


def checked(summary: Summary, name: str) -> Summary:
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


_LONGEST = 60


def machine_name(environment: Mapping[str, Any]) -> str:
    """Return a folder's name for machines like this one, for example ``2-cores-epyc-7b13``.

    The devices where there are any, else the processor; never the host, which in CI is another one
    every time.
    """
    devices = environment.get("devices")
    names = [d.get("name") for d in devices or [] if isinstance(d, Mapping)]
    if names:
        told = f"{len(names)}x {names[0]}"
    else:
        told = f"{environment.get('cores', '?')} cores {environment.get('cpu') or 'unknown'}"
    slug = re.sub(r"\(r\)|\(tm\)", "", told.lower())
    return re.sub(r"[^a-z0-9]+", "-", slug).strip("-")[:_LONGEST].rstrip("-") or "unknown"


def accept(run: Results, machine: str | None = None, add: bool = False) -> list[Path]:
    """Make a run the baseline of its machine, a file for each suite; return the files.

    ``machine``: name of the folder; None: by the hardware. ``add`` keeps the runs that were
    accepted before.

    Raises:
        UsageError: The run is not whole: a baseline with holes would let regressions through. Or
            it cannot be added: it is there already, or of another machine or software.
    """
    written = []
    for summary in run.summaries:
        _refuse_holes(summary, run.name)
        folder = machine or machine_name(summary.environment)
        for suite in dict.fromkeys(row.suite for row in summary.rows):
            try:
                target = baseline_file(folder, suite)
            except ValueError as error:
                raise UsageError(
                    f"--name is not valid for a baseline: {error}. Give a plain name, without "
                    "slashes."
                ) from error
            rows = [row for row in summary.rows if row.suite == suite]
            place = _place(target, summary, add)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_model(place, summary.model_copy(update={"rows": rows}), indent=None)
            written.append(place)
    return written


def _place(first: Path, run: Summary, add: bool) -> Path:
    """Return the file for a run; where it replaces others, the further ones are deleted."""
    further = further_baselines(first)
    if not add or not first.is_file():
        for path in further:
            path.unlink()
        return first
    for path in (first, *further):
        accepted = read_summary(path)
        if accepted.run_id == run.run_id:
            raise UsageError(f"{run.run_id} is an accepted run already: {path}. Add another one.")
        found = environment_mismatches(accepted.environment, run.environment, ())
        if found:
            raise UsageError(
                f"{run.run_id} cannot be added to {path}: {found[0].name} was {found[0].base} and "
                f"is {found[0].new}. Accept it without --add, or with another --name."
            )
    last = int(further[-1].stem) if further else 1
    return first.with_suffix("") / f"{last + 1}.json"


def _refuse_holes(summary: Summary, name: str) -> None:
    bad = [row for row in summary.rows if row.status in ("failed", "oom")]
    if bad:
        first = f"{bad[0].case} at N={bad[0].world_size} is {bad[0].status}"
        raise UsageError(
            f"{name} cannot be a baseline: {first}. Make a run in which all cells succeed."
        )
    if summary.status != "complete":
        raise UsageError(
            f"{name} cannot be a baseline: the run is {summary.status}. Continue it with "
            f"`scalebench run --resume {shlex.quote(name)}`."
        )
    if not any(row.status == "ok" for row in summary.rows):
        raise UsageError(f"{name} cannot be a baseline: nothing was measured in it.")


@dataclass(frozen=True)
class Baseline:
    """One accepted file, as ``baseline list`` shows it."""

    machine: str
    suite: str
    run_id: str
    created: str
    num_rows: int
    num_launches: int
    path: str
    num_runs: int = 1


def list_baselines() -> Sequence[Baseline]:
    """Return the accepted baselines, by machine and suite.

    Raises:
        UsageError: One of the files is damaged.
    """
    found = []
    for path in sorted(baselines_folder().glob("*/*.json")):
        summary = read_summary(path)
        launches = [row.step_s.n for row in summary.rows if row.step_s is not None]
        about = (summary.run_id, summary.created, len(summary.rows), min(launches, default=0))
        num_runs = 1 + len(further_baselines(path))
        found.append(Baseline(path.parent.name, path.stem, *about, str(path), num_runs))
    return found
