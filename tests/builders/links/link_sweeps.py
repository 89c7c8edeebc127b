"""Made-up measurements of links whose α and B are known."""

from collections.abc import Callable

import numpy as np

from scalebench.costmodel.links.fitted import LinkPoint
from scalebench.costmodel.links.laws import Terms

ALPHA_S = 1e-5
BANDWIDTH = 1e9


def sizes(count: int, smallest: int = 8, largest: int = 1 << 28) -> np.ndarray:
    """Sizes at equal ratios, as sweeps have them."""
    return np.unique(np.geomspace(smallest, largest, count).round().astype(int))


def line(size: np.ndarray) -> np.ndarray:
    """Two ranks' ring all-reduce: 2α + D/B."""
    return 2 * ALPHA_S + size / BANDWIDTH


def point(size: int, time_s: float, **fields) -> LinkPoint:
    given = {"op": "all_reduce", "dtype": "float32", "world_size": 2, **fields}
    return LinkPoint(size_bytes=int(size), time_s=float(time_s), **given)


def sweep(size: np.ndarray, time_s: np.ndarray, **fields) -> list[LinkPoint]:
    return [point(d, t, **fields) for d, t in zip(size, time_s, strict=True)]


def noisy(time_s: np.ndarray, sigma: float, random: np.random.Generator) -> np.ndarray:
    """Log-normal noise: the median stays, the factor grows no matter how long it takes."""
    return time_s * np.exp(sigma * random.standard_normal(time_s.shape))


def disturbed(time_s: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Some points 1.3 to 4 times as slow, never faster: a busy machine."""
    factor = random.uniform(1.3, 4.0, time_s.shape)
    return np.where(random.random(time_s.shape) < share, factor * time_s, time_s)


def many(
    count: int,
    size: np.ndarray,
    law: Callable[[np.ndarray], np.ndarray],
    sigma: float | np.ndarray,
    seed: int,
    share: float = 0.0,
) -> list[LinkPoint]:
    """Independent sweeps of the same law, told apart by their link's name."""
    random = np.random.default_rng(seed)
    times = disturbed(noisy(np.tile(law(size), (count, 1)), sigma, random), share, random)
    return [p for link, row in enumerate(times) for p in sweep(size, row, link=str(link))]


def at_several_sizes(
    law: Callable[[int], Terms],
    world_sizes: tuple[int, ...],
    seed: int,
    drift: float = 0.03,
    op: str = "all_reduce",
    size: np.ndarray | None = None,
) -> list[LinkPoint]:
    """Sweeps at several N; what each launch has in common differs by ``drift``."""
    random, points = np.random.default_rng(seed), []
    chosen = sizes(20) if size is None else size
    for n in world_sizes:
        launch = np.exp(drift * random.standard_normal())
        exact = np.array([law(n).time_s(int(d), ALPHA_S, BANDWIDTH) for d in chosen])
        points += sweep(chosen, launch * noisy(exact, 0.05, random), world_size=n, op=op)
    return points
