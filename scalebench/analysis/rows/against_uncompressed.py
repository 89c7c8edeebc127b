"""Compressed training compared with the exact all-reduce: losses, step, break-even."""

from collections.abc import Sequence
from typing import Any

from scalebench.analysis.loss_curves import LossCurve, compare
from scalebench.analysis.rows.break_even import replayed_break_even
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches, Table
from scalebench.analysis.steps import launch_step_s, mean_losses
from scalebench.costmodel.links.times import LinkModel
from scalebench.records.rows.compression import CompressionFigures
from scalebench.records.summary import Row
from scalebench.stats import Estimate, estimate_over_launches


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
