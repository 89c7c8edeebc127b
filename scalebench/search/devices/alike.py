"""What the model of a device gets wrong is much the same in configurations that are alike.

What a fit leaves of the measured steps is carried over to others, the less the more they differ
(Gaussian process; Rasmussen & Williams 2006, equations 2.25 and 5.12). How much of it others share
at all is chosen by what it is worth for each row that is left out in turn: on a noisy cluster
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalebench.search.candidates import Candidates, Floats
from scalebench.search.job import Job
from scalebench.search.prediction.memory import samples_of

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
