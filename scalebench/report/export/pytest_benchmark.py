"""The JSON that pytest-benchmark stores and compares: clean steps as rounds.

Every clean step of every launch is a round. pytest-benchmark takes rounds for independent, which
steps of one launch are not: its spread is that of steps, narrower than that of launches. The
interval over launches stands in ``extra_info``, with all of the row.
"""

import json
from typing import Any

from pytest_benchmark.stats import Stats

from scalebench.analysis.run import StoredRun
from scalebench.records.summary import Row, Summary
from scalebench.report.export.measures import caveats, nothing_for, row_name, split, why_left_out
from scalebench.report.words.plain_text import plain

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
