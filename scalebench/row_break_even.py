"""The link on which compressing takes as long as not compressing: both steps replayed.

The serial limit of `scalebench.costmodel.break_even` hides nothing behind the computation. Here
both steps are predicted, from N=1 and over the calibrated link made faster or slower as a whole,
with what each of them overlaps; where the two predictions meet, nothing is gained or lost.
"""

import math
from collections.abc import Callable, Mapping

from scalebench.costmodel.link_model import LinkModel, NoFit
from scalebench.model_scores import NORMAL_95
from scalebench.records import CellResult
from scalebench.row_prediction import Bare, bare_step
from scalebench.spec import Cell
from scalebench.stats import Estimate

FARTHEST = 2.0**12
"""A link that many times as fast as the calibrated one, or as slow, is not looked at."""

PRECISION = 1e-4
"""Of the bandwidth, relative."""


class NoBreakEven(Exception):
    """There is no such link, or nothing tells which; the text says why."""


def replayed_break_even(
    cell: Cell,
    own: Mapping[int, CellResult],
    exact: Mapping[int, CellResult],
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
        NoBreakEven: Compression wins on every link, or nothing tells. Where it loses on every
            one the bandwidth is 0.
    """
    both = [bare_step(own), bare_step(exact)]
    unknown = next((bare for bare in both if not isinstance(bare, Bare)), None)
    if unknown is not None:
        raise NoBreakEven(str(unknown))
    compressed, whole = (bare for bare in both if isinstance(bare, Bare))

    def gain(times: float) -> float:
        """Logarithm of the exact step over the compressed one on a link of ``times`` the rate."""
        faster = link.faster(times)
        steps = [bare.predict(cell, faster).step_s for bare in (whole, compressed)]
        return math.log(steps[0] / steps[1])

    off = NORMAL_95 * math.hypot(compressed.spread, whole.spread)
    few = min(len(own), len(exact)) < 2
    try:
        bandwidth = link.bandwidth_byte_per_s("all_reduce", cell.world_size)
        if gain(FARTHEST) > 0:
            raise NoBreakEven("its step is predicted to be the shorter one on every link")
        value = bandwidth * _rate_where(gain, 0.0)
        low = None if few else bandwidth * _rate_where(gain, off)
        high = None if few else bandwidth * _rate_where(gain, -off)
    except NoFit as reason:
        raise NoBreakEven(str(reason)) from reason
    return Estimate(value=value, low=low, high=high, n=min(len(own), len(exact)))


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
