"""Compressed training compared with the exact all-reduce: losses, step, break-even.

Losses are compared after equal steps, after equal time, and to a target. All methods of a suite
train from the same seed on the same batches, so that step k of one is step k of the other. A single
batch's loss is noise: each is the mean of the last few steps. Times are steps times the clean step:
what starting up costs does not count.

Break-even is the link on which compressing takes as long as not compressing: both steps are
predicted, from N=1 and over the calibrated link made faster or slower as a whole, with what each
of them overlaps (the serial limit of `scalebench.costmodel.what_if` has no overlap).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scalebench.analysis.rows.at_one_rank import StepAtOneRank, step_at_one_rank
from scalebench.analysis.rows.launches import Context, Fields, Launches, Unavailable
from scalebench.analysis.steps import launch_step_s, mean_losses
from scalebench.costmodel.links.fitted import LinkModel, NoFit
from scalebench.records.rows.strategies import CompressionFigures, LossComparison
from scalebench.records.summary import Row, key_of
from scalebench.spec import Cell
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed

K = TypeVar("K")

SMOOTHED_STEPS = 5
"""Steps over which a loss is averaged."""

FARTHEST = 2.0**12
"""A link that many times as fast as the calibrated one, or as slow, is not looked at."""

PRECISION = 1e-4
"""Of the bandwidth, relative."""


@dataclass(frozen=True)
class LossCurve:
    """One method's training.

    Attributes:
        losses: Of every step from the first, mean over the ranks.
        step_s: The clean step, seconds.
    """

    losses: Sequence[float]
    step_s: float

    def loss_after(self, num_steps: int) -> float:
        """Return the mean loss of the last steps before ``num_steps`` are over."""
        last = self.losses[max(0, num_steps - SMOOTHED_STEPS) : num_steps]
        return sum(last) / len(last)

    def steps_to(self, target: float) -> int | None:
        """Return after how many steps the loss is at most the target; None: not in this run."""
        steps = range(SMOOTHED_STEPS, len(self.losses) + 1)
        return next((k for k in steps if self.loss_after(k) <= target), None)


def compare(curves: Mapping[K, LossCurve], of_none: LossCurve) -> dict[K, LossComparison]:
    """Return what each method's loss came to compared with that of ``none``.

    No curve is without a step; ``of_none`` is the exact all-reduce's.
    """
    everyone = [*curves.values(), of_none]
    steps = min(len(curve.losses) for curve in everyone)
    seconds = min(len(curve.losses) * curve.step_s for curve in everyone)
    target = of_none.loss_after(steps)
    told = {}
    for case, curve in curves.items():
        needed, needed_by_none = curve.steps_to(target), of_none.steps_to(target)
        told[case] = LossComparison(
            equal_steps=steps,
            loss_after_steps=curve.loss_after(steps),
            loss_of_none_after_steps=target,
            equal_s=seconds,
            loss_after_s=curve.loss_after(_steps_in(seconds, curve)),
            loss_of_none_after_s=of_none.loss_after(_steps_in(seconds, of_none)),
            target_loss=target,
            steps_to_target=needed,
            time_to_target_s=None if needed is None else needed * curve.step_s,
            time_of_none_to_target_s=(
                None if needed_by_none is None else needed_by_none * of_none.step_s
            ),
        )
    return told


def _steps_in(seconds: float, curve: LossCurve) -> int:
    """Return how many steps a method takes in a time, at least one that there was."""
    return min(len(curve.losses), max(1, int(seconds / curve.step_s + 1e-9)))


def replayed_break_even(
    cell: Cell, own: Launches | None, exact: Launches | None, link: LinkModel
) -> Estimate:
    """Return the bandwidth below which a compressed row's step is the shorter one.

    It is that of the exact all-reduce's fit, bytes/s. The interval comes from the scatter of the
    launches at N=1: of the logarithm of one step over the other within the rounds, so that drift
    cancels, by Student's t (`estimate_signed`). None with fewer than two common rounds.

    ``own`` and ``exact`` are launches at N=1: the method's, and the exact all-reduce's.

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

    ratio = ratio_at_one_rank(own, exact)
    off = ratio.half_width if ratio is not None else None
    try:
        bandwidth = link.bandwidth_byte_per_s("all_reduce", cell.world_size)
        if gain(FARTHEST) > 0:
            raise Unavailable("its step is predicted to be shorter on every link")
        value = bandwidth * _rate_where(gain, 0.0)
        low = None if off is None else bandwidth * _rate_where(gain, off)
        high = None if off is None else bandwidth * _rate_where(gain, -off)
    except NoFit as reason:
        raise Unavailable(str(reason)) from reason
    return Estimate(value=value, low=low, high=high, n=ratio.n if ratio is not None else 1)


def ratio_at_one_rank(own: Launches | None, exact: Launches | None) -> Estimate | None:
    """Estimate the logarithm of the method's step at N=1 over the exact one's, within the rounds.

    None: they have no round in common.
    """
    steps = [
        {repeat: launch_step_s(found.result) for repeat, found in one.attributed.items()}
        for one in (own, exact)
        if one is not None
    ]
    if len(steps) < 2:
        return None
    common = [repeat for repeat in steps[0] if repeat in steps[1]]
    ratios = [math.log(steps[0][repeat] / steps[1][repeat]) for repeat in common]
    return estimate_signed(ratios) if ratios else None


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


def against_uncompressed(row: Row, rows: Sequence[Row], run: Context) -> Fields:
    """Compare a row of compressed training with ``none``: losses and steps."""
    alike = [other for other in rows if _kind(other) == _kind(row)] if _is_compared(row) else []
    beside = [other for other in alike if _is_compared(other)]
    exact = next((other for other in beside if _figures(other).method == "none"), None)
    if exact is None:
        return {}
    curves = {key_of(other): _loss_curve(other, run) for other in beside}
    own, whole = run.launches(row), run.launches(exact)
    told = {
        "losses": compare(curves, curves[key_of(exact)])[key_of(row)],
        "step_ratio_to_none": _step_ratio(own, whole),
    }
    if row is not exact:
        told |= _replayed(_figures(row), own, whole, run)
    return {"compression": _figures(row).model_copy(update=told)}


def _is_compared(row: Row) -> bool:
    return row.compression is not None and row.step_s is not None


def _kind(row: Row) -> tuple[str, str, int, int]:
    return row.suite, row.workload, row.world_size, row.global_batch


def _replayed(
    figures: CompressionFigures, row: Launches, exact: Launches, run: Context
) -> dict[str, Any]:
    """Return the link on which a row's step is as long as that of ``none``, or why none is."""
    name, link, cell = "break_even_replayed_byte_per_s", run.link, row.cell
    own, whole = (run.table.get((*one.cell.row_key[:2], 1)) for one in (row, exact))
    try:
        if isinstance(link, str):
            raise Unavailable(link)
        if cell.world_size == 1:
            raise Unavailable("one rank sends nothing")
        found = replayed_break_even(cell, own, whole, link)
    except Unavailable as reason:
        return {name: None, "unavailable": figures.unavailable | {name: str(reason)}}
    gives = link.bandwidth_byte_per_s("all_reduce", cell.world_size)
    return {name: found, "link_byte_per_s": gives, "unavailable": figures.unavailable}


def _figures(row: Row) -> CompressionFigures:
    assert row.compression is not None, "rows that do not compress are not compared"
    return row.compression


def _step_ratio(row: Launches, exact: Launches) -> Estimate | None:
    """Estimate a row's step over that of ``none``, within the rounds: drift cancels."""
    ratios = [
        launch_step_s(result) / launch_step_s(exact.good[repeat])
        for repeat, result in row.good.items()
        if repeat in exact.good
    ]
    return estimate_over_launches(ratios) if ratios else None


def _loss_curve(row: Row, run: Context) -> LossCurve:
    """Return how a row trained in the launch that trained longest."""
    launches = run.launches(row).good
    longest = max(launches.values(), key=lambda result: result.ranks[0].num_trained)
    assert row.step_s is not None
    return LossCurve(mean_losses(longest), row.step_s.value)
