"""From the logs of jobs that ran elsewhere to the rows of a summary.

A row is all logs at one N; a log counts as a launch. Efficiency is against the smallest N:
``E(N) = (X_N / N) / (X_n / n)``, X the steps, samples or tokens per second of the job; with n = 1
it is T_1 / (N · T_N). It is refused where the rows do not do the same work.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.run import StoredRun
from scalebench.analysis.steps import MOST_BLOCKS, MeanStep, mean_of_means, mean_of_steps
from scalebench.records.summary import (
    ImportedLog,
    ImportedRun,
    Row,
    RowKey,
    StepSamples,
    Summary,
    Work,
)
from scalebench.stats import (
    Estimate,
    Variance,
    estimate_of_log,
    estimate_over_launches,
    sum_variances,
    t_half_width,
)

SUITE = "imported"
SAME = 0.005
"""Batches and rates that differ by less are the same."""
LEAST_CHANGE = 0.0025
"""Of a step, below which the gate calls jobs alike: five runs a side on 8 × H100 tell 0.2 %."""
A_LOG_DOES_NOT_SAY = "a log does not say"
ONE_LOG, NO_BATCH = "one log", "batch not known"
UNSAID = (
    *("comm_s", "exposed_comm_s", "exposed_transfer_s", "wait_s", "compute_s", "overlap_ratio"),
    *("budget", "communication", "wire_bytes", "energy_j_per_sample", "launch_s", "correctness"),
    *("predicted_step_s", "efficiency_wrapped", "probe_effect", "backend"),
)
OF_WORK: Mapping[Work, str] = {"sample": "samples/s", "token": "tokens/s", "flop": "FLOP/s"}


@dataclass(frozen=True)
class _Size:
    """All logs of jobs of one size."""

    world_size: int
    logs: tuple[ImportedLog, ...]

    @cached_property
    def means(self) -> list[MeanStep | None]:
        found = [_mean_of(log) for log in self.logs]
        own = self._variances()
        if own is None:
            return found
        return [
            mean and mean._replace(variance=min(mean.variance, variance))
            for mean, variance in zip(found, own, strict=True)
        ]

    def _variances(self) -> list[float] | None:
        """Return the variance of each log's mean without the course that all logs have in common.

        Sequences that grow in the course of a training, for example, are no noise. None: there is
        one log, or they have not as many steps.
        """
        num_logs, counts = len(self.logs), [sum(log.counts) for log in self.logs]
        if num_logs == 1 or not all(counts) or not _alike(counts):
            return None
        if min(len(log.step_s) for log in self.logs) < MOST_BLOCKS:
            return None
        course = np.array([_course(log) for log in self.logs])
        apart = (course - course.mean(axis=0)) * math.sqrt(num_logs / (num_logs - 1))
        return list(apart.var(axis=1, ddof=1) / MOST_BLOCKS)

    @property
    def timed(self) -> list[MeanStep]:
        return [mean for mean in self.means if mean is not None]

    @property
    def batch(self) -> float | None:
        found = {log.global_batch for log in self.logs}
        return found.pop() if len(found) == 1 else None

    def rates(self, per: Work | None) -> list[float] | None:
        """Work per second of each log, in steps where ``per`` is None; None: not all say."""
        if per is None:
            found: list[float | None] = [m and 1 / m.seconds for m in self.means]
        elif per == "flop":
            found = [g and g * self.world_size for g in (log.tflops_per_gpu for log in self.logs)]
        else:
            found = [
                log.samples_per_s if per == "sample" else log.tokens_per_s for log in self.logs
            ]
        known = [rate for rate in found if rate]
        return known if len(known) == len(found) else None

    def variance(self, rates: Sequence[float]) -> Variance | None:
        """Of the mean logarithm: between the logs, or within the only one; None: not known."""
        if len(rates) > 1:
            logs = np.log(rates)
            within = float(np.mean([m.variance for m in self.timed])) if self.timed else 0.0
            between = max(float(logs.var(ddof=1)), within)
            return Variance(between / len(rates), len(rates) - 1)
        mean, log = self.means[0], self.logs[0]
        if mean is None or mean.variance <= 0:
            return None
        return Variance(mean.variance, max(1, min(len(log.step_s), MOST_BLOCKS) - 1))

    def estimate(self, values: Sequence[float]) -> Estimate:
        """Estimate a quantity of which each log has one value."""
        if len(values) > 1:
            return estimate_over_launches(values)
        variance = self.variance(values)
        if variance is None:
            return Estimate(value=values[0], n=1)
        return estimate_of_log(math.log(values[0]), t_half_width(variance), 1)


def _mean_of(log: ImportedLog) -> MeanStep | None:
    """Return the mean step of a log.

    Of a total, and of steps that are all printed alike, the variance is not known and stands as 0.
    """
    if not log.step_s:
        return None
    steps = np.array(log.step_s)
    if log.source == "total" or np.ptp(steps) <= 1e-9 * steps[0]:
        return MeanStep(float(steps.mean()), 0.0)
    if not log.averaged:
        return mean_of_steps(steps)
    whole = float(np.average(steps, weights=log.counts))  # pauses are cut out already
    return mean_of_means(steps)._replace(seconds=whole)


def _course(log: ImportedLog) -> NDArray[np.float64]:
    """Return how long the steps of parts of a log are, over its mean step; `MOST_BLOCKS` parts."""
    counts = np.array([0.0, *log.counts])
    steps, seconds = counts.cumsum(), (counts * [0.0, *log.step_s]).cumsum()
    parts = np.diff(np.interp(np.linspace(0, steps[-1], MOST_BLOCKS + 1), steps, seconds))
    return np.asarray(parts * MOST_BLOCKS / seconds[-1])


@dataclass(frozen=True)
class _Ratios:
    """How sizes compare with the smallest one.

    Attributes:
        scaling: Strong or weak, as the batches are; None: neither, or not known.
        factor: N → work of a step over that of the smallest size's.
        refused: Why there is no efficiency; empty: there is.
    """

    base: _Size
    per: Work | None
    scaling: str | None
    factor: Mapping[int, float]
    refused: str = ""

    def speedup(self, size: _Size) -> Estimate | str:
        """Return X_N / X_n, or why it is not known."""
        if self.refused:
            return self.refused
        mine, theirs = size.rates(self.per), self.base.rates(self.per)
        if mine is None or theirs is None:
            what = OF_WORK[self.per] if self.per else "steps"
            return f"not every log has {what}"
        value = float(np.mean(np.log(mine)) - np.mean(np.log(theirs)))
        value += math.log(self.factor[size.world_size])
        n = min(len(mine), len(theirs))
        if size is self.base:
            return Estimate(value=1.0, low=1.0, high=1.0, n=n)
        known = [v for v in (size.variance(mine), self.base.variance(theirs)) if v is not None]
        if len(known) < 2:
            return Estimate(value=math.exp(value), n=n)
        return estimate_of_log(value, t_half_width(sum_variances(known)), n)


def imported_summary(run: StoredRun, imported: ImportedRun) -> Summary:
    """Work out the summary of a run that was read of logs."""
    sizes = [
        _Size(n, tuple(log for log in imported.logs if log.world_size == n))
        for n in sorted({log.world_size for log in imported.logs})
    ]
    ratios = _compared(sizes, imported.per)
    notices = [f"{log.name}: {notice}." for log in imported.logs for notice in log.notices]
    environment = imported.environment()
    notices += [
        f"The logs differ in their {name}: {said}."
        for name, said in environment.items()
        if ", " in str(said) and name != "devices"
    ]
    rows = [_row(size, ratios, imported.case) for size in sizes]
    return Summary(
        run_id=run.info.run_id,
        created=run.info.created,
        status=run.info.status,
        scalebench_version=run.info.version,
        reproduce=" ".join(run.info.command),
        environment=run.info.environment | environment,
        notices=[*run.info.notices, *notices, *_refusal(rows, ratios)],
        damaged=run.damaged,
        rows=rows,
        gate={SUITE: {"step_s": {"relative_floor": LEAST_CHANGE}}},
    )


def _refusal(rows: Sequence[Row], ratios: _Ratios) -> list[str]:
    return [f"No efficiency: {ratios.refused}."] if ratios.refused and len(rows) > 1 else []


def _compared(sizes: Sequence[_Size], per: Work | None) -> _Ratios:
    base = sizes[0]
    batches = [size.batch for size in sizes]
    known = [batch for batch in batches if batch]
    strong = len(known) == len(sizes) and _alike(known)
    weak = len(known) == len(sizes) and _alike(
        [batch / size.world_size for batch, size in zip(known, sizes, strict=True)]
    )
    scaling = None if len(sizes) == 1 else "strong" if strong else "weak" if weak else None
    work = {size.world_size: (size.batch or 1.0) / (base.batch or 1.0) for size in sizes}
    factor = work if per is None else dict.fromkeys(work, 1.0)
    refused = _differ([log for size in sizes for log in size.logs], per)
    if len(sizes) == 1 and base.world_size > 1:
        refused = "the logs are of one N: efficiency needs a second one"
    if not refused and per is None and scaling is None and len(sizes) > 1:
        refused = (
            "the batch of a step is not known: give --batch-per-gpu, or --per token or sample"
            if len(known) < len(sizes)
            else f"neither batch nor batch per GPU is the same at every N ({_listed(sizes)}): "
            "--per token gives it per token"
        )
    return _Ratios(base, per, scaling, factor, refused)


def _listed(sizes: Sequence[_Size]) -> str:
    return ", ".join(f"{size.batch:g} on {size.world_size}" for size in sizes)


def _alike(values: Sequence[float]) -> bool:
    return max(values) <= min(values) * (1 + SAME)


def _differ(logs: Sequence[ImportedLog], per: Work | None) -> str:
    """Say in what the jobs differ so that they do not do the same; empty: in nothing."""
    told: list[tuple[str, Sequence[object]]] = [("GPU", [log.gpu for log in logs if log.gpu])]
    if per != "flop":
        told += [
            (f"model ({name})", [log.model[name] for log in logs if name in log.model])
            for name in ("name", "layers", "hidden", "parameters")
        ]
        told.append(("sequence", [log.seq for log in logs if log.seq]))
    for what, values in told:
        found = list(dict.fromkeys(values))
        if len(found) > 1:
            shown = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in found)
            flop = "" if what == "GPU" else "; --per flop compares FLOP/s"
            return f"the logs differ in their {what}: {shown}{flop}"
    return ""


def _row(size: _Size, ratios: _Ratios, case: str) -> Row:
    first, n = size.logs[0], size.world_size
    means = [mean.seconds for mean in size.timed]
    unavailable = dict.fromkeys(UNSAID, A_LOG_DOES_NOT_SAY)
    base: RowKey = (SUITE, case, ratios.base.world_size)
    speedup = ratios.speedup(size)
    if isinstance(speedup, str):
        unavailable |= dict.fromkeys(("speedup", "efficiency", "baseline"), speedup)
    samples, tokens = size.rates("sample"), size.rates("token")
    if not means:
        why = next(log.no_steps for log in size.logs)
        unavailable |= dict.fromkeys(("step_s", "typical_step_s"), why)
    bad = next((log for log in size.logs if log.bad_loss_at is not None), None)
    throughput = size.estimate(samples) if samples else None
    if throughput is None and means:
        throughput = size.estimate([1 / mean for mean in means])
    own: dict[str, object] = {
        "throughput": throughput,
        "tokens_per_s": size.estimate(tokens) if tokens else None,
        "peak_memory_bytes": max((log.memory_bytes or 0 for log in size.logs), default=0) or None,
        "mfu": _estimate(size, [log.mfu for log in size.logs]),
        "loss_first": first.loss_first,
        "loss_last": first.loss_last,
    }
    unavailable |= {name: A_LOG_DOES_NOT_SAY for name, value in own.items() if value is None}
    batch = size.batch or 0.0
    one = len(size.logs) == 1 and means and size.variance(means) is not None
    return Row(
        suite=SUITE,
        case=case,
        strategy="imported",
        strategy_settings={"format": first.format},
        workload=_model_name(first),
        num_parameters=_int(first.model.get("parameters")),
        scaling=ratios.scaling or "unknown",
        device="cuda",
        backend=None,
        world_size=n,
        global_batch=round(batch),
        rank_batch=int(batch / n),
        status="failed" if bad else "ok",
        reason=bad and f"the loss is not finite from step {bad.bad_loss_at:.0f} on ({bad.name})",
        oversubscribed=False,
        step_s=size.estimate(means) if means else None,
        typical_step_s=size.estimate(
            [float(np.median(log.step_s)) for log in size.logs if log.step_s]
        )
        if means
        else None,
        speedup=None if isinstance(speedup, str) else speedup,
        efficiency=None if isinstance(speedup, str) else speedup.scaled(ratios.base.world_size / n),
        baseline=None if isinstance(speedup, str) else base,
        efficiency_wrapped=None,
        memory={},
        correctness=None,
        launch_s=None,
        num_clean_steps=sum(round(sum(log.counts)) for log in size.logs),
        stamps=[*([ONE_LOG] if one else []), *([] if batch or samples else [NO_BATCH])],
        unavailable=unavailable,
        samples=[
            StepSamples(
                repeat=repeat,
                step_s=log.step_s,
                mean_s=mean and mean.seconds,
                mean_variance=mean and mean.variance,
                peak_memory_bytes=log.memory_bytes,
            )
            for repeat, (log, mean) in enumerate(zip(size.logs, size.means, strict=True))
        ],
        **own,
    )


def _estimate(size: _Size, values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value]
    return estimate_over_launches(known) if len(known) == len(values) else None


def _model_name(log: ImportedLog) -> str:
    if "name" in log.model:
        return str(log.model["name"])
    if {"layers", "hidden"} <= log.model.keys():
        return f"{log.model['layers']:.0f} layers of {log.model['hidden']:.0f}"
    return "model not named"


def _int(value: object) -> int | None:
    return round(value) if isinstance(value, float) else None
