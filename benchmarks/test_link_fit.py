"""A large calibration: what fitting 2,000 points costs.

Target: under 1 s. Half of the sweeps change their protocol, which is the slow case.
"""

import numpy as np

from benchmarks.verdict import against_limit
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.points import LinkPoint

TARGET_S = 1.0
NUM_SIZES = 25
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
WORLD_SIZES = (2, 4, 8, 16)
NUM_LINKS = 5


def calibration() -> list[LinkPoint]:
    """2,000 points of 80 sweeps with 3 % noise and some points that are far too slow."""
    random = np.random.default_rng(0)
    sizes = 8 * 2 ** np.arange(NUM_SIZES)
    points = []
    for link in range(NUM_LINKS):
        gain = np.where((sizes > 100_000) & (link % 2 == 1), 0.6, 1.0)
        for op in OPERATIONS:
            for world_size in WORLD_SIZES:
                exact = gain * (10 ** random.uniform(-6, -4) + sizes / 10 ** random.uniform(8, 11))
                slow = np.where(random.random(NUM_SIZES) < 0.03, 2.0, 1.0)
                times = slow * exact * np.exp(0.03 * random.standard_normal(NUM_SIZES))
                points += [
                    LinkPoint(
                        op=op,
                        dtype="float32",
                        world_size=world_size,
                        size_bytes=int(size),
                        time_s=float(time),
                        link=str(link),
                    )
                    for size, time in zip(sizes, times, strict=True)
                ]
    return points


def test_two_thousand_points(benchmark) -> None:
    """From the points to α, B, regimes and intervals of every sweep."""
    points = calibration()
    assert len(points) == 2_000
    result = benchmark.pedantic(fit_links, (points,), rounds=5, warmup_rounds=1)
    assert len(result.fits) == len(points) / NUM_SIZES
    assert not result.refused
    cut = sum(len(fit.regimes) > 1 for fit in result.fits)
    print(f"\n  {len(result.fits)} sweeps, {cut} of them with several regimes")
    print(f"  median {against_limit(benchmark.stats.stats.median, TARGET_S)}")
