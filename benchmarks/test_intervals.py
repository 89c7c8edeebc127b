"""A million intervals: what analysing a long trace costs.

Targets: under 1 s, under 500 MB.
"""

import tracemalloc

import numpy as np

from benchmarks.verdict import against_limit
from scalebench.trace.intervals import Intervals, intersect, length, subtract, union

TARGET_S = 1.0
TARGET_BYTES = 500e6


def random_intervals(count: int) -> Intervals:
    """Intervals of up to 20 µs that begin anywhere within 10 s, shape ``[count, 2]``."""
    random = np.random.default_rng(0)
    starts = random.integers(0, 10**10, count)
    return np.column_stack((starts, starts + random.integers(0, 20_000, count)))


def exposed(communication: Intervals, compute: Intervals) -> int:
    """Nanoseconds of communication that no computation hides, by both ways to it."""
    comm, busy = union(communication), union(compute)
    hidden = length(intersect(comm, busy))
    open_ = length(subtract(comm, busy))
    assert hidden + open_ == length(comm)
    return open_


def test_a_million_intervals(benchmark) -> None:
    """Half a million of communication, half a million of computation."""
    halves = random_intervals(500_000), random_intervals(1_000_000)[500_000:]
    assert benchmark.pedantic(exposed, halves, rounds=5, warmup_rounds=1) > 0
    tracemalloc.start()
    exposed(*halves)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"\n  median {against_limit(benchmark.stats.stats.median, TARGET_S)}")
    print(f"  peak memory {peak / 1e6:.0f} MB, target below {TARGET_BYTES / 1e6:.0f} MB")
