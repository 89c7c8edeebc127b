"""Shares of a global batch that follow the speed of the ranks: fast ones get more samples.

With equal shares a step lasts as long as the slowest rank needs; with shares in proportion to speed
all are ready at once. For ranks that take t_r seconds for equal shares it then lasts N / Σ(1/t_r),
the harmonic mean instead of the maximum, but for whole samples. Source: Beaumont et al. 2001,
"Matrix Multiplication on Heterogeneous Platforms", IEEE TPDS 12(10): load balancing of independent
tasks on processors of different speed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

LATEST = 0.5
"""Weight of the latest window in the smoothed pace: a change is followed to 97 % in 5 windows."""
LEAST_GAIN = 0.03
"""Of the time that the slowest rank needs: a smaller gain may be noise."""
MOST = 2.0
"""Equal shares that a rank gets at most: what its memory has to hold."""


def divided(total: int, pace_s: Sequence[float], most: float = MOST) -> tuple[int, ...]:
    """Return how many of ``total`` samples each rank gets, so that the last is ready first.

    Args:
        total: Samples, at least one for each rank.
        pace_s: What a sample takes each rank, seconds, above zero.
        most: Times an equal share that a rank gets at most; at least 1.

    Raises:
        ValueError: There are fewer samples than ranks, or a pace is no time.
    """
    n = len(pace_s)
    if total < n:
        raise ValueError(f"{total} samples cannot be divided over {n} ranks: give at least {n}")
    if not all(0 < pace < math.inf for pace in pace_s):
        raise ValueError(f"a sample takes {list(pace_s)} s: give times above zero")
    limit = max(math.floor(most * total / n), -(-total // n))
    speeds = [min(pace_s) / pace for pace in pace_s]
    even = total / sum(speeds)
    shares = [min(max(math.floor(even * speed), 1), limit) for speed in speeds]
    while (left := total - sum(shares)) != 0:
        if left > 0:
            free = [r for r in range(n) if shares[r] < limit]
            shares[min(free, key=lambda r: (shares[r] + 1) * pace_s[r])] += 1
        else:
            held = [r for r in range(n) if shares[r] > 1]
            shares[max(held, key=lambda r: shares[r] * pace_s[r])] -= 1
    return tuple(shares)


def computing_s(shares: Sequence[float], pace_s: Sequence[float]) -> float:
    """Return how long the rank computes that is ready last, seconds."""
    return max(share * pace for share, pace in zip(shares, pace_s, strict=True))


def ideal_s(equal_s: Sequence[float]) -> float:
    """Return N / Σ(1/t): a step whose ranks are all ready at once, seconds.

    Args:
        equal_s: What each rank computes for an equal share, seconds.
    """
    return len(equal_s) / sum(1 / t for t in equal_s)


@dataclass(frozen=True)
class Balance:
    """The shares in force, and what they rest on; the same on every rank.

    Attributes:
        shares: Samples of each rank; they sum to the global batch.
        pace_s: Smoothed seconds per sample of each rank; empty: nothing was measured yet.
        most: See `divided`.
    """

    shares: tuple[int, ...]
    pace_s: tuple[float, ...] = ()
    most: float = MOST

    @classmethod
    def equal(cls, total: int, world_size: int, most: float = MOST) -> "Balance":
        """Return equal shares, as far as whole samples allow."""
        return cls(divided(total, [1.0] * world_size, most), most=most)

    def after(self, pace_s: Sequence[float]) -> "Balance":
        """Return the shares after a window in which a sample took each rank this many seconds."""
        smooth = tuple(
            LATEST * now + (1 - LATEST) * before
            for now, before in zip(pace_s, self.pace_s or pace_s, strict=True)
        )
        better = divided(sum(self.shares), smooth, self.most)
        kept_s, moved_s = computing_s(self.shares, smooth), computing_s(better, smooth)
        shares = better if moved_s < (1 - LEAST_GAIN) * kept_s else self.shares
        return replace(self, shares=shares, pace_s=smooth)
