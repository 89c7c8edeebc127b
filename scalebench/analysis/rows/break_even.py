"""The link on which compressing takes as long as not compressing: both steps replayed.

The serial limit of `scalebench.costmodel.break_even` hides nothing behind the computation. Here
both steps are predicted, from N=1 and over the calibrated link made faster or slower as a whole,
with what each of them overlaps; where the two predictions meet, nothing is gained or lost.
"""

import math
from collections.abc import Callable

from scalebench.analysis.prediction_scores import NORMAL_95
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import StepAtOneRank, step_at_one_rank
from scalebench.costmodel.links.times import LinkModel, NoFit
from scalebench.spec import Cell
from scalebench.stats import Estimate

FARTHEST = 2.0**12
"""A link that many times as fast as the calibrated one, or as slow, is not looked at."""

PRECISION = 1e-4
"""Of the bandwidth, relative."""


def replayed_break_even(
    cell: Cell,
    own: Launches | None,
    exact: Launches | None,
    link: LinkModel,
) -> Estimate:
    """Return the bandwidth below which a compressed row's step is the shorter one.

    It is that of the exact all-reduce's fit, bytes/s. The interval comes from the scatter of both
    steps' launches at N=1; None with one launch.

    Args:
        cell: Of the row, N ≥ 2.
        own: The method's launches at N=1.
        exact: Those of the exact all-reduce.
        link: As calibrated.

    Raises:
        Unavailable: Compression wins on every link, or nothing tells. Where it loses on every
            one the bandwidth is 0.
    """
    both = [step_at_one_rank(own), step_at_one_rank(exact)]
    compressed, whole = (bare for bare in both if isinstance(bare, StepAtOneRank))

    def gain(times: float) -> float:
        """Logarithm of the exact step over the compressed one on a link of ``times`` the rate."""
        faster = link.faster(times)
        steps = [bare.predict(cell, faster).step_s for bare in (whole, compressed)]
        return math.log(steps[0] / steps[1])

    off = NORMAL_95 * math.hypot(compressed.spread, whole.spread)
    num_launches = min(len(one.good) if one else 0 for one in (own, exact))
    try:
        bandwidth = link.bandwidth_byte_per_s("all_reduce", cell.world_size)
        if gain(FARTHEST) > 0:
            raise Unavailable("its step is predicted to be shorter on every link")
        value = bandwidth * _rate_where(gain, 0.0)
        low = None if num_launches < 2 else bandwidth * _rate_where(gain, off)
        high = None if num_launches < 2 else bandwidth * _rate_where(gain, -off)
    except NoFit as reason:
        raise Unavailable(str(reason)) from reason
    return Estimate(value=value, low=low, high=high, n=num_launches)


def _rate_where(gain: Callable[[float], float], level: float) -> float:
    """Return the rate at which a falling ``gain`` comes down to a level; 0: it is below it always.

    `FARTHEST` where it never comes down to it.
    """
    slow, fast = 1 / FARTHEST, FARTHEST
    if gain(slow) <= level:
        return 0.0
    if gain(fast) >= level:
        return FARTHEST
    while fast / slow > 1 + PRECISION:
        middle = math.sqrt(slow * fast)
        if gain(middle) > level:
            slow = middle
        else:
            fast = middle
    return math.sqrt(slow * fast)
