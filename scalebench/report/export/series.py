"""Formats of tools that follow numbers over many runs: Bencher, and github-action-benchmark.

Bencher Metric Format: benchmark → measure → ``value``, ``lower_value``, ``upper_value``. The bounds
are those of the 95 % interval and are left out where there is none. A measure is named like the
field of ``summary.json``, with dashes as Bencher's slugs have them; its unit is the suffix of its
name. Source: https://bencher.dev/docs/reference/bencher-metric-format

github-action-benchmark, ``customBiggerIsBetter`` and ``customSmallerIsBetter``: the action takes
one direction for a whole file, so there are two. Each is a list of entries with ``name``, ``unit``,
``value`` (a number) and, as text, ``range`` and ``extra``. Source: its README, "custom benchmarks".
"""

import json

from scalebench.analysis.run import StoredRun
from scalebench.records.summary import Row, Summary
from scalebench.report.export.measures import (
    Better,
    Measure,
    Number,
    collective_numbers,
    nothing_for,
    numbers,
    row_name,
    split,
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
