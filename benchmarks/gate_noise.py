"""Step times with the noise of real runs, made by rule and seed: what the gate is tried on.

Every launch has a level of its own; within it, steps are autocorrelated and heavy-tailed, and now
and then one is disturbed. Nothing here is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LAUNCH_SD = 0.01
"""By how much the medians of launches differ in all, as a ratio (standard deviation)."""

LEVEL_SD = 0.008
"""By how much their levels do; 100 steps with this noise leave a median unsure by 0.6 %."""

STEP_SPREAD = 0.03
CORRELATION = 0.6
SPIKES = 0.02

Level = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]


def _normal(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return generator.normal(0.0, LEVEL_SD, shape)


def _heavy(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Student's t with 4 degrees of freedom, scaled to the standard deviation."""
    return generator.standard_t(4, shape) * LEVEL_SD / 2**0.5


def _bimodal(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Three launches in ten land on a slower place, as with memory or cores far apart."""
    apart = 0.9 * LEVEL_SD / (0.3 * 0.7) ** 0.5
    rest = LEVEL_SD * (1 - 0.9**2) ** 0.5
    slow = generator.random(shape) < 0.3
    return apart * (slow - 0.3) + generator.normal(0.0, rest, shape)


def _unlike(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Rows whose noise differs tenfold, so that none is typical of the others."""
    scale = np.geomspace(0.2, 2.0, shape[0])[:, None]
    return generator.normal(0.0, LEVEL_SD, shape) * scale


LEVELS: dict[str, Level] = {
    "normal": _normal,
    "heavy tails": _heavy,
    "bimodal": _bimodal,
    "unlike rows": _unlike,
}
"""How the levels of launches differ; the standard deviation is `LEVEL_SD` (of `unlike rows`: a
tenfold range around it)."""


@dataclass(frozen=True)
class Noise:
    """One kind of noise.

    Attributes:
        levels: A key of `LEVELS`.
        num_rows: Rows of a run.
        num_launches: Launches of each row.
        num_steps: Clean steps of each launch.
    """

    levels: str
    num_rows: int = 12
    num_launches: int = 5
    num_steps: int = 100

    def launch_levels(self, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return the logarithms of the launches' levels, shape ``[rows, launches]``."""
        return LEVELS[self.levels](generator, (self.num_rows, self.num_launches))

    def run(self, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return the steps of a run, seconds, shape ``[rows, launches, steps]``."""
        shape = (self.num_rows, self.num_launches, self.num_steps)
        fresh = generator.standard_t(4, shape) / 2**0.5
        noise = np.empty(shape)
        noise[..., 0] = fresh[..., 0]
        for step in range(1, self.num_steps):
            carried = CORRELATION * noise[..., step - 1]
            noise[..., step] = carried + (1 - CORRELATION**2) ** 0.5 * fresh[..., step]
        spiked = generator.random(shape) < SPIKES
        spikes = spiked * generator.exponential(0.5, shape)
        logs = self.launch_levels(generator)[..., None] + STEP_SPREAD * noise + spikes
        return 0.02 * np.exp(logs)
