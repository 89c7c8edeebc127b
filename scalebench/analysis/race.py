"""Races: time and samples to the target from the curves of all launches; how long at other sizes.

Time to a loss at sizes that were not measured: predicted speed, times the samples it needs.

How many it needs follows from the gradient noise scale. Source: McCandlish, Kaplan, Amodei et al.
2018, arXiv:1812.06162, §2.2 and appendix A.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from scalebench.analysis.rows.launches import NO_LAUNCH, Context, Fields, Launches, Table, null
from scalebench.records.measured.rank import GradientNorms, RacePoint
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Row
from scalebench.spec import Plain
from scalebench.spec.recovery import Race
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed

Curves = Mapping[int, Sequence[RacePoint]]
"""Repeat (seed) → evaluations."""

OF_ARRIVAL = (
    "time_to_target_s",
    "elapsed_to_target_s",
    "samples_to_target",
    "steps_to_target",
    "bytes_to_target",
    "energy_to_target_j",
    "statistical_efficiency",
    "hardware_efficiency",
    "speedup_to_target",
)


def squared_gradient(norms: GradientNorms) -> float:
    """Return an unbiased estimate of ``|G|²``, G the true gradient.

    ``(n·|mean of g|² − mean of |g|²) / (n − 1)`` for n batches; may be negative.
    """
    n = norms.num_batches
    return (n * norms.square_of_mean - norms.mean_square) / (n - 1)


def gradient_variance(norms: GradientNorms) -> float:
    """Return an unbiased estimate of ``tr Σ``, Σ the covariance of one sample's gradient.

    ``b · (mean of |g|² − |mean of g|²) / (1 − 1/n)`` for n batches of b samples.
    """
    difference = norms.mean_square - norms.square_of_mean
    return norms.batch_size * difference / (1 - 1 / norms.num_batches)


def noise_scale(norms: Sequence[GradientNorms]) -> float | None:
    """Return ``B_simple = tr Σ / |G|²``, samples.

    Both are averaged over the given moments of a training before they are divided: the ratio of
    single estimates is biased.

    Returns:
        None: the gradient is not known to be larger than nothing.
    """
    if not norms:
        return None
    gradient = sum(map(squared_gradient, norms)) / len(norms)
    return sum(map(gradient_variance, norms)) / len(norms) / gradient if gradient > 0 else None


def samples_ratio(batch: float, other: float, scale: float) -> float:
    """Return samples to a target with a batch over those with another batch, as predicted.

    ``E(B) = E_min · (1 + B / B_noise)``: equation 2.11.
    It takes each batch at its own best learning rate.
    """
    return (1 + batch / scale) / (1 + other / scale)


@dataclass(frozen=True)
class Arrival:
    """When a launch reached the target, by the straight line between two evaluations.

    Attributes:
        samples: That all ranks together had trained on.
        trained_s: Seconds of training.
        elapsed_s: Seconds with the evaluations until then, that which found it not counted.
        sent_bytes: That the rank which sends most had sent; None: each step sends as many.
    """

    samples: float
    trained_s: float
    elapsed_s: float
    sent_bytes: float | None = None


def arrival(points: Sequence[RacePoint], target: float) -> Arrival | None:
    """Return when the loss reached a target and stayed there for one more evaluation.

    A loss that falls below it once by luck does not count, nor does one at the last evaluation,
    which no other confirms. MLPerf and AlgoPerf take the first evaluation that reaches the target;
    the line from the one before it removes the grid of evaluations from ratios.

    ``points``: evaluations of one launch in order, the first before any training.

    Returns:
        None: it did not reach the target.
    """
    below = [point.loss is not None and point.loss <= target for point in points]
    for index, (here, after) in enumerate(pairwise(below)):
        if here and after:
            return _crossing(points, index, target)
    return None


def _crossing(points: Sequence[RacePoint], index: int, target: float) -> Arrival:
    after = points[index]
    before = points[index - 1] if index else after
    high, low = before.loss, after.loss
    share = 1.0
    if high is not None and low is not None and high > target:
        share = (high - target) / (high - low)
    since_s = share * (after.trained_s - before.trained_s)
    return Arrival(
        samples=_between(before.samples, after.samples, share),
        trained_s=before.trained_s + since_s,
        elapsed_s=before.elapsed_s + since_s,
        sent_bytes=None
        if before.sent_bytes is None or after.sent_bytes is None
        else _between(before.sent_bytes, after.sent_bytes, share),
    )


def loss_at_time(points: Sequence[RacePoint], trained_s: float) -> float | None:
    """Return the loss after so many seconds of training, by the line between two evaluations.

    Returns:
        None: the training was shorter, or the loss next to it was not finite.
    """
    for before, after in pairwise(points):
        if before.trained_s <= trained_s <= after.trained_s:
            if before.loss is None or after.loss is None:
                return None
            length = after.trained_s - before.trained_s
            share = (trained_s - before.trained_s) / length if length else 1.0
            return _between(before.loss, after.loss, share)
    return None


def loss_after(points: Sequence[RacePoint], samples: int) -> float | None:
    """Return the loss of the evaluation after so many samples; None: there is none."""
    return next((point.loss for point in points if point.samples == samples), None)


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


class Training(NamedTuple):
    """Samples in a step, and samples per second; the ends of its interval where there is one."""

    batch: int
    throughput: float
    low: float | None = None
    high: float | None = None


class TimeToLoss(NamedTuple):
    """How a training compares with another one until both reach the same loss.

    Attributes:
        statistical_efficiency: Samples that the other one needs over samples that this needs.
        speedup: Seconds that the other one needs over seconds that this needs.
        low: Of the speedup, with the throughput and the noise scale at the ends of their
            intervals that are worse; None: one of them has no interval.
        high: Likewise, at the better ends.
    """

    statistical_efficiency: float
    speedup: float
    low: float | None
    high: float | None


def time_to_loss(training: Training, base: Training, scale: Estimate) -> TimeToLoss:
    """Compare two trainings by the gradient noise scale.

    Each batch is taken at its own best learning rate.
    """

    def statistical(noise: float) -> float:
        return samples_ratio(base.batch, training.batch, noise)

    def speedup(noise: float | None, throughput: float | None) -> float | None:
        if noise is None or throughput is None:
            return None
        return throughput / base.throughput * statistical(noise)

    worse, better = sorted((scale.low, scale.high), key=lambda n: statistical(n) if n else 0.0)
    return TimeToLoss(
        statistical(scale.value),
        training.throughput / base.throughput * statistical(scale.value),
        speedup(worse, training.low),
        speedup(better, training.high),
    )


def noise_scale_of_workload(rows: Sequence[Row], workload: str) -> Estimate | None:
    """Return the noise scale that a race on a workload found, or None."""
    races = (row.race for row in rows if row.workload == workload and row.race is not None)
    return next((race.noise_scale for race in races if race.noise_scale is not None), None)


@dataclass(frozen=True)
class Target:
    """The loss that a suite's cases race to.

    Attributes:
        told: Who set it.
    """

    loss: float
    told: str


def race_of_row(row: Row, _: Sequence[Row], run: Context) -> Fields:
    """Return what came of a row's race."""
    launches = run.launches(row)
    race, curves = launches.cell.race, _curves(launches)
    if race is None:
        return null(["race"], "the suite is no race")
    base = _baseline(row.suite, run.table)
    target = target_of(race, _curves(base) if base else {}, base)
    if isinstance(target, str) or base is None or not curves:
        return null(["race"], target if isinstance(target, str) else NO_LAUNCH)
    equal_s = min(
        points[-1].trained_s
        for other in run.table.values()
        if other.cell.suite == row.suite
        for points in _curves(other).values()
    )
    return {"race": figures_of(row, race, target, curves, base, equal_s)}


def _baseline(suite: str, table: Table) -> Launches | None:
    """Return the launches that a suite's races are compared with: its first plain case."""
    of_suite = (row for row in table.values() if row.cell.suite == suite)
    return next((row for row in of_suite if isinstance(row.cell.strategy, Plain)), None)


def _curves(row: Launches) -> Curves:
    return {
        repeat: result.ranks[0].race
        for repeat, result in row.good.items()
        if result.ranks and result.ranks[0].race
    }


def target_of(race: Race, baseline: Curves, base: Launches | None) -> Target | str:
    """Return the target of a race, or why there is none."""
    if race.target_loss is not None:
        return Target(race.target_loss, "given")
    after = race.baseline_samples
    losses = [loss_after(points, after) for points in baseline.values()]
    known = [loss for loss in losses if loss is not None]
    if base is None or not known or len(known) < len(losses):
        return f"the plain baseline has no loss after {after} samples to set the target"
    return Target(float(np.mean(known)), f"{base.cell.case} after {after} samples")


def figures_of(
    row: Row, race: Race, target: Target, curves: Curves, base: Launches, equal_s: float
) -> RaceFigures:
    """Return what came of a row's race.

    ``equal_s``: seconds of training at which losses are compared.
    """
    arrivals = {seed: arrival(points, target.loss) for seed, points in curves.items()}
    theirs = {seed: arrival(points, target.loss) for seed, points in _curves(base).items()}
    reached = {seed: found for seed, found in arrivals.items() if found is not None}
    values: dict[str, Estimate | None] = {}
    reasons: dict[str, str] = {}
    lowest = _lowest(curves)
    if len(reached) < len(curves):
        missed = _missed(len(curves) - len(reached), len(curves), race, lowest, target.loss)
        reasons = dict.fromkeys(OF_ARRIVAL, missed)
    else:
        values = _to_target(reached, row)
        reasons = {n: _unknown(n, row) for n in ("bytes_to_target", "energy_to_target_j")}
        values |= _ratios(reached, theirs, row.world_size)
        if not values.get("speedup_to_target"):
            why = "the baseline did not reach the target with every seed"
            reasons |= dict.fromkeys(OF_ARRIVAL[-3:], why)
    losses = {
        "final_loss": [points[-1].loss for points in curves.values()],
        "loss_at_equal_time": [loss_at_time(points, equal_s) for points in curves.values()],
    }
    for name, of_seeds in losses.items():
        known = [loss for loss in of_seeds if loss is not None]
        values[name] = estimate_signed(known) if len(known) == len(of_seeds) else None
        reasons[name] = "the loss was not finite"
    scale = _noise_scale(_curves(base), theirs, lambda point: point.gradients)
    values["noise_scale"] = None if isinstance(scale, str) else scale
    of_steps = noise_scale_of_steps(curves, arrivals)
    values["noise_scale_of_steps"] = None if isinstance(of_steps, str) else of_steps
    if isinstance(of_steps, str):
        reasons["noise_scale_of_steps"] = of_steps
    predicted = None
    if isinstance(scale, str):
        reasons |= dict.fromkeys(("noise_scale", "predicted_statistical_efficiency"), scale)
    else:
        predicted = samples_ratio(base.cell.global_batch, row.global_batch, scale.value)
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    median_s = median_with_missing([a.trained_s if a else None for a in arrivals.values()])
    if lowest is None:
        reasons["lowest_loss"] = "no loss was finite"
    if median_s is None:
        reasons["median_time_to_target_s"] = "half of the seeds or more did not reach the target"
    return RaceFigures(
        target_loss=target.loss,
        target_from=target.told,
        baseline=(base.cell.case, base.cell.world_size),
        samples=race.samples,
        num_seeds=len(curves),
        num_reached=len(reached),
        median_time_to_target_s=median_s,
        predicted_statistical_efficiency=predicted,
        lowest_loss=lowest,
        equal_time_s=equal_s,
        unavailable={name: why for name, why in reasons.items() if name not in given},
        **given,
    )


def noise_scale_of_steps(curves: Curves, arrivals: Mapping[int, Arrival | None]) -> Estimate | str:
    """Estimate a row's noise scale until its target from its own steps, or say why not."""
    if not any(point.step_gradients for points in curves.values() for point in points):
        return "taken from the steps of DDP on several ranks only"
    return _noise_scale(curves, arrivals, lambda point: point.step_gradients)


def _noise_scale(
    curves: Curves,
    arrivals: Mapping[int, Arrival | None],
    norms_of: Callable[[RacePoint], GradientNorms | None],
) -> Estimate | str:
    """Take the noise at the end of each block of steps that was trained on the way to the target.

    Not before any training: that gradient is many times as large, belongs to no block, and would
    alone decide the mean.
    """
    found = []
    for seed, points in curves.items():
        reached = arrivals.get(seed)
        last = reached.samples if reached is not None else points[-1].samples
        trained = [after for before, after in pairwise(points) if before.samples < last]
        norms = [one for point in trained if (one := norms_of(point)) is not None]
        scale = noise_scale(norms)
        if scale is None or scale <= 0:
            return "the gradient's norm is not larger than its noise, or was not taken"
        found.append(scale)
    return estimate_over_launches(found) if found else "no launch of the baseline succeeded"


def _lowest(curves: Curves) -> float | None:
    finite = (p.loss for points in curves.values() for p in points if p.loss is not None)
    return min(finite, default=None)


def _missed(
    num_missed: int, num_seeds: int, race: Race, lowest: float | None, target: float
) -> str:
    told = f"; the lowest loss was {lowest:.4g}" if lowest is not None else ""
    if lowest is not None and lowest <= target and num_missed == num_seeds:
        told += ", which no further evaluation confirmed"
    return (
        f"{num_missed} of {num_seeds} seeds did not reach the target within {race.samples} "
        f"samples{told}"
    )


def _to_target(reached: Mapping[int, Arrival], row: Row) -> dict[str, Estimate | None]:
    def over_seeds(of: Callable[[Arrival], float]) -> Estimate:
        return estimate_over_launches([of(found) for found in reached.values()])

    samples = over_seeds(lambda a: a.samples)
    steps = samples.scaled(1 / row.global_batch)
    energy = row.energy_j_per_sample
    return {
        "time_to_target_s": over_seeds(lambda a: a.trained_s),
        "elapsed_to_target_s": over_seeds(lambda a: a.elapsed_s),
        "samples_to_target": samples,
        "steps_to_target": steps,
        "bytes_to_target": _bytes(reached, steps, row),
        "energy_to_target_j": samples.scaled(energy.value) if energy else None,
    }


def _bytes(reached: Mapping[int, Arrival], steps: Estimate, row: Row) -> Estimate | None:
    """Return what a rank sent until the target: as it was counted, or so many times a step's."""
    counted = [found.sent_bytes for found in reached.values() if found.sent_bytes]
    if len(counted) == len(reached):
        return estimate_over_launches(counted)
    return steps.scaled(row.wire_bytes) if row.wire_bytes else None


def _unknown(name: str, row: Row) -> str:
    field = "wire_bytes" if name == "bytes_to_target" else "energy_j_per_sample"
    if field == "wire_bytes" and row.wire_bytes == 0:
        return "one rank sends nothing"
    return row.unavailable.get(field, "not recorded")


def _ratios(
    mine: Mapping[int, Arrival], theirs: Mapping[int, Arrival | None], num_ranks: int
) -> dict[str, Estimate | None]:
    """Return the efficiencies and the speedup, over the seeds that both have."""
    pairs = [(mine[seed], base) for seed, base in theirs.items() if seed in mine]
    known = [(own, base) for own, base in pairs if base is not None]
    if not known or len(known) < len(pairs):
        return {}
    samples = [base.samples / own.samples for own, base in known]
    times = [base.trained_s / own.trained_s for own, base in known]
    hardware = [t / s / num_ranks for t, s in zip(times, samples, strict=True)]
    return {
        "statistical_efficiency": estimate_over_launches(samples),
        "hardware_efficiency": estimate_over_launches(hardware),
        "speedup_to_target": estimate_over_launches(times),
    }


def median_with_missing(values: Sequence[float | None]) -> float | None:
    """Return the median where a missing value is larger than all others; None: it is missing."""
    ordered = sorted(value for value in values if value is not None)
    middle = (len(values) - 1) / 2
    low, high = int(np.floor(middle)), int(np.ceil(middle))
    return (ordered[low] + ordered[high]) / 2 if high < len(ordered) else None
