"""Compressed training beside the exact all-reduce: losses, step, and where it breaks even."""

from collections.abc import Sequence
from typing import Any

from scalebench.costmodel.link_model import LinkModel
from scalebench.launches import launch_step_s, mean_losses
from scalebench.loss_race import Course, compare
from scalebench.row_break_even import NoBreakEven, replayed_break_even
from scalebench.row_launches import Launches, Table
from scalebench.stats import Estimate, estimate_over_launches
from scalebench.summary import Row


def beside_none(
    rows: Sequence[Row],
    table: Table,
    link: LinkModel | str,
) -> list[Row]:
    """Return the rows, those of compressed training held against ``none``: losses and steps."""
    compared = list(rows)
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row.compression is not None and row.step_s is not None:
            key = (row.suite, row.workload, row.world_size, row.global_batch)
            alike.setdefault(key, []).append(index)
    for indices in alike.values():
        courses = {i: _course(rows[i], table) for i in indices}
        exact = next((i for i in indices if _method(rows[i]) == "none"), None)
        if exact is None:
            continue
        for index, losses in compare(courses, courses[exact]).items():
            ratio = _step_ratio(_launches(rows[index], table), _launches(rows[exact], table))
            told = (rows[index].compression or {}) | {"losses": losses}
            told["step_ratio_to_none"] = ratio.model_dump() if ratio else None
            if index != exact:
                told |= _replayed(rows[index], rows[exact], table, link)
            compared[index] = rows[index].model_copy(update={"compression": told})
    return compared


def _replayed(row: Row, exact: Row, table: Table, link: LinkModel | str) -> dict[str, Any]:
    """Return the link on which a row's step is as long as that of ``none``, or why none is."""
    told = row.compression or {}
    reasons = dict(told.get("unavailable", {}))
    name = "break_even_replayed_byte_per_s"
    own, whole = (table.get((one.suite, one.case, 1)) for one in (row, exact))
    try:
        if isinstance(link, str):
            raise NoBreakEven(link)
        if row.world_size == 1:
            raise NoBreakEven("one rank sends nothing")
        found = replayed_break_even(
            _launches(row, table).cell, own.good if own else {}, whole.good if whole else {}, link
        )
    except NoBreakEven as reason:
        return {name: None, "unavailable": reasons | {name: str(reason)}}
    gives = link.bandwidth_byte_per_s("all_reduce", row.world_size)
    return {name: found.model_dump(), "link_byte_per_s": gives, "unavailable": reasons}


def _method(row: Row) -> str:
    return str((row.compression or {}).get("method"))


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


def _course(row: Row, table: Table) -> Course:
    """Return how a row trained in the launch that trained longest."""
    launches = _launches(row, table).good
    longest = max(launches.values(), key=lambda result: result.ranks[0].num_trained)
    assert row.step_s is not None
    return Course(mean_losses(longest), row.step_s.value)
