"""OpenMetrics 1.0 text that is Prometheus' text format as well: both kinds of reader take it.

Everything is a gauge. Prometheus' format does not know OpenMetrics' own types (info, stateset), and
node_exporter's textfile collector refuses a file that has one of them.

A measured number is a gauge; the ends of its 95 % interval are gauges of their own, named
``…_lower_…`` and ``…_upper_…``, so that no sum mixes them. Only rows that succeeded have numbers;
``scalebench_row_status`` has every row, ``scalebench_unavailable_info`` the reason for every null.
Source: https://prometheus.io/docs/specs/om/open_metrics_spec/ and
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Mapping
from typing import get_args

from scalebench.analysis.run import StoredRun
from scalebench.records.rows.recovery import ABOUT
from scalebench.records.run import Status
from scalebench.records.summary import Row, Summary, TimedCollectives
from scalebench.report.export.measures import MEASURES, Measure, caveats, numbers, split
from scalebench.report.words.plain_text import plain

UNITS = {
    "s": "seconds",
    "ratio": "ratio",
    "bytes": "bytes",
    "samples/s": "samples_per_second",
    "tokens/s": "tokens_per_second",
    "J/sample": "joules_per_sample",
    "loss": "",
}
"""Unit of a measure → its word at the end of the metric's name."""

FITS = {
    "alpha_s": ("scalebench_collective_latency_seconds", "seconds", "Latency, fitted."),
    "bandwidth_byte_per_s": (
        "scalebench_collective_bandwidth_bytes_per_second",
        "bytes_per_second",
        "Bandwidth, fitted.",
    ),
}
"""Field of a collective's fit → its gauge, unit and meaning."""

_OF_FIT = (
    *("link", "op", "dtype", "algorithm", "in_place", "world_size", "law"),
    *("min_bytes", "max_bytes"),
)
_SUFFIXES = ("_per_s", "_bytes", "_j_per_sample", "_s")
_BOUNDS = {"": "value", "_lower": "low", "_upper": "high"}


def export_openmetrics(run: StoredRun, summary: Summary) -> str:
    """Return every row's status, the numbers of those that succeeded, and the reasons for nulls."""
    lines = [*_about_run(summary), *_statuses(summary), *_launches(summary)]
    for name in dict.fromkeys([*(m.name for m in MEASURES), *ABOUT]):
        lines += _family(name, summary)
    if summary.collectives is not None:
        lines += _collectives(summary.collectives)
    return "\n".join([*lines, *_reasons(summary), "# EOF", ""])


def family_name(measure: Measure, bound: str = "") -> str:
    """Return the name of a measure's gauge, for example ``scalebench_step_lower_seconds``."""
    stem = measure.name
    for suffix in _SUFFIXES:
        if stem.endswith(suffix):
            stem = stem.removesuffix(suffix)
            break
    unit = UNITS[measure.unit]
    return f"scalebench_{stem}{bound}{'_' + unit if unit else ''}"


def _family(name: str, summary: Summary) -> Iterator[str]:
    good = split(summary.rows)[0]
    found = [(row, m, number) for row in good for m, number in numbers(row) if m.name == name]
    for bound, field in _BOUNDS.items():
        samples = [
            (row, measure, getattr(number, field))
            for row, measure, number in found
            if getattr(number, field) is not None
        ]
        if not samples:
            continue
        measure = samples[0][1]
        gauge = family_name(measure, bound)
        what = measure.about if not bound else f"End of the 95 % interval: {measure.about}"
        yield from _head(gauge, what, UNITS[measure.unit])
        for row, of_row, value in samples:
            yield _sample(gauge, {**_labels(row), **dict(of_row.labels)}, value)


def _about_run(summary: Summary) -> Iterator[str]:
    environment = summary.environment
    told = {
        "run_id": summary.run_id,
        "created": summary.created,
        "status": summary.status,
        "version": summary.scalebench_version,
        **{
            key: environment[key]
            for key in ("torch", "cuda", "nccl", "cpu", "host")
            if environment.get(key) is not None
        },
    }
    yield from _head("scalebench_run_info", "The run that everything here was measured in.")
    yield _sample("scalebench_run_info", told, 1)


def _statuses(summary: Summary) -> Iterator[str]:
    name = "scalebench_row_status"
    yield from _head(name, "What became of a case at a number of ranks.")
    for row in summary.rows:
        for status in get_args(Status):
            yield _sample(name, {**_labels(row), name: status}, int(row.status == status))


def _launches(summary: Summary) -> Iterator[str]:
    good = [row for row in split(summary.rows)[0] if row.step_s is not None]
    if good:
        yield from _head("scalebench_launches", "Launches that the numbers rest on.")
    for row in good:
        if row.step_s is not None:
            yield _sample("scalebench_launches", _labels(row), row.step_s.n)


def _collectives(found: TimedCollectives) -> Iterator[str]:
    """Yield what suites of collectives came to: whether they are right, and their fits."""
    names = {"suites": "; ".join(found.suites)}
    for name, about, value in (
        ("scalebench_collective_points", "Points that were timed.", found.num_points),
        ("scalebench_collective_wrong", "Elements that are not right.", found.num_wrong),
        ("scalebench_collective_failed", "1: they failed.", int(found.failure is not None)),
    ):
        yield from _head(name, about)
        yield _sample(name, names, value)
    for field, (name, unit, about) in FITS.items():
        fits = [fit for fit in found.fits if fit.get(field) is not None]
        if fits:
            yield from _head(name, about, unit)
        for fit in fits:
            labels = {key: fit[key] for key in _OF_FIT if fit.get(key) is not None}
            yield _sample(name, labels, float(fit[field]))


def _reasons(summary: Summary) -> Iterator[str]:
    yield from _head("scalebench_unavailable_info", "Why a number is not there.")
    for row in summary.rows:
        reasons = dict(row.unavailable)
        if row.status != "ok":
            reasons["row"] = f"{row.status}: {row.reason or 'no reason recorded'}"
        for field, reason in reasons.items():
            labels = {**_labels(row), "field": field, "reason": plain(reason, 300)}
            yield _sample("scalebench_unavailable_info", labels, 1)


def _labels(row: Row) -> dict[str, object]:
    return {
        "suite": row.suite,
        "case": row.case,
        "strategy": row.strategy,
        "workload": row.workload,
        "scaling": row.scaling,
        "device": row.device,
        "world_size": row.world_size,
        "global_batch": row.global_batch,
        "caveats": "; ".join(caveats(row)),
    }


def _head(name: str, about: str, unit: str = "") -> Iterator[str]:
    yield f"# TYPE {name} gauge"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {_escaped(about)}"


def _sample(name: str, labels: Mapping[str, object], value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{told}}} {value!r}"


def _escaped(text: object) -> str:
    """Escape a label's value: backslash, quote and line feed, and nothing else may be special."""
    line = plain(text, 1000)
    return line.replace("\\", r"\\").replace('"', r"\"")
