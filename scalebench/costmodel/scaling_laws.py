"""Laws that know nothing of links: Amdahl, Gustafson, USL; fitted to speedups, scored alike.

Each is a curve S(N) with one or two parameters. They stand next to the mechanistic model so that a
reader sees what each is worth: fitted without the largest number of ranks, and compared with it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from scalebench.errors import UsageError


class FittedLaw(NamedTuple):
    """A law with its parameters.

    Attributes:
        name: Of the law.
        parameters: Name → value.
        speedup: S(N).
    """

    name: str
    parameters: Mapping[str, float]
    speedup: Callable[[int], float]


Sizes = Sequence[int]
Speedups = Sequence[float]


def fit_amdahl(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = 1/(s + (1−s)/N)``: s, the serial fraction, by least squares of ``1/S``, 0 ≤ s ≤ 1.

    Source: Amdahl 1967.
    """
    n, inverse = np.array(world_sizes, dtype=float), 1 / np.array(speedups)
    serial = _clipped(_slope(1 - 1 / n, inverse - 1 / n))
    return FittedLaw("Amdahl", {"serial": serial}, lambda m: 1 / (serial + (1 - serial) / m))


def fit_gustafson(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = N − s·(N−1)``: s by least squares, 0 ≤ s ≤ 1. Source: Gustafson 1988."""
    n, s = np.array(world_sizes, dtype=float), np.array(speedups)
    serial = _clipped(_slope(n - 1, n - s))
    return FittedLaw("Gustafson", {"serial": serial}, lambda m: m - serial * (m - 1))


def fit_usl(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = N/(1 + σ(N−1) + κN(N−1))``: contention σ and coherency κ, neither negative.

    By least squares of ``N/S − 1``. Source: Gunther 2007, the universal scalability law.
    """
    n, s = np.array(world_sizes, dtype=float), np.array(speedups)
    (sigma, kappa), _ = nnls(np.column_stack((n - 1, n * (n - 1))), n / s - 1)

    def speedup(m: int) -> float:
        return float(m / (1 + sigma * (m - 1) + kappa * m * (m - 1)))

    return FittedLaw("USL", {"sigma": float(sigma), "kappa": float(kappa)}, speedup)


def constant_efficiency(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = E·N`` with the efficiency of the largest number of ranks that was measured."""
    largest = int(np.argmax(world_sizes))
    efficiency = speedups[largest] / world_sizes[largest]
    return FittedLaw("constant efficiency", {"efficiency": efficiency}, lambda m: efficiency * m)


LAWS: tuple[Callable[[Sizes, Speedups], FittedLaw], ...] = (
    fit_amdahl,
    fit_gustafson,
    fit_usl,
    constant_efficiency,
)


def fit_all(world_sizes: Sizes, speedups: Speedups) -> list[FittedLaw]:
    """Fit every law.

    Args:
        world_sizes: Numbers of ranks, at least one of them above 1, shape (n,).
        speedups: Measured at each, positive, shape (n,).

    Raises:
        UsageError: There is nothing above one rank, or a speedup is not positive.
    """
    several = [(n, s) for n, s in zip(world_sizes, speedups, strict=True) if n > 1]
    if not several or min(s for _, s in several) <= 0:
        raise UsageError("A scaling law needs a positive speedup at 2 ranks or more.")
    return [fit([n for n, _ in several], [s for _, s in several]) for fit in LAWS]


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the least-squares slope of a line through the origin."""
    return float(x @ y / (x @ x))


def _clipped(share: float) -> float:
    return min(max(share, 0.0), 1.0)
