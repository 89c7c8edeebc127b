"""Compressed training compared with the exact all-reduce: losses, step, break-even.

The link on which compressing takes as long as not compressing: both steps replayed.

The serial limit of `scalebench.costmodel.break_even` hides nothing behind the computation. Here
both steps are predicted, from N=1 and over the calibrated link made faster or slower as a whole,
with what each of them overlaps; where the two predictions meet, nothing is gained or lost.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from scalebench.analysis.loss_curves import LossCurve, compare
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches, Table
from scalebench.analysis.rows.prediction import StepAtOneRank, step_at_one_rank
from scalebench.analysis.steps import launch_step_s, mean_losses
from scalebench.costmodel.links.times import LinkModel, NoFit
from scalebench.records.rows.compression import CompressionFigures
from scalebench.records.summary import Row
from scalebench.spec import Cell
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed

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

    It is that of the exact all-reduce's fit, bytes/s. The interval comes from the scatter of the
    launches at N=1: of the logarithm of one step over the other within the rounds, so that drift
    cancels, by Student's t (`estimate_signed`). None with fewer than two common rounds.

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


def against_uncompressed(
    rows: Sequence[Row],
    table: Table,
    link: LinkModel | str,
) -> list[Row]:
    """Return the rows, those of compressed training compared with ``none``: losses and steps."""
    compared = list(rows)
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row.compression is not None and row.step_s is not None:
            key = (row.suite, row.workload, row.world_size, row.global_batch)
            alike.setdefault(key, []).append(index)
    for indices in alike.values():
        curves = {i: _loss_curve(rows[i], table) for i in indices}
        exact = next((i for i in indices if _figures(rows[i]).method == "none"), None)
        if exact is None:
            continue
        for index, losses in compare(curves, curves[exact]).items():
            ratio = _step_ratio(_launches(rows[index], table), _launches(rows[exact], table))
            told = {"losses": losses, "step_ratio_to_none": ratio}
            if index != exact:
                told |= _replayed(rows[index], rows[exact], table, link)
            figures = _figures(rows[index]).model_copy(update=told)
            compared[index] = rows[index].model_copy(update={"compression": figures})
    return compared


def _replayed(row: Row, exact: Row, table: Table, link: LinkModel | str) -> dict[str, Any]:
    """Return the link on which a row's step is as long as that of ``none``, or why none is."""
    reasons = _figures(row).unavailable
    name = "break_even_replayed_byte_per_s"
    own, whole = (table.get((one.suite, one.case, 1)) for one in (row, exact))
    try:
        if isinstance(link, str):
            raise Unavailable(link)
        if row.world_size == 1:
            raise Unavailable("one rank sends nothing")
        found = replayed_break_even(_launches(row, table).cell, own, whole, link)
    except Unavailable as reason:
        return {name: None, "unavailable": reasons | {name: str(reason)}}
    gives = link.bandwidth_byte_per_s("all_reduce", row.world_size)
    return {name: found, "link_byte_per_s": gives, "unavailable": reasons}


def _figures(row: Row) -> CompressionFigures:
    assert row.compression is not None, "rows that do not compress are not compared"
    return row.compression


def _launches(row: Row, table: Table) -> Launches:
    return table[row.suite, row.case, row.world_size]


def _step_ratio(row: Launches, exact: Launches) -> Estimate | None:
    """Estimate a row's step over that of ``none``, within the rounds: drift cancels."""
    ratios = [
        launch_step_s(result) / launch_step_s(exact.good[repeat])
        for repeat, result in row.good.items()
        if repeat in exact.good
    ]
    return estimate_over_launches(ratios) if ratios else None


def _loss_curve(row: Row, table: Table) -> LossCurve:
    """Return how a row trained in the launch that trained longest."""
    launches = _launches(row, table).good
    longest = max(launches.values(), key=lambda result: result.ranks[0].num_trained)
    assert row.step_s is not None
    return LossCurve(mean_losses(longest), row.step_s.value)
