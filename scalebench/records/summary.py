"""The stable machine interface: `summary.json`, one row per case and world size.

Names, units and formats here are a contract with other people's scripts: add, never rename.
A measured number is an `Estimate`; what could not be measured is null and ``unavailable`` says
why. SI units, the unit is the suffix of the name; ratios are plain ratios, never percent.
"""

import math
from collections.abc import Iterable, Mapping
from html import escape
from statistics import fmean, median
from typing import Any, Literal

from pydantic import BaseModel, Field, FiniteFloat

from scalebench.records.certificate import Certificate
from scalebench.records.measured.rank import NcclWires
from scalebench.records.rows.budget import Budget, PopEfficiencies
from scalebench.records.rows.race import LockstepFigures, RaceFigures, RecoveryFigures
from scalebench.records.rows.script import OutsideSteps, ScriptFacts, Wrapper
from scalebench.records.rows.steps import (
    AxisFigures,
    OperationFigures,
    Prediction,
    RankExcess,
    Reproducible,
    StepKinds,
    Straggler,
)
from scalebench.records.rows.strategies import (
    AgainstFastest,
    BalanceFigures,
    CompressionFigures,
    ExpertFigures,
    ExposedEstimates,
    FrameworkFacts,
    MemoryByAxis,
    PipelineFigures,
)
from scalebench.records.run import LargestBatch, PrecisionReached, Status
from scalebench.spec import Device, Scaling
from scalebench.spec.base import LARGE, IfValid, JsonModel, Record
from scalebench.stats import Estimate as Estimate

IMPORTED_FORMAT = "scalebench.imported/1"

Work = Literal["sample", "token", "flop"]
SUMMARY_FORMAT = "scalebench.summary/1"
SAME = 1e-6
"""Numbers closer than this, as a ratio, were worked out from the same samples."""


class ImportedLog(Record):
    """One log: one job, or one of several that repeat it.

    Attributes:
        name: Of the file.
        format: How it prints its steps.
        world_size: GPUs of the job.
        global_batch: Samples of a step of the job; null: neither the log nor the user says.
        seq: Tokens of a sample; null: likewise.
        model: What it says of its model: name → value.
        gpu: The device's name; empty: not said.
        software: Driver, torch, NCCL → version, as far as it names them.
        step_s: What steps took, or stretches of steps in the mean, seconds; pauses, the first steps
            and all but the part after a restart left out.
        counts: How many steps each of them stands for.
        averaged: They are means of several steps.
        source: Where they come from: the printed times, the clock, a rate, or a total.
        no_steps: Why there are none; empty: there are.
        warmup: Records left out at the beginning.
        num_pauses: What was cut out: evaluations, checkpoints and the like.
        pause_s: What they took together, seconds.
        samples_per_s, tokens_per_s: Of the job; null: not known.
        tflops_per_gpu: TFLOP/s, as printed.
        mfu: As printed, or printed FLOP/s over the device's peak.
        bad_loss_at: Step from which on the loss is not finite; null: it is.
        notices: What a reader has to know.
    """

    name: str
    format: str
    world_size: int = Field(ge=1, lt=LARGE)
    global_batch: FiniteFloat | None = None
    seq: FiniteFloat | None = None
    model: dict[str, str | float] = {}
    gpu: str = ""
    software: dict[str, str] = {}
    step_s: list[FiniteFloat] = []
    counts: list[FiniteFloat] = []
    averaged: bool = False
    source: str = "printed"
    no_steps: str = ""
    warmup: int = 0
    num_pauses: int = 0
    pause_s: FiniteFloat = 0.0
    samples_per_s: FiniteFloat | None = None
    tokens_per_s: FiniteFloat | None = None
    tflops_per_gpu: FiniteFloat | None = None
    mfu: FiniteFloat | None = None
    memory_bytes: int | None = Field(None, ge=0, lt=LARGE)
    loss_first: FiniteFloat | None = None
    loss_last: FiniteFloat | None = None
    bad_loss_at: FiniteFloat | None = None
    notices: list[str] = []


class ImportedRun(Record):
    """``imported.json``.

    Attributes:
        case: What the job is called.
        per: What efficiency is per, where model or batch differ; null: per step.
        logs: In the order in which they were given.
    """

    format: str = IMPORTED_FORMAT
    case: str
    per: Work | None = None
    logs: list[ImportedLog]

    def environment(self) -> dict[str, object]:
        """Return what the logs name of GPUs and software: what has to be the same."""
        names = dict.fromkeys(name for log in self.logs for name in log.software)
        found = {
            name: ", ".join(dict.fromkeys(v for log in self.logs if (v := log.software.get(name))))
            for name in names
        }
        gpus = dict.fromkeys(log.gpu for log in self.logs if log.gpu)
        return {"devices": [{"name": name} for name in gpus], **found, "imported": True}


class Correctness(BaseModel):
    """How the row's strategy compares with the single-process reference; see `Verification`."""

    status: Literal["verified", "deviates", "unverified", "reference"]
    gradient_deviation: FiniteFloat | None = None
    loss_deviation: FiniteFloat | None = None
    tolerance: FiniteFloat | None = None
    num_steps: int | None = None
    reason: str | None = None


class StepSamples(BaseModel):
    """The raw clean steps of one launch.

    Attributes:
        repeat: Number of the launch.
        step_s: Step time of the slowest rank, seconds, by step number: their distribution.
        pace_s: From one moment at which every rank had done a step to the next, seconds, by step
            number; the row's ``typical_step_s`` is the median of these. Empty: a summary of
            version 0.1, whose ``step_s`` was the median of the slowest rank's steps.
        mean_s: What a step took in the mean, seconds, which the row's ``step_s`` and
            ``throughput`` rest on. Null: an earlier summary, whose ``step_s`` was the median.
        mean_variance: Of the logarithm of ``mean_s``, as far as the launch's own steps tell.
        peak_memory_bytes: Of the launch, the largest over its ranks; None: it counted none (on CPU
            a launch that is not timed counts it), or an earlier version did not keep it.
    """

    repeat: int
    step_s: list[FiniteFloat]
    pace_s: list[FiniteFloat] = []
    mean_s: FiniteFloat | None = None
    mean_variance: FiniteFloat | None = None
    peak_memory_bytes: int | None = None


RowKey = tuple[str, str, int]
"""Suite, case, number of ranks: what a row is found by."""


class Row(BaseModel):
    """One case at one world size. See DOMAIN terms in docs/definitions.md.

    ``step_s`` is the mean step, ``typical_step_s`` the median one, ``step_kinds`` what steps there
    are where the two differ. ``throughput`` is samples per second of the whole job;
    ``efficiency`` is against the plain baseline, the row of the key ``baseline``,
    ``efficiency_wrapped`` against the strategy at N=1;
    ``peak_memory_bytes`` is the largest over ranks and launches. ``loss_last`` is that of the last
    clean step of the first launch, after ``loss_last_steps`` steps, in which rows and runs differ;
    ``loss_equal`` is that after ``loss_equal_steps``, the same for every row of the suite with this
    workload and batch.

    On virtual hosts ``link`` says the rate of the links as ``--link`` takes it, and
    ``link_bit_per_s`` that of each host of the row; ``cpus_per_rank`` is the share of a core (or
    cores) that each rank may use, null where there is no quota, and where ``cpu_shares`` has a
    different one for each rank. ``communication`` has every kind of operation and every bucket of
    the rank that waits most, ``stragglers`` the ranks that came last, the most frequent first,
    ``rank_excess`` what single ranks certainly take longer for than the others. ``wires`` is which
    wires NCCL took, from the log of the launch that is not timed; null on CPU and where no log was
    written. ``memory_by_axis`` has what each dimension of a mesh takes off the memory of one
    process. ``axes`` has the same operations by the dimension of the mesh whose group carried them;
    null where a strategy does not say. ``experts`` is how a mixture's tokens spread over its
    experts, ``lockstep`` where the time of a race's ranks went and how stale their gradients were.
    ``balance`` is how the global batch was shared by measured speed. ``loss_scale`` has the steps
    of the first launch from which on each scale of the float16 loss was in force,
    ``num_skipped_steps`` the clean steps of all launches whose gradients overflowed.
    ``pop`` has the POP centre's efficiencies of the traced steps.
    ``strategy_settings`` are the fields of the suite's own strategy, which a newer version may have
    more of. ``copies_s`` is the union of copies and fills of GPU memory, ``comm_beside_copies_s``
    exposed communication during them; null on CPU.
    ``outside_step`` is what a user's script did between its steps, ``wrappers`` how it is
    distributed, as far as that is recognised, ``script`` what else was seen of its code; null for
    every other row. ``reproducible`` is whether the row's launches have the same losses, bit for
    bit; null for one launch. ``race`` is what came of a race towards a loss. ``recovery`` is what
    checkpoints cost and how the row continued from them. ``framework`` has version and settings of
    the framework that trained the row, null where it is torch alone. ``against_fastest`` compares
    the step with the shortest one, in a suite with other frameworks.
    """

    suite: str
    case: str
    strategy: str
    strategy_settings: dict[str, Any]
    workload: str
    num_parameters: int | None
    scaling: Scaling | Literal["unknown"]
    device: Device
    backend: str | None
    world_size: int
    global_batch: int
    rank_batch: int
    status: Status
    reason: str | None
    oversubscribed: bool
    pinned: bool = True
    virtual_hosts: bool = False
    link: str | None = None
    link_bit_per_s: list[int] | None = None
    cpus_per_rank: FiniteFloat | None = None
    cpu_shares: list[FiniteFloat] | None = None
    step_s: Estimate | None
    typical_step_s: Estimate | None = None
    step_kinds: IfValid[StepKinds] = None
    throughput: Estimate | None
    tokens_per_s: Estimate | None
    speedup: Estimate | None
    efficiency: Estimate | None
    baseline: RowKey | None = None
    efficiency_wrapped: Estimate | None
    comm_s: Estimate | None = None
    exposed_comm_s: Estimate | None = None
    exposed_transfer_s: Estimate | None = None
    wait_s: Estimate | None = None
    compute_s: Estimate | None = None
    copies_s: Estimate | None = None
    comm_beside_copies_s: Estimate | None = None
    comm_compute_ratio: Estimate | None = None
    overlap_ratio: Estimate | None = None
    bubble_ratio: Estimate | None = None
    predicted_step_s: FiniteFloat | None = None
    prediction_error: FiniteFloat | None = None
    prediction: IfValid[Prediction] = None
    peak_memory_bytes: int | None = None
    predicted_memory_bytes: int | None = None
    memory: dict[str, int | None]
    memory_by_axis: IfValid[MemoryByAxis] = None
    wire_bytes: int | None = None
    payload_bytes: int | None = None
    predicted_wire_bytes: int | None = None
    energy_j_per_sample: Estimate | None = None
    mfu: Estimate | None = None
    flops_per_sample: FiniteFloat | None = None
    loss_first: FiniteFloat | None
    loss_last: FiniteFloat | None
    loss_last_steps: int | None = None
    loss_equal: FiniteFloat | None = None
    loss_equal_steps: int | None = None
    probe_effect: Estimate | None = None
    trace_overhead: Estimate | None = None
    pipeline: IfValid[PipelineFigures] = None
    budget: IfValid[Budget] = None
    pop: IfValid[PopEfficiencies] = None
    exposed_comm_estimates: IfValid[ExposedEstimates] = None
    communication: IfValid[list[OperationFigures]] = None
    axes: IfValid[list[AxisFigures]] = None
    experts: IfValid[ExpertFigures] = None
    balance: IfValid[BalanceFigures] = None
    lockstep: IfValid[LockstepFigures] = None
    stragglers: IfValid[list[Straggler]] = None
    wires: IfValid[NcclWires] = None
    rank_excess: IfValid[list[RankExcess]] = None
    unknown_kernels: dict[str, FiniteFloat] | None = None
    compression: IfValid[CompressionFigures] = None
    race: IfValid[RaceFigures] = None
    recovery: IfValid[RecoveryFigures] = None
    outside_step: IfValid[OutsideSteps] = None
    wrappers: IfValid[list[Wrapper]] = None
    script: IfValid[ScriptFacts] = None
    reproducible: IfValid[Reproducible] = None
    framework: IfValid[FrameworkFacts] = None
    against_fastest: IfValid[AgainstFastest] = None
    loss_scale: IfValid[list[tuple[int, FiniteFloat]]] = None
    num_skipped_steps: int | None = None
    correctness: Correctness | None
    launch_s: Estimate | None
    num_clean_steps: int
    stamps: list[str]
    unavailable: dict[str, str]
    samples: list[StepSamples]

    @property
    def deviates(self) -> bool:
        """Whether its results are known to be wrong."""
        return self.correctness is not None and self.correctness.status == "deviates"

    def __repr__(self) -> str:
        told = {name: f"{name}={one.value:.4g}" for name, one in self._estimates()}
        shown = [told[name] for name in ("step_s", "speedup", "efficiency") if name in told]
        said = ", ".join(shown) or self.reason or self.status
        return f"<Row {self.suite}/{self.case} N={self.world_size}: {said}>"

    def _repr_html_(self) -> str:
        lines = [(name, f"{one.value:.4g}", _ends(one)) for name, one in self._estimates()]
        facts = ((name, str(getattr(self, name)), "") for name in HEADLINE)
        cells = (map(escape, line) for line in (*facts, *lines))
        body = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in cells)
        return f"<table><tr><th>field</th><th>value</th><th>95 %</th></tr>{body}</table>"

    def _estimates(self) -> list[tuple[str, Estimate]]:
        found = ((name, getattr(self, name)) for name in type(self).model_fields)
        return [(name, one) for name, one in found if isinstance(one, Estimate)]


HEADLINE = ("suite", "case", "workload", "world_size", "global_batch", "status", "stamps")
"""Fields that a notebook shows of a row before its estimates."""


def _ends(one: Estimate) -> str:
    return "{:.4g} to {:.4g}".format(*one.ends) if one.ends else ""


class TimedCollectives(BaseModel):
    """What suites of collectives came to.

    Attributes:
        suites: Their names.
        num_points: Operation × size × dtype × N that were timed.
        num_wrong: Elements of results that were not what they should be.
        fits: One flat row for each regime, as ``scalebench calibrate --json`` gives them.
        failure: What went wrong; null: nothing.
    """

    suites: list[str]
    num_points: int
    num_wrong: int
    fits: list[dict[str, Any]]
    failure: str | None = None


class Summary(JsonModel):
    """``summary.json``.

    Attributes:
        reproduce: The command line that makes this run again.
        damaged: File of the run folder → why it was not used; null: not recorded.
        largest_batches: What ``--max-batch`` found; empty: it was not asked for.
        certificate: Of the newest self-test of this machine when the run began; null: none.
        precision: What became of the wanted precision; null: none was wanted.
        model: How good the predictions of the run's steps are; null: there are none. See
            `scalebench.analysis.projection.scores.score`.
        collectives: What its suites of collectives came to; null: it has none.
        gate: What its suites ask of the gate: suite → metric → settings.
        link: What its links cost, a `LinkProfile`, for tables and figures; the file next to the
            summary holds it, not the summary itself. Not imported here: `gate` starts fast.
    """

    format: str = SUMMARY_FORMAT
    run_id: str
    created: str
    status: str
    scalebench_version: str
    reproduce: str
    environment: dict[str, Any]
    notices: list[str]
    damaged: dict[str, str] | None = None
    largest_batches: list[LargestBatch] = []
    certificate: Certificate | None = None
    precision: PrecisionReached | None = None
    model: dict[str, Any] | None = None
    collectives: TimedCollectives | None = None
    gate: dict[str, dict[str, dict[str, bool | float]]] = {}
    link: Any = Field(None, exclude=True, repr=False)
    rows: list[Row]

    def __repr__(self) -> str:
        return f"<Summary of {self.run_id}: {len(self.rows)} rows, {self.status}>"

    @property
    def damage(self) -> list[str]:
        """Which files were not used and why; summaries of version 0.1 have it as notices."""
        if self.damaged is None:
            return [notice for notice in self.notices if "set aside" in notice]
        return set_aside(self.damaged)


def set_aside(damaged: Mapping[str, str]) -> list[str]:
    """Return one notice for each file that was not used."""
    return [f"{name} was set aside: {why}" for name, why in damaged.items()]


def key_of(row: Row) -> RowKey:
    """Return what a row is found by, also in another run: suite, case, number of ranks."""
    return (row.suite, row.case, row.world_size)


def baseline_of(row: Row, rows: Iterable[Row]) -> Row | None:
    """Return which of a run's rows a row's efficiency is compared with; None: it is not there."""
    if row.baseline is not None:
        return next((other for other in rows if key_of(other) == row.baseline), None)
    return next((other for other in rows if _gives_its_efficiency(other, row)), None)


StepSeries = Literal["mean_s", "pace_s", "step_s"]
"""What of `StepSamples` a launch's step time is: its mean, or the median of a series."""


def series_of(*rows: Row) -> StepSeries:
    """Return what all of the rows have: older ones have no mean, those of version 0.1 no pace."""
    samples = [sample for row in rows for sample in row.samples if sample.step_s]
    if all(sample.mean_s for sample in samples):
        return "mean_s"
    return "pace_s" if all(sample.pace_s for sample in samples) else "step_s"


def steps_in(samples: StepSamples, series: StepSeries) -> list[float]:
    """Return the clean steps of a launch, seconds."""
    return samples.step_s if series == "step_s" else samples.pace_s


def step_of(samples: StepSamples, series: StepSeries) -> float:
    """Return the step time of a launch, seconds."""
    if series == "mean_s" and samples.mean_s is not None:
        return samples.mean_s
    return median(steps_in(samples, series))


def log_steps(row: Row, series: StepSeries) -> dict[int, float]:
    """Return the logarithm of the step time of every launch, by its number."""
    return {s.repeat: math.log(step_of(s, series)) for s in row.samples if s.step_s}


def log_efficiencies(row: Row, baseline: Row, series: StepSeries) -> list[float]:
    """Return the logarithm of the efficiency in every round in which both rows succeeded."""
    if not (row.global_batch and baseline.global_batch):
        return []
    own, theirs = log_steps(row, series), log_steps(baseline, series)
    ranks = row.world_size / baseline.world_size
    work = math.log(row.global_batch / baseline.global_batch / ranks)
    return [work + theirs[repeat] - own[repeat] for repeat in own if repeat in theirs]


def _gives_its_efficiency(other: Row, row: Row) -> bool:
    """Tell whether a plain row is a row's baseline; summaries of version 0.1 do not say which."""
    if other.strategy != "plain" or other.suite != row.suite or row.efficiency is None:
        return False
    found = log_efficiencies(row, other, series_of(row, other))
    return bool(found) and abs(fmean(found) - math.log(max(row.efficiency.value, 1e-12))) < SAME
