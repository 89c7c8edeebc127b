"""Rows and raw steps as pandas frames, and the formats of tools that follow runs.

The rows and the raw steps as pandas frames: for CSV, Parquet, figures and notebooks.

CSV and Parquet are `rows_frame`, and of a run of collectives alone a line for each fitted regime:
estimates as ``name``, ``name_low``, ``name_high``, ``name_n``; nested values as JSON text, among
them ``unavailable`` with the reason for every null.

Formats for tools that follow runs: Bencher, github-action-benchmark, pytest-benchmark.

Bencher Metric Format: benchmark → measure → ``value``, ``lower_value``, ``upper_value``. The bounds
are those of the 95 % interval and are left out where there is none. A measure is named like the
field of ``summary.json``, with dashes as Bencher's slugs have them; its unit is the suffix of its
name. Source: https://bencher.dev/docs/reference/bencher-metric-format

github-action-benchmark, ``customBiggerIsBetter`` and ``customSmallerIsBetter``: the action takes
one direction for a whole file, so there are two. Each is a list of entries with ``name``, ``unit``,
``value`` (a number) and, as text, ``range`` and ``extra``. Source: its README, "custom benchmarks".

pytest-benchmark: every clean step of every launch is a round. It takes rounds for
independent, which steps of one launch are not: its spread is that of steps, narrower than that of
launches. The interval over launches stands in ``extra_info``, with all of the row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_benchmark.stats import Stats

from scalebench.analysis.run import StoredRun
from scalebench.errors import EnvironmentUnfit
from scalebench.records.summary import SUMMARY_FORMAT, Estimate, Row, Summary
from scalebench.report.export.measures import (
    Better,
    Measure,
    Number,
    caveats,
    collective_numbers,
    nothing_for,
    numbers,
    row_name,
    split,
    why_left_out,
)
from scalebench.report.words.terms import plain

if TYPE_CHECKING:
    import pandas as pd

ESTIMATES = tuple(
    name
    for name, field in Row.model_fields.items()
    if Estimate in getattr(field.annotation, "__args__", ())
)
"""Fields of a row that are estimates; each becomes name, name_low, name_high, name_n."""

_INTEGERS = tuple(
    name
    for name, field in Row.model_fields.items()
    if int in (field.annotation, *getattr(field.annotation, "__args__", ()))
)
_CORRECTNESS = {
    "gradient_check": "status",
    **{name: name for name in ("gradient_deviation", "loss_deviation", "tolerance")},
}
"""Column → field of a row's correctness."""
_FORMULA = ("=", "+", "-", "@")
MAX_NAME = 1024
"""Bencher refuses longer names of benchmarks."""


def rows_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """Return one flat line per row of each run.

    Nested values (settings, memory, budget, …) are JSON text; stamps are joined by ``;``, and
    a semicolon within one is written as a comma.
    """
    import pandas as pd

    frame = pd.DataFrame(_lines(summaries), columns=_COLUMNS)
    whole = [*_INTEGERS, *(f"{name}_n" for name in ESTIMATES)]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def run_frame(summary: Summary) -> pd.DataFrame:
    """Return a run's rows, or its fitted collectives where it trained nothing."""
    import pandas as pd

    fits = _fits(summary)
    if fits is None:
        return rows_frame([summary])
    return pd.DataFrame(fits, columns=None if fits else ["run_id"])


def rows_csv(summaries: Sequence[Summary]) -> str:
    """Return `rows_frame` as CSV, without pandas: its import takes longer than a table.

    Each text is one line, with an apostrophe where a spreadsheet would take it for a formula.
    """
    return _csv(_COLUMNS, _lines(summaries))


def _lines(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    return [
        {"run_id": summary.run_id, **flatten(row)} for summary in summaries for row in summary.rows
    ]


def _fits(summary: Summary) -> list[dict[str, Any]] | None:
    if summary.rows or summary.collectives is None:
        return None
    return [
        {"run_id": summary.run_id, **{name: _scalar(name, value) for name, value in fit.items()}}
        for fit in summary.collectives.fits
    ]


def _csv(columns: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _defused(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


def flatten(row: Row | None) -> dict[str, Any]:
    """Return a row as one flat record; None: all its fields are null."""
    flat: dict[str, Any] = {}
    dumped = row.model_dump(mode="json", exclude={"samples"}) if row else {}
    for name in Row.model_fields:
        if name in ESTIMATES:
            ends = {f"{name}_{end}": end for end in ("low", "high", "n")}
            flat |= _parts(getattr(row, name, None), {name: "value", **ends})
        elif name == "correctness":
            flat |= _parts(getattr(row, name, None), _CORRECTNESS)
        elif name != "samples":
            flat[name] = _scalar(name, dumped.get(name))
    return flat


def _parts(found: object | None, fields: Mapping[str, str]) -> dict[str, Any]:
    return {column: getattr(found, field, None) for column, field in fields.items()}


def _scalar(name: str, value: Any) -> Any:
    if name == "stamps" and value is not None:
        return ";".join(stamp.replace(";", ",") for stamp in value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


_COLUMNS = ("run_id", *flatten(None))


def _defused(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def export_csv(run: StoredRun, summary: Summary) -> str:
    """Return the rows as CSV; what a spreadsheet would take for a formula is defused."""
    fits = _fits(summary)
    if fits is None:
        return rows_csv([summary])
    return _csv(dict.fromkeys(["run_id", *(name for fit in fits for name in fit)]), fits)


def export_parquet(run: StoredRun, summary: Summary) -> bytes:
    """Return the rows as Parquet; the file's metadata names run and format.

    Raises:
        EnvironmentUnfit: pyarrow, which writes it, is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise EnvironmentUnfit(
            "Parquet is written by pyarrow, which is not installed: "
            "pip install 'scalebench[parquet]'. --format csv needs nothing more."
        ) from error
    table = pyarrow.Table.from_pandas(run_frame(summary), preserve_index=False)
    about = {"scalebench.format": SUMMARY_FORMAT, "scalebench.run_id": summary.run_id}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def export_bencher(run: StoredRun, summary: Summary) -> str:
    """Return the rows that succeeded, and collectives.

    Raises:
        ScalebenchError: There is neither.
    """
    rows = {row_name(row): numbers(row) for row in split(summary.rows)[0]}
    found = {
        name[:MAX_NAME]: {
            measure.field.replace("_", "-"): _metric(number) for measure, number in of
        }
        for name, of in (rows | collective_numbers(summary)).items()
    }
    if not found:
        raise nothing_for("Bencher", summary)
    return json.dumps(found, indent=1, allow_nan=False)


def _metric(number: Number) -> dict[str, float]:
    metric = {"value": number.value}
    if number.low is not None and number.high is not None:
        metric |= {"lower_value": number.low, "upper_value": number.high}
    return metric


def export_bigger(run: StoredRun, summary: Summary) -> str:
    """Return throughput, efficiency and whatever else is better when it is bigger."""
    return _export(summary, "bigger")


def export_smaller(run: StoredRun, summary: Summary) -> str:
    """Return times, memory and whatever else is better when it is smaller."""
    return _export(summary, "smaller")


def _export(summary: Summary, better: Better) -> str:
    rows = ((row_name(row), row, numbers(row)) for row in split(summary.rows)[0])
    timed = ((name, None, iter(of)) for name, of in collective_numbers(summary).items())
    entries = [
        _entry(name, row, measure, number)
        for name, row, of in (*rows, *timed)
        for measure, number in of
        if measure.better == better
    ]
    if not entries:
        raise nothing_for("github-action-benchmark, which accepts no empty file", summary)
    return json.dumps(entries, indent=1, allow_nan=False)


def _entry(name: str, row: Row | None, measure: Measure, number: Number) -> dict[str, str | float]:
    entry: dict[str, str | float] = {
        "name": f"{name} {measure.field}",
        "unit": measure.unit,
        "value": number.value,
    }
    if number.half_width is not None:
        entry["range"] = f"± {number.half_width:.6g}"
    return entry | {"extra": _extra(row, measure, number)}


def _extra(row: Row | None, measure: Measure, number: Number) -> str:
    lines = [measure.about]
    if row is not None:
        lines.append(f"strategy: {plain(row.strategy, 40)}, global batch {row.global_batch}")
    if number.low is not None and number.high is not None:
        lines.append(f"95 % interval: {number.low:.6g} to {number.high:.6g}")
    if number.n is not None:
        lines.append(f"{measure.counts}: {number.n}")
    return "\n".join([*lines, *(plain(stamp, 200) for stamp in (row.stamps if row else ()))])


VERSION = "5.3.1"
"""Of pytest-benchmark, whose layout this is."""


def export_pytest_benchmark(run: StoredRun, summary: Summary) -> str:
    """Return the rows that succeeded as benchmarks; the others stand below ``scalebench``.

    Raises:
        ScalebenchError: There is neither.
    """
    good, others = split(summary.rows)
    if not others and not any(row.samples for row in good):
        raise nothing_for("pytest-benchmark, whose rounds are training steps", summary)
    content = {
        "machine_info": _machine_info(summary),
        "commit_info": _commit_info(),
        "benchmarks": [_benchmark(row, summary) for row in good if row.samples],
        "datetime": plain(summary.created),
        "version": VERSION,
        "scalebench": {
            "run_id": plain(summary.run_id),
            "left_out": [
                *(why_left_out(row) for row in others),
                *(f"{row_name(row)}: it has no steps" for row in good if not row.samples),
            ],
        },
    }
    return json.dumps(content, indent=1, allow_nan=False)


def row_info(row: Row, run_id: str) -> dict[str, Any]:
    """Return ``extra_info``: the row of ``summary.json`` without its samples, and its caveats."""
    told = row.model_dump(mode="json", exclude={"samples"})
    return {"run_id": plain(run_id), "caveats": caveats(row), "row": told}


def step_times_s(row: Row) -> list[float]:
    """Return the clean steps of all launches, in order; seconds."""
    return [step for launch in row.samples for step in launch.step_s]


def _benchmark(row: Row, summary: Summary) -> dict[str, Any]:
    stats = Stats()
    for step_s in step_times_s(row):
        stats.update(step_s)
    param = ", ".join([f"n{row.world_size}", *caveats(row)])
    name = f"{plain(row.case, 64)}[{param}]"
    return {
        "group": plain(row.suite, 64),
        "name": name,
        "fullname": f"{plain(row.suite, 64)}::{name}",
        "params": {"world_size": row.world_size},
        "param": param,
        "extra_info": row_info(row, summary.run_id),
        "options": {
            "disable_gc": False,
            "timer": "steps recorded on the devices",
            "min_rounds": 1,
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": False,
        },
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": 1},
    }


def _machine_info(summary: Summary) -> dict[str, Any]:
    environment = summary.environment
    return {
        "node": plain(environment.get("host") or "unknown"),
        "machine": plain(environment.get("machine") or "unknown"),
        "processor": plain(environment.get("cpu") or "unknown"),
        "python_version": plain(environment.get("python") or "unknown"),
        "release": plain(environment.get("os") or "unknown"),
        "system": plain(str(environment.get("os") or "unknown").partition(" ")[0]),
        "cpu": {"brand_raw": plain(environment.get("cpu") or "unknown")},
        "scalebench": environment,
    }


def _commit_info() -> dict[str, Any]:
    """Return pytest-benchmark's own words for "not known": a run does not record the commit."""
    return {
        "id": "unversioned",
        "time": None,
        "author_time": None,
        "dirty": False,
        "error": None,
        "project": "scalebench",
        "branch": "(unknown)",
    }
