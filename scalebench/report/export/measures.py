"""What of a row goes to other tools: its numbers with unit and direction, its name, its caveats.

Tools that follow a number over many runs know nothing of scalebench. They get a name that says
under which conditions the number holds, and only numbers of rows that succeeded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalebench.errors import ScalebenchError
from scalebench.records.rows.budget import POP_NAMES
from scalebench.records.rows.recovery import ABOUT, RESTART, RecoveryTime, times_of
from scalebench.records.summary import Estimate, Row, Summary
from scalebench.report.words.plain_text import plain
from scalebench.report.words.wording import cpu_fact

Better = Literal["bigger", "smaller"]


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
