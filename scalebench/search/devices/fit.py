"""Fit the model of a device to rows that were measured, and learn from them how far it is off.

The logarithms of the parameters are fitted within their bounds, each held to its default by the
spread that it has from one system to the next; a row far off counts little (Student's t, as shared
clusters have outliers), but among so few that none can be told to be an outlier it pulls as much as
any (Huber 1964), up to a bound, and moves a parameter that is far off at less cost: what is off by
little tells little of the system. A parameter that no row depends on stays as it is.

What the model of a device gets wrong is much the same in configurations that are alike.

What a fit leaves of the measured steps is carried over to others, the less the more they differ
(Gaussian process; Rasmussen & Williams 2006, equations 2.25 and 5.12). How much of it others share
at all is chosen by what it is worth for each row that is left out in turn: on a noisy cluster
nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from scalebench.search.candidates import Candidates, Floats
from scalebench.search.devices.measured import (
    Group,
    MeasuredRow,
    configuration,
    grouped,
    measured_s,
)
from scalebench.search.devices.parameters import OF_DEVICE, PARAMETERS, Parameters, chip, defaults
from scalebench.search.devices.products import Usual
from scalebench.search.prediction.memory import memory_bytes, samples_of
from scalebench.search.prediction.step import step_parts
from scalebench.search.space import Job

SHAPE, DIVISION, SIZE, KIND = 0.7, 1.0, 3.0, 0.05
"""Logarithms of the ratios over which configurations are alike: a factor of 2 in the model's shape,
of 2.7 in its division, of 20 in ranks and samples; devices, and what is computed again, are not."""

SHARED = (0.0, 0.5, 1.0, 2.0)
"""What may be shared, over what is each row's own: ratios of standard deviations."""

SHARED_BY_FEW = 2.0
"""The same of rows too few to tell."""

LARGEST = 0.7
"""Logarithm of the largest correction, a factor of 2: rows further off are in another unit, or of
another machine, and are told so."""

FAR = 2.0
"""Standard deviations beyond which a row counts as if it were there."""
JobOf = Callable[[str, Parameters], Job]
"""Name of a device and its parameters → a job whose speed and links have them."""

NOISE = 0.04
"""Least standard deviation of a measured step's logarithm that is taken for granted."""

TOLD_OFF = 10
"""Per cent from which on the fitted row that is furthest off is stated."""

FOLDS = 5
OF_FEW = 0.22
"""What fewer than `SPREAD_FROM` rows, which cannot tell it, are trusted to: twice the usual error
on rows of a system that is known (docs/predictions.md), as what is left is carried over."""

REACH = 0.9
"""Logarithm of the most, a factor of 2.5, by which such rows count as off."""

SLOW_HOP_S = 0.3
"""From where a fit begins as well: it shows no slope at its default, and on some clusters decides
the step (nanotron's playbook: on 64 nodes of H100 some 0.65 s, whatever the message)."""

SPREAD_FROM = 4
"""Rows from which on their own errors tell how far the model is off."""

ENOUGH = 8
"""Rows from which on their own held-out errors make the interval."""

RATIOS = (0.5, 3.0)
"""Least and most of measured over counted activations that a fit may find."""

SHIPPED = {0: (-0.3, 1.0), 1: (-0.2, 0.9)}
"""Rows that were fitted → ends of ln(measured/predicted) that nine of ten rows of five published
sets keep within, up to `CHOSEN_ON` GPUs (the widest decides: nanotron's playbook)."""

DEFAULTS = Usual()

PUBLISHED_MARGIN = 0.1
"""By what four of five published peaks exceed their prediction at most (nanotron's playbook, 886
rows of 8 to 512 H100); in fuller devices its steps were several times as long as in others."""

CHOSEN_ON = 64
"""GPUs up to which the defaults were chosen; beyond, the interval is wider."""


@dataclass(frozen=True)
class Alike:
    """What rows have in common with others.

    Attributes:
        places: Of the rows; see `places_of`.
        weights: Of each row.
    """

    places: Floats
    weights: Floats

    def __call__(self, job: Job, of: Candidates) -> Floats:
        """Return measured over predicted steps of candidates, as the rows have it."""
        carried = _likeness(places_of(job, of), self.places) @ self.weights
        return np.asarray(np.exp(np.clip(carried, -LARGEST, LARGEST)))


def alike(places: Floats, left: Floats, few: int) -> Alike:
    """Return what rows have in common with others.

    Args:
        places: Of the rows; see `places_of`.
        left: ln(measured/predicted) of each.
        few: Fewer rows than that cannot tell how much it is.
    """
    near = _likeness(places, places)
    if len(left) < few:
        return Alike(places, _weights(near, left, SHARED_BY_FEW))
    spread = 1.4826 * float(np.median(np.abs(left)))
    left = np.clip(left, -FAR * spread, FAR * spread)
    shared = min(SHARED, key=lambda ratio: _missed(near, left, ratio))
    return Alike(places, _weights(near, left, shared))


def places_of(job: Job, of: Candidates) -> Floats:
    """Return a row of numbers for each candidate: the closer, the more alike they are."""
    model: Any = job.model
    world = of.replicas * of.tensor * of.context * of.pipeline
    columns: Sequence[tuple[Any, float]] = (
        *((model.width, SHAPE), (model.layers, SHAPE), (model.context, DIVISION)),
        *((of.tensor, DIVISION), (of.pipeline, DIVISION), (samples_of(job, of), DIVISION)),
        *((world, SIZE), (job.batch / world, SIZE)),
        *((1 + of.checkpointing, KIND), (max(job.speed.peak_flops.values(), default=1.0), KIND)),
        ({"bfloat16": 1, "fp8": 2, "fp4": 3}[job.framework.matrices], KIND),
    )
    return np.stack([np.log(np.broadcast_to(c, len(of))) / reach for c, reach in columns], axis=1)


def _likeness(some: Floats, others: Floats) -> Floats:
    squares = np.square(some).sum(axis=1)[:, None] + np.square(others).sum(axis=1)
    return np.asarray(np.exp(np.minimum(some @ others.T - squares / 2, 0.0)))


def _inverse(near: Floats, shared: float) -> Floats:
    return np.asarray(np.linalg.inv(near + np.eye(len(near)) / shared**2))


def _weights(near: Floats, left: Floats, shared: float) -> Floats:
    return _inverse(near, shared) @ left if shared else np.zeros(len(left))


def _missed(near: Floats, left: Floats, shared: float) -> float:
    """Return the mean error on rows that are left out in turn."""
    errors = left
    if shared:
        inverse = _inverse(near, shared)
        errors = (inverse @ left) / np.diag(inverse)
    return float(np.abs(np.expm1(-errors)).mean())


@dataclass(frozen=True)
class Fit:
    """What was found.

    Attributes:
        values: Device → its parameters.
        num_rows: That were fitted.
        low: 5 % of ln(measured/predicted) on rows that were held out.
        high: 95 % of it.
        changed: Parameters that the rows decided on.
        most_gpus: Of a row; 0: any number.
        errors: ln(measured/predicted) of each fitted row.
        corrected: What they have in common with others that are alike; None: nothing was fitted.
    """

    values: Mapping[str, Parameters]
    num_rows: int
    low: float
    high: float
    changed: tuple[str, ...] = ()
    most_gpus: int = 0
    errors: tuple[float, ...] = ()
    corrected: Alike | None = None

    def of(self, gpu: str) -> Parameters:
        """Return a device's parameters; one that no row has shares those of its system."""
        name = chip(gpu)
        if name in self.values or not self.values:
            return self.values.get(name, defaults(name))
        known = next(iter(self.values.values()))
        own = {each: getattr(defaults(name), each) for each in OF_DEVICE}
        return known._replace(**own)

    def interval(self, gpu: str, gpus: int) -> tuple[float, float]:
        """Return the ends of ln(measured/predicted), wider with the distance from the rows.

        Once more for every factor of four in ranks beyond the largest row, and as wide as without
        rows on a device that none of them has.
        """
        if self.num_rows and chip(gpu) not in self.values:
            return min(self.low, SHIPPED[0][0]), max(self.high, SHIPPED[0][1])
        far = max(0.0, np.log(gpus / self.most_gpus) / np.log(4)) if self.most_gpus else 0.0
        return self.low * np.sqrt(1 + far), self.high * np.sqrt(1 + far)


UNFITTED = Fit({}, 0, *SHIPPED[0], most_gpus=CHOSEN_ON)


def predicted_s(rows: Sequence[MeasuredRow], fit: Fit, job_of: JobOf, gpu: str = "") -> Floats:
    """Return the predicted steps of rows, seconds."""
    return _predicted(_groups(rows, gpu, job_of), len(rows), fit.of, job_of, fit.corrected)


def predicted_bytes(
    rows: Sequence[MeasuredRow], job_of: JobOf, gpu: str = "", ratio: float = 1.0
) -> Floats:
    """Return the predicted peaks of rows, bytes of the fullest or first stage, as they tell.

    On a full device the allocator gives back what it only reserves.

    Args:
        rows: That were measured.
        job_of: Makes a job of a device and its parameters.
        gpu: Device of rows that name none.
        ratio: Of activations over what is counted; see `activation_ratio`.
    """
    found = np.zeros(len(rows))
    for group in _groups(rows, gpu, job_of):
        job = group.job(job_of(group.gpu, defaults(chip(group.gpu))))
        first = np.array([rows[i].memory_stage == "first" for i in group.places])
        job = replace(job, activation_ratio=ratio * job.activation_ratio)
        peaks = memory_bytes(job, group.of, first)
        if job.memory_limit_bytes is not None:
            bare = job.framework.model_copy(update={"reserved": 1.0})
            least = memory_bytes(replace(job, framework=bare), group.of, first)
            peaks = np.minimum(peaks, np.maximum(least, job.memory_limit_bytes))
        found[group.places] = peaks
    return found


def activation_ratio(rows: Sequence[MeasuredRow], job_of: JobOf, gpu: str = "") -> float:
    """Return measured over counted activations: by the least sum of relative errors of all peaks.

    It holds what the allocator reserves, and what a framework keeps that is not counted. 1, as
    without rows, counts as another row that has activations alone, so one row changes nothing.
    """
    known = [row for row in rows if row.memory_gb]
    measured = np.array([row.memory_gb for row in known]) * 1e9
    state, once = (predicted_bytes(known, job_of, gpu, ratio) for ratio in (0.0, 1.0))
    ratios = np.linspace(*RATIOS, 251)
    off = np.abs((state + ratios[:, None] * (once - state)) / measured - 1).sum(axis=1)
    return float(ratios[np.argmin(off + np.abs(ratios - 1))])


def _groups(rows: Sequence[MeasuredRow], gpu: str, job_of: JobOf) -> list[Group]:
    def ranks_per_node(name: str) -> int:
        return job_of(name, defaults(chip(name))).links.ranks_per_node

    return grouped(rows, gpu, ranks_per_node)


def _predicted(
    groups: Sequence[Group],
    num_rows: int,
    values: Callable[[str], Parameters],
    job_of: JobOf,
    corrected: Alike | None = None,
) -> Floats:
    found = np.zeros(num_rows)
    for group in groups:
        job = group.job(job_of(group.gpu, values(group.gpu)))
        found[group.places] = step_parts(replace(job, corrected=corrected), group.of).step_s
    return found


class _Problem:
    """The parameters of some rows as a vector of logarithms."""

    def __init__(self, rows: Sequence[MeasuredRow], job_of: JobOf, gpu: str, usual: Usual) -> None:
        self.rows, self.job_of = rows, job_of
        self.groups = _groups(rows, gpu, job_of)
        self.measured = np.log(measured_s(rows))
        self.chips = list(dict.fromkeys(chip(group.gpu) for group in self.groups))
        own = [(name, one) for one in self.chips for name in OF_DEVICE]
        shared = [(name, "") for name in PARAMETERS if name not in OF_DEVICE]
        start = {key: getattr(usual.of(key[1] or self.chips[0]), key[0]) for key in (*own, *shared)}
        self.keys = [*own, *shared]
        self.start = np.log([start[key] for key in self.keys])
        self.low = np.log([PARAMETERS[name].low for name, _ in self.keys])
        self.high = np.log([PARAMETERS[name].high for name, _ in self.keys])
        self.spread = np.array([usual.spread(name) for name, _ in self.keys])
        self.handing_on = np.array([name == "hop_s" for name, _ in self.keys])

    def values(self, at: Floats) -> dict[str, Parameters]:
        """Return the parameters of each device."""
        found = dict(zip(self.keys, np.exp(at), strict=True))
        return {
            one: Parameters(**{n: float(found[(n, one if n in OF_DEVICE else "")])
                               for n in PARAMETERS})
            for one in self.chips
        }  # fmt: skip

    def errors(self, at: Floats) -> Floats:
        """Return ln(predicted/measured)."""
        values = self.values(at)
        steps = _predicted(self.groups, len(self.rows), lambda g: values[chip(g)], self.job_of)
        return np.asarray(np.log(steps) - self.measured)

    def alike(self, at: Floats) -> Alike:
        """Return what the rows have in common with others, beyond the parameters."""
        values = self.values(at)
        jobs = [group.job(self.job_of(group.gpu, values[chip(group.gpu)])) for group in self.groups]
        order = np.argsort(np.concatenate([group.places for group in self.groups]))
        each = [places_of(job, group.of) for job, group in zip(jobs, self.groups, strict=True)]
        return alike(np.concatenate(each)[order], -self.errors(at), SPREAD_FROM)

    def active(self) -> npt.NDArray[np.bool_]:
        """Return which parameters any row depends on."""
        here, step = self.errors(self.start), 0.5
        moved = []
        for i in range(len(self.keys)):
            at = self.start.copy()
            at[i] += step if at[i] + step < self.high[i] else -step
            moved.append(np.abs(self.errors(at) - here).max() > 1e-3)
        return np.array(moved)

    def off_defaults(self, at: Floats) -> Floats:
        """Return the root of what each parameter costs for being off its default."""
        off = (at - self.start) / self.spread
        few = len(self.rows) < SPREAD_FROM
        robust = np.sign(off) * np.sqrt(_huber(off**2))
        return np.asarray(np.where(few | self.handing_on, robust, off))

    def negative_log_posterior(self, at: Floats) -> float:
        """Return how unlikely these parameters are, at the scale of their own errors."""
        errors = self.errors(at)
        scale = _scale(errors)
        cost = _student(np.square(errors / scale)).sum() + np.square(self.off_defaults(at)).sum()
        return float(len(errors) * np.log(scale) + cost / 2)

    def solve(
        self, begin: Floats, active: npt.NDArray[np.bool_], scale: float, most: int
    ) -> Floats:
        """Return the best parameters at a scale of the errors."""
        few = len(self.rows) < SPREAD_FROM
        loss = _huber if few else _student
        off = self.errors(begin)
        beyond = off - np.clip(off, -REACH, REACH) if few else 0.0

        def residuals(some: Floats) -> Floats:
            at = begin.copy()
            at[active] = some
            errors = (self.errors(at) - beyond) / scale
            robust = np.sign(errors) * np.sqrt(loss(errors**2))
            return np.concatenate([robust, self.off_defaults(at)[active]])

        low, high = self.low[active] + 1e-9, self.high[active] - 1e-9
        first = np.clip(begin[active], low + 1e-6, high - 1e-6)
        found = least_squares(residuals, first, bounds=(low, high), max_nfev=most, xtol=1e-3,
                              ftol=1e-3)  # fmt: skip
        best = begin.copy()
        best[active] = found.x
        return best

    def solve_at_own_scale(self, at: Floats, active: npt.NDArray[np.bool_]) -> Floats:
        """Return the best parameters at the scale that the errors then have."""
        scale = 0.4
        for most in (12, 10, 10):
            at = self.solve(at, active, scale, most)
            scale = _scale(self.errors(at))
        return at


def _solved(
    rows: Sequence[MeasuredRow],
    job_of: JobOf,
    gpu: str,
    usual: Usual,
    begin: Floats | None = None,
) -> tuple[_Problem, Floats, npt.NDArray[np.bool_]]:
    problem = _Problem(rows, job_of, gpu, usual)
    active = problem.active()
    if not active.any():
        return problem, problem.start, active
    if len(rows) < SPREAD_FROM:
        return problem, problem.solve(problem.start, active, OF_FEW, 15), active
    if begin is not None and len(begin) == len(problem.start):
        return problem, problem.solve(begin, active, _scale(problem.errors(begin)), 8), active
    at = problem.solve_at_own_scale(problem.start, active)
    if _scale(problem.errors(at)) > OF_FEW and (problem.handing_on & active).any():
        slow = np.where(problem.handing_on, np.log(SLOW_HOP_S), problem.start)
        at = min(at, problem.solve_at_own_scale(slow, active), key=problem.negative_log_posterior)
    return problem, at, active


def _student(squares: Floats) -> Floats:
    return np.asarray(3 * np.log1p(squares / 3))


def _huber(squares: Floats) -> Floats:
    return np.asarray(2 * (np.sqrt(1 + squares) - 1))


def _scale(errors: Floats) -> float:
    return max(NOISE, 1.4826 * float(np.median(np.abs(errors))))


def fit_rows(
    rows: Sequence[MeasuredRow],
    job_of: JobOf,
    gpu: str = "",
    interval: bool = True,
    usual: Usual = DEFAULTS,
) -> Fit:
    """Fit the parameters, and learn the interval from rows that were left out in turn.

    Args:
        rows: That were measured.
        job_of: Makes a job of a device and its parameters.
        gpu: Device of rows that name none.
        interval: Whether to fit again without each fold; otherwise as for too few rows.
        usual: What the parameters are before.
    """
    if not rows:
        return replace(UNFITTED, values=usual.measured)
    problem, at, active = _solved(rows, job_of, gpu, usual)
    own = -problem.errors(at)
    named = [n + (f" ({one})" if one else "") for n, one in problem.keys]
    fit = Fit(
        values={**usual.measured, **problem.values(at)},
        num_rows=len(rows),
        low=min(SHIPPED[1][0], *own),
        high=max(SHIPPED[1][1], *own),
        changed=tuple(name for name, on in zip(named, active, strict=True) if on),
        most_gpus=max(row.gpus for row in rows),
        errors=tuple(own.tolist()),
        corrected=problem.alike(at),
    )
    if len(rows) < ENOUGH or not interval:
        return fit
    errors = held_out(rows, job_of, gpu, at, usual)
    wider = np.sqrt(20 / min(len(errors), 20))  # few rows have not seen the ends
    low, high = np.quantile(errors, [0.05, 0.95], method="weibull") * wider
    return replace(fit, low=min(low, -NOISE), high=max(high, NOISE))


def held_out(
    rows: Sequence[MeasuredRow], job_of: JobOf, gpu: str, begin: Floats, usual: Usual = DEFAULTS
) -> Floats:
    """Return ln(measured/predicted) of each row, fitted without its configuration's fold."""
    alike = [configuration(row) for row in rows]
    order = np.random.default_rng(0).permutation(len(set(alike)))
    fold_of = {each: order[i] % FOLDS for i, each in enumerate(dict.fromkeys(alike))}
    folds = np.array([fold_of[each] for each in alike])
    found = np.zeros(len(rows))
    for fold in np.unique(folds):
        kept = [row for row, other in zip(rows, folds, strict=True) if other != fold]
        left = [row for row, other in zip(rows, folds, strict=True) if other == fold]
        if not kept:
            kept = left
        problem, at, _ = _solved(kept, job_of, gpu, usual, begin)
        fit = Fit(problem.values(at), len(kept), 0.0, 0.0, corrected=problem.alike(at))
        found[folds == fold] = np.log(measured_s(left) / predicted_s(left, fit, job_of, gpu))
    return found


def describe_fit(fit: Fit, rows: Sequence[MeasuredRow], name: object, gpu: str) -> str:
    """Return what was fitted, and from how many rows."""
    found, usual = fit.of(gpu), defaults(chip(gpu))
    told = [
        f"{each} {getattr(found, each):.3g} (default {getattr(usual, each):.3g})"
        for each in Parameters._fields
        if any(one.split(" ")[0] == each for one in fit.changed)
    ]
    count = f"{len(rows)} row" + "s" * (len(rows) != 1)
    worst = int(np.argmax(np.abs(fit.errors)))
    off = float(100 * np.expm1(fit.errors[worst]))
    of = f"row {worst + 1} ({rows[worst].gpus} GPUs), which is furthest off,"
    what = "it" if len(rows) == 1 else of
    still = f"; {what} took {abs(off):.0f} % {'more' if off > 0 else 'less'} than it then says"
    return f"fitted to {count} of {name}: {', '.join(told)}{still * (abs(off) > TOLD_OFF)}"
