"""What one run measured of one metric of one row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalebench.gate.variance import sample_variance
from scalebench.stats import Variance


@dataclass(frozen=True)
class Measured:
    """What one run measured of one metric of one row, before anything is taken from other rows.

    Attributes:
        center: Mean over the launches, on the scale on which changes are differences.
        num_launches: At least one.
        variance: Between the launches; None: fewer than two.
        within: Variance of one launch's value as the launch itself knows it; launches cannot
            differ by less.
        values: One per launch; empty: only mean and variance are known.
    """

    center: float
    num_launches: int
    variance: Variance | None = None
    within: float = 0.0
    values: tuple[float, ...] = ()


def measured(values: Sequence[float] | NDArray[np.float64], within: float = 0.0) -> Measured:
    """Return what one value per launch says; ``within`` as in `Measured`."""
    array = np.asarray(values, dtype=float)
    told = tuple(float(value) for value in array)
    return Measured(float(array.mean()), len(array), sample_variance(array), within, told)
