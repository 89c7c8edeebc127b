"""Races: from the curves of all launches to time and samples to the target, and their ratios."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from scalebench.analysis.convergence.projected import (
    Arrival,
    arrival,
    loss_after,
    loss_at_time,
    noise_scale,
    samples_ratio,
)
from scalebench.analysis.rows.fields import NO_LAUNCH, Context, Fields, null
from scalebench.analysis.rows.launches import Launches, Table
from scalebench.records.measured.rank import GradientNorms, RacePoint
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Row
from scalebench.spec import Plain
from scalebench.spec.race import Race
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
