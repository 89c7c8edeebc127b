"""The sections of a run's page between results and remarks, in their order.

A section without data is left out, or says in one line how to get the data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import plotly.graph_objects as go

from scalebench.analysis.page_data import PageData
from scalebench.records.run import LargestBatch
from scalebench.records.summary import Row
from scalebench.report.figures import scaling
from scalebench.report.figures.budget import AXIS_BUDGET, BUDGET, WATERFALL
from scalebench.report.figures.charts import Chart, ChartKind, make_chart
from scalebench.report.figures.compression import COMPRESSION
from scalebench.report.figures.heat import expert_kind, grid_kind
from scalebench.report.figures.links import fit_table, link_kind, sweeps
from scalebench.report.figures.mesh import mesh_kind
from scalebench.report.figures.predictions import (
    PREDICTED_OPERATIONS,
    PREDICTED_STEPS,
    extrapolation_kind,
)
from scalebench.report.figures.races import FRAMEWORKS, STALENESS, race_kind
from scalebench.report.figures.recovery import ELASTIC_LOSS, FAILURE_PHASES, SAVE_COST
from scalebench.report.figures.resources import (
    ENERGY,
    MEMORY,
    MEMORY_AXES,
    apart,
    capacity_sentence,
    draw_limit,
    power_kind,
)
from scalebench.report.figures.steps import LOSS_SCALE, SCHEDULE, SHARES, timeline_kind
from scalebench.report.figures.style import Looks
from scalebench.report.tables import (
    axes,
    communication,
    compression,
    frameworks,
    memory,
    predictions,
    races,
    recovery,
)
from scalebench.report.tables.budget import POP
from scalebench.report.tables.layout import PlainTable, pages
from scalebench.report.tables.memory import max_batch_table
from scalebench.report.words import script_checks, wording

ChartOrTable = Chart | PlainTable

NO_LINK = "the link"
"""Name of the block that is about the run's links, not about a suite."""


@dataclass(frozen=True)
class Block:
    """What a section shows of one suite.

    Attributes:
        conclusion: A sentence above parts that have none of their own; None: they have.
    """

    suite: str
    parts: tuple[ChartOrTable, ...]
    conclusion: str | None = None


@dataclass(frozen=True)
class Section:
    """One section of a run.

    Attributes:
        absent: One line instead of the blocks where there are none.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]
    absent: str = ""

    @property
    def charts(self) -> list[Chart]:
        """All figures of the section."""
        return [p for block in self.blocks for p in block.parts if isinstance(p, Chart)]


@dataclass(frozen=True)
class Material:
    """What the sections of one run are made from."""

    run_id: str
    groups: Mapping[str, Sequence[Row]]
    looks: Looks
    largest_batches: Sequence[LargestBatch]
    page_data: PageData | None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for rows in self.groups.values() for row in rows]

    def found(self, name: str, suite: str) -> list[Any]:
        """Return what the page data have of a suite in the field of this name."""
        every = getattr(self.page_data, name) if self.page_data else ()
        return [one for one in every if one.suite == suite]

    def chart(self, kind: ChartKind, index: int, rows: Sequence[Row]) -> list[Chart]:
        """Return the figure of a suite, in a list; an empty one where there is none."""
        made = make_chart(kind, f"{self.run_id}-{kind.name}-{index}", rows, self.looks)
        return [made] if made else []


Part = ChartKind | Callable[[Sequence[Row]], Sequence[PlainTable]]
"""A figure, or what makes tables of the rows of a suite."""

Parts = Sequence[Part] | Callable[[str, Sequence[Row]], Sequence[Part]]
"""The parts of a section, or how they follow from a suite's name and rows."""


def sections(material: Material) -> tuple[Section, ...]:
    """Return all sections that have something to show or to say."""
    section = partial(_section, material)
    found, page_data = material.found, material.page_data
    on_gpu = any(row.device == "cuda" for row in material.rows)
    made = (
        section(
            "race",
            "Time to loss",
            lambda suite, rows: [race_kind(found("races", suite)), races.tables],
        ),
        section(
            "lockstep",
            "Lockstep",
            [STALENESS, races.lockstep_tables],
            lambda suite, rows: races.lockstep_sentence(rows),
        ),
        section("recovery", "Recovery", [SAVE_COST, FAILURE_PHASES, ELASTIC_LOSS, recovery.tables]),
        section("checks", "Is the script right?", [_checks]),
        section("frameworks", "Frameworks", [FRAMEWORKS, frameworks.tables]),
        section("speedup", "Speedup", [scaling.SPEEDUP], absent=scaling.SPEEDUP.absent),
        section("efficiency", "Efficiency", [scaling.EFFICIENCY], absent=scaling.EFFICIENCY.absent),
        section(
            "budget",
            "Where the lost time goes",
            [BUDGET, WATERFALL, AXIS_BUDGET, pages(POP)],
            absent=BUDGET.absent,
        ),
        section(
            "model",
            "Measured against predicted",
            [PREDICTED_STEPS, predictions.tables, PREDICTED_OPERATIONS],
            absent=f"Nothing was predicted: {_why_not_predicted(material.rows)}.",
            more=_link(material),
        ),
        section(
            "timeline",
            "One step",
            lambda suite, rows: [
                timeline_kind(found("timelines", suite)),
                SCHEDULE,
                axes.tables,
            ],
            absent=timeline_kind(()).absent if page_data else "",
        ),
        section(
            "communication",
            "Communication",
            lambda suite, rows: [mesh_kind(rows), communication.tables, communication.wires_tables],
            lambda suite, rows: " ".join(
                filter(None, (communication.sentence(rows), communication.wires_sentence(rows)))
            ),
        ),
        section(
            "experts",
            "Experts",
            lambda suite, rows: [expert_kind(found("expert_loads", suite)), axes.expert_tables],
            lambda suite, rows: (
                axes.slow_sentence(rows) if found("expert_loads", suite) else axes.sentence(rows)
            ),
        ),
        section(
            "steps",
            "Ranks and steps",
            lambda suite, rows: [
                grid_kind(found("grids", suite)),
                communication.rank_tables,
                *(scaling.STEPS, SHARES, LOSS_SCALE),
            ],
            absent=scaling.STEPS.absent,
        ),
        section(
            "memory",
            "Memory",
            lambda suite, rows: () if wording.of_logs(rows) else _memory(material),
            lambda suite, rows: None if apart(rows) else MEMORY.absent,
        ),
        section(
            "compression",
            "Compression",
            [*COMPRESSION, compression.tables],
            lambda suite, rows: compression.verdict(rows),
        ),
        section(
            "power",
            "Power, clocks, temperature",
            lambda suite, rows: [power_kind(found("devices", suite)), ENERGY],
            absent=NOT_WATCHED if on_gpu else "",
        ),
        section(
            "extrapolation",
            "At more ranks",
            lambda suite, rows: (
                [extrapolation_kind(page_data.extrapolation, suite)] if page_data else []
            ),
            absent=extrapolation_kind(page_data.extrapolation, "").absent if page_data else "",
        ),
    )
    trained = bool(material.rows) and not wording.of_logs(material.rows)
    return tuple(one for one in made if one.blocks or (one.absent and trained))


NOT_WATCHED = (
    "The devices were not watched: NVML was not there, or this page was made without the run."
)


def of_suite(found: Sequence[Section], suite: str) -> tuple[tuple[Section, Block], ...]:
    """Return the sections that have something about a suite, each with its block."""
    return tuple(
        (section, block) for section in found for block in section.blocks if block.suite == suite
    )


def _section(
    material: Material,
    name: str,
    title: str,
    parts: Parts,
    said: Callable[[str, Sequence[Row]], str | None] = lambda suite, rows: None,
    absent: str = "",
    more: Sequence[Block] = (),
) -> Section:
    """Return the section with a block for each suite that has a part, and ``more``.

    ``said``: the sentence above a suite's parts, of its name and rows; empty or None: they have
    their own. ``absent``: see `Section`.
    """
    blocks = []
    for index, (suite, rows) in enumerate(material.groups.items(), 1):
        drawn: list[ChartOrTable] = []
        for part in parts(suite, rows) if callable(parts) else parts:
            if isinstance(part, ChartKind):
                drawn += material.chart(part, index, rows)
            else:
                drawn += part(rows)
        if drawn:
            blocks.append(Block(suite, tuple(drawn), said(suite, rows) or None))
    full = (*blocks, *more)
    return Section(name, title, full, "" if full else absent)


def _checks(rows: Sequence[Row]) -> list[PlainTable]:
    said = script_checks.of_largest(rows)
    lines = tuple((one.about, one.kind, wording.as_sentence(one.sentence)) for one in said)
    table = PlainTable("", "", ("check", "", "what was seen"), lines, frozenset({0, 1, 2}))
    return [table] if lines else []


def _why_not_predicted(rows: Sequence[Row]) -> str:
    reasons = [
        row.unavailable["predicted_step_s"]
        for row in rows
        if row.world_size > 1 and "predicted_step_s" in row.unavailable
    ]
    if reasons:
        return wording.plain(reasons[0], 200)
    return "predictions need a strategy at N=1 and on several ranks, with traced steps"


def _link(material: Material) -> list[Block]:
    profile = material.page_data.link if material.page_data else None
    if profile is None or not sweeps(profile):
        return []
    rates = [rate for row in material.rows for rate in row.link_bit_per_s or ()]
    kind = link_kind(profile, min(rates) if rates else None)
    return [Block(NO_LINK, (*material.chart(kind, 0, material.rows), fit_table(profile)))]


def _memory(material: Material) -> list[Part]:
    def batches(rows: Sequence[Row]) -> list[PlainTable]:
        found = max_batch_table(rows, material.largest_batches)
        return [found] if found else []

    return [_memory_kind(material.environment), MEMORY_AXES, memory.tables, batches]


def _memory_kind(environment: Mapping[str, Any]) -> ChartKind:
    """Return the kind of figure of memory, with the capacity of this environment."""

    def draw(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
        figure = MEMORY.draw(rows, looks)
        if figure is not None:
            draw_limit(figure, rows, environment)
        return figure

    return replace(MEMORY, draw=draw, remark=lambda rows: capacity_sentence(rows, environment))
