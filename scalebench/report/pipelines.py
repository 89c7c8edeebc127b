"""Pipelines of a suite's rows as tables: bubbles beside their law, and every stage's times."""

from collections.abc import Sequence
from typing import Any

from scalebench import units
from scalebench.report import wording
from scalebench.report.listing import PlainTable
from scalebench.summary import Row

NOTHING = wording.DASH
MOST_RANKS = 8
"""Of a row, whose microbatches in flight are written one by one."""


def tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the tables of those rows that are pipelines; none where there is none."""
    found = [(row, row.pipeline) for row in rows if row.pipeline]
    return (_bubbles(found), _stages(found)) if found else ()


def _bubbles(found: Sequence[tuple[Row, dict[str, Any]]]) -> PlainTable:
    lines = [
        (
            *_place(row),
            wording.plain(str(pipeline["schedule"]), 40),
            _sizes(pipeline),
            _percent(pipeline["bubble_measured_times"]),
            _percent(pipeline["bubble_law"]),
            _percent(pipeline["bubble_equal_stages"]),
            _percent(pipeline["idle_ratio"]),
            _in_flight(pipeline["in_flight"]),
        )
        for row, pipeline in found
    ]
    return PlainTable(
        "Pipelines",
        "Idle part of all ranks' time. Bubble: a dry run of what the ranks did, with the measured"
        " times of the stages, nothing for transfer. By the law, equal stages: predicted. No pass:"
        " the part of the traced steps in which no pass ran, for whatever reason. In flight: the"
        " most microbatches that each rank keeps for their backward pass, for each of its stages.",
        (
            *("case", "N", "schedule", "ranks × stages, microbatches", "bubble"),
            *("by the law", "equal stages", "no pass", "in flight"),
        ),
        tuple(lines),
        frozenset({0, 2, 3, 8}),
    )


def _stages(found: Sequence[tuple[Row, dict[str, Any]]]) -> PlainTable:
    kinds = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
    lines = [
        (
            *_place(row),
            str(stage["stage"]),
            f"rank {stage['rank']}",
            *(units.seconds(stage[kind]) if kind in stage else NOTHING for kind in kinds),
        )
        for row, pipeline in found
        for stage in pipeline["stages"]
    ]
    return PlainTable(
        "Every stage",
        "One microbatch in traced steps, medians; tracing's own cost included.",
        (
            *("case", "N", "stage", "on", "forward", "backward"),
            *("for the inputs", "for the weights"),
        ),
        tuple(lines),
        frozenset({0, 3}),
        folded=True,
    ).shortened()


def _place(row: Row) -> tuple[str, str]:
    return wording.plain(row.case, 64), str(row.world_size)


def _sizes(pipeline: dict[str, Any]) -> str:
    side_by_side = pipeline["num_pipelines"]
    several = f"{side_by_side} × " if side_by_side > 1 else ""
    sizes = f"{pipeline['num_ranks']} × {pipeline['chunks']}, {pipeline['num_microbatches']}"
    return several + sizes


def _in_flight(kept: Sequence[int]) -> str:
    return ", ".join(map(str, kept)) if len(kept) <= MOST_RANKS else f"at most {max(kept)}"


def _percent(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{100 * ratio:.1f} %"
