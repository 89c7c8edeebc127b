"""Pipelines of a suite's rows as tables: bubbles beside their law, and every stage's times."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.pipeline import PipelineFigures, StageTimes
from scalebench.records.summary import Row
from scalebench.report.tables.layout import PLACE, Column, value
from scalebench.report.tables.listing import Table, pages
from scalebench.report.words import wording

MOST_RANKS = 8
"""Of a row, whose microbatches in flight are written one by one."""


Pair = tuple[Row, PipelineFigures]
Stage = tuple[Row, StageTimes]


def _pipelines(rows: Sequence[Row]) -> list[Pair]:
    return [(row, row.pipeline) for row in rows if row.pipeline]


def _schedule(of: Pair) -> str:
    return wording.plain(of[1].schedule, 40)


def _sizes(of: Pair) -> str:
    _, pipeline = of
    side_by_side = pipeline.num_pipelines
    several = f"{side_by_side} × " if side_by_side > 1 else ""
    sizes = f"{pipeline.num_ranks} × {pipeline.chunks}, {pipeline.num_microbatches}"
    return several + sizes


def _in_flight(of: Pair) -> str:
    kept = of[1].in_flight
    return ", ".join(map(str, kept)) if len(kept) <= MOST_RANKS else f"at most {max(kept)}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


BUBBLES: tuple[Column[Pair], ...] = (
    *PLACE,
    Column("schedule", _schedule, numeric=False),
    Column("ranks × stages, microbatches", _sizes, numeric=False),
    value("bubble", lambda of: of[1].bubble_measured_times, _percent),
    value("by the law", lambda of: of[1].bubble_law, _percent),
    value("equal stages", lambda of: of[1].bubble_equal_stages, _percent),
    value("no pass", lambda of: of[1].idle_ratio, _percent),
    Column("in flight", _in_flight, numeric=False),
)

STAGES: tuple[Column[Stage], ...] = (
    *PLACE,
    Column("stage", lambda of: str(of[1].stage)),
    Column("on", lambda of: f"rank {of[1].rank}", numeric=False),
    value("forward", lambda of: of[1].forward_s, units.seconds),
    value("backward", lambda of: of[1].backward_s, units.seconds),
    value("for the inputs", lambda of: of[1].backward_input_s, units.seconds),
    value("for the weights", lambda of: of[1].backward_weight_s, units.seconds),
)

tables = pages(
    Table(
        "Pipelines",
        BUBBLES,
        _pipelines,
        about=(
            "Idle part of all ranks' time. Bubble: a dry run of what the ranks did, with the"
            " measured times of the stages, nothing for transfer. By the law, equal stages:"
            " predicted. No pass: the part of the traced steps in which no pass ran, for whatever"
            " reason. In flight: the most microbatches that each rank keeps for their backward"
            " pass, for each of its stages."
        ),
    ),
    Table(
        "Every stage",
        STAGES,
        lambda rows: [(row, stage) for row, found in _pipelines(rows) for stage in found.stages],
        about="One microbatch in traced steps, medians; tracing's own cost included.",
        folded=True,
    ),
)
