"""What of a row goes to other tools, with unit and direction; and all of it as OpenMetrics.

What of a row goes to other tools: its numbers with unit and direction, its name, its caveats.

Tools that follow a number over many runs know nothing of scalebench. They get a name that says
under which conditions the number holds, and only numbers of rows that succeeded.

OpenMetrics 1.0 text that is Prometheus' text format as well: both kinds of reader take it.

Everything is a gauge. Prometheus' format does not know OpenMetrics' own types (info, stateset), and
node_exporter's textfile collector refuses a file that has one of them.

A measured number is a gauge; the ends of its 95 % interval are gauges of their own, named
``…_lower_…`` and ``…_upper_…``, so that no sum mixes them. Only rows that succeeded have numbers;
``scalebench_row_status`` has every row, ``scalebench_unavailable_info`` the reason for every null.
Source: https://prometheus.io/docs/specs/om/open_metrics_spec/ and
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from scalebench.analysis.run import StoredRun
from scalebench.errors import ScalebenchError
from scalebench.records.rows.budget import POP_NAMES
from scalebench.records.rows.race import ABOUT, RESTART, RecoveryTime, times_of
from scalebench.records.run import Status
from scalebench.records.summary import Estimate, Row, Summary, TimedCollectives
from scalebench.report.words.terms import plain
from scalebench.report.words.wording import cpu_fact

Better = Literal["bigger", "smaller"]
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


@dataclass(frozen=True)
class Measure:
    """A field of the summary that other tools may follow.

    Attributes:
        field: Its name in ``summary.json``; of a time of recovery, the gate's.
        unit: SI; ``ratio`` for plain ratios.
        better: Which direction is good; None: neither, it is shown and nothing more.
        about: One sentence.
        labels: Which of several of the same family it is, such as the way to save.
        counts: What the number's ``n`` counts.
    """

    field: str
    unit: str
    better: Better | None
    about: str
    labels: tuple[tuple[str, str], ...] = ()
    counts: str = "launches"
    family: str = ""

    @property
    def name(self) -> str:
        """The name that it has in common with others that only differ in labels."""
        return self.family or self.field


POP = "pop_"

MEASURES = (
    Measure("step_s", "s", "smaller", "Step time of the job."),
    Measure("throughput", "samples/s", "bigger", "Samples per second of the whole job."),
    Measure("tokens_per_s", "tokens/s", "bigger", "Tokens per second of the whole job."),
    Measure("speedup", "ratio", "bigger", "Throughput over that of the bare model in a process."),
    Measure("efficiency", "ratio", "bigger", "Speedup over the number of ranks."),
    Measure("efficiency_wrapped", "ratio", "bigger", "The same against the strategy at N=1."),
    Measure("comm_s", "s", "smaller", "Communication in flight per step."),
    Measure("exposed_comm_s", "s", "smaller", "Communication that no computation hides, per step."),
    Measure("exposed_transfer_s", "s", "smaller", "The part of it in which data moves."),
    Measure("wait_s", "s", "smaller", "The part of it in which a rank waits for another."),
    Measure("compute_s", "s", "smaller", "Computation per step."),
    Measure("copies_s", "s", "smaller", "Copies and fills of GPU memory per step."),
    Measure("comm_beside_copies_s", "s", None, "Exposed communication during copies, per step."),
    Measure("overlap_ratio", "ratio", "bigger", "Share of the communication that is hidden."),
    Measure("bubble_ratio", "ratio", "smaller", "Share of a step that a pipeline idles."),
    Measure("peak_memory_bytes", "bytes", "smaller", "Peak memory, the largest over the ranks."),
    Measure("wire_bytes", "bytes", "smaller", "Sent per rank and step, by the algorithm's law."),
    Measure("payload_bytes", "bytes", "smaller", "Handed to collectives per rank and step."),
    Measure("energy_j_per_sample", "J/sample", "smaller", "Energy of the devices per sample."),
    Measure("mfu", "ratio", "bigger", "Achieved FLOP/s over the devices' dense peak."),
    Measure("loss_last", "loss", "smaller", "Training loss at the last measured step."),
    Measure("launch_s", "s", "smaller", "From the decision to launch to the first step."),
    Measure("predicted_step_s", "s", None, "Step time as the cost model predicts it."),
    Measure("prediction_error", "ratio", None, "(predicted - measured) / measured step time."),
    Measure("probe_effect", "ratio", None, "Clean window over a bare loop, minus 1."),
    *(
        Measure(f"{POP}{name}", "ratio", "bigger", f"POP's efficiency: {told}.")
        for name, told in POP_NAMES.items()
    ),
)


@dataclass(frozen=True)
class Number:
    """A measured number; ``low`` and ``high`` are null where there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def half_width(self) -> float | None:
        """Distance from the value to the farther end of its interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.value - self.low, self.high - self.value)


def numbers(row: Row) -> Iterator[tuple[Measure, Number]]:
    """Yield what is known of a row, null fields left out."""
    for measure in MEASURES:
        of, name = (row.pop, measure.field[len(POP) :]) if measure.field.startswith(POP) else (
            row, measure.field)  # fmt: skip
        value = getattr(of, name, None)
        if isinstance(value, Estimate):
            yield measure, _number(value)
        elif value is not None:
            yield measure, Number(value)
    for time in times_of(row.recovery):
        yield _of_recovery(time), _number(time.estimate)


def _number(estimate: Estimate) -> Number:
    return Number(estimate.value, estimate.low, estimate.high, estimate.n)


def _of_recovery(time: RecoveryTime) -> Measure:
    return Measure(
        *(time.name, "s", "smaller", ABOUT[time.quantity], tuple(time.labels.items())),
        counts="failures" if time.quantity == RESTART else "saves",
        family=time.quantity,
    )


def caveats(row: Row) -> list[str]:
    """Say what keeps a row from being a plain measurement on devices of its own."""
    found = ["oversubscribed"] if row.oversubscribed else []
    found += [] if row.pinned else ["unpinned"]
    if row.virtual_hosts:
        found.append(f"virtual hosts {plain(row.link or 'of unknown link', 80)}{cpu_fact(row)}")
    return found + [name for name in ("paced", "simulated") if name in row.stamps]


def row_name(row: Row) -> str:
    """Name a row so that only what was measured under the same conditions has the same name.

    For example ``ddp/ddp-bucket-1mb N=2 [gpt-tiny, strong, cpu]``; caveats stand last.
    """
    conditions = [plain(row.workload, 80), row.scaling, row.device, *caveats(row)]
    case = f"{plain(row.suite, 64)}/{plain(row.case, 64)}"
    return f"{case} N={row.world_size} [{', '.join(conditions)}]"


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that succeeded and have a step time or one of recovery, and the others."""
    good = [row for row in rows if row.status == "ok" and (row.step_s or times_of(row.recovery))]
    return good, [row for row in rows if row not in good]


LATENCY = Measure("latency_s", "s", "smaller", "Latency of the smallest messages, fitted.")
BANDWIDTH = Measure(
    "bandwidth_byte_per_s", "bytes/s", "bigger", "Bandwidth of the largest messages, fitted."
)


def collective_numbers(summary: Summary) -> dict[str, list[tuple[Measure, Number]]]:
    """Return the latency and the bandwidth of each collective that was timed, by its name.

    For example ``collectives/all_reduce N=2 [float32, backend, in place, cpu]``. Latency is that of
    the regime of the smallest messages, bandwidth that of the largest. Empty where they failed.
    """
    found, sweeps = summary.collectives, dict[str, list[dict[str, Any]]]()
    if found is None or found.failure is not None:
        return {}
    device = [summary.link.device] if summary.link else []
    for fit in found.fits:
        place = {True: ["in place"], False: ["out of place"]}.get(fit["in_place"], [])
        conditions = [fit["dtype"], fit["algorithm"], *place, *filter(None, [fit["link"]]), *device]
        case = f"{plain('+'.join(found.suites), 64)}/{fit['op']} N={fit['world_size']}"
        sweeps.setdefault(f"{case} [{plain(', '.join(conditions), 200)}]", []).append(fit)
    return {name: list(_of_sweep(regimes)) for name, regimes in sweeps.items()}


def _of_sweep(regimes: list[dict[str, Any]]) -> Iterator[tuple[Measure, Number]]:
    regimes.sort(key=lambda fit: int(fit["min_bytes"]))
    for fit, measure, stem in (
        (regimes[0], LATENCY, "alpha{}_s"),
        (regimes[-1], BANDWIDTH, "bandwidth{}_byte_per_s"),
    ):
        value, low, high = (fit.get(stem.format(end)) for end in ("", "_low", "_high"))
        if value is not None:
            yield measure, Number(value, low, high)


def nothing_for(reader: str, summary: Summary) -> ScalebenchError:
    """Return the refusal of a run that has no number for a tool, with what it lacks."""
    run_id, found = plain(summary.run_id), summary.collectives
    if summary.rows:
        lacks = f"No row of {run_id} succeeded"
    elif found is not None:
        lacks = f"{run_id} timed collectives and trained nothing" + (
            f"; they failed: {plain(found.failure, 300)}" if found.failure else ""
        )
    else:
        lacks = f"{run_id} has no row"
    return ScalebenchError(
        f"{lacks}: there is nothing for {reader}. `scalebench show` says what became of the run; "
        "openmetrics, junit and csv hold all that it has."
    )


def why_left_out(row: Row) -> str:
    """Say what became of a row that has nothing to follow."""
    return f"{row_name(row)}: {row.status}: {plain(row.reason or 'no reason recorded', 300)}"


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
