"""Formats for tools that follow runs: Bencher, github-action-benchmark, pytest-benchmark.

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

import json
from typing import Any

from pytest_benchmark.stats import Stats

from scalebench.analysis.run import StoredRun
from scalebench.records.summary import Row, Summary
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
from scalebench.report.words.plain_text import plain

MAX_NAME = 1024
"""Bencher refuses longer names of benchmarks."""


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
