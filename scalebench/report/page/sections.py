"""The sections of a run's page between results and remarks, in their order.

A section without data is left out, or says in one line how to get the data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import plotly.graph_objects as go

from scalebench.analysis.page_data import PageData
from scalebench.records.largest_batch import LargestBatch
from scalebench.records.summary import Row
from scalebench.report.figures import scaling
from scalebench.report.figures.budget import AXIS_BUDGET, BUDGET, WATERFALL
from scalebench.report.figures.charts import Chart, ChartKind, make_chart
from scalebench.report.figures.compression import COMPRESSION
from scalebench.report.figures.heat import expert_kind, grid_kind
from scalebench.report.figures.links import fit_table, link_kinds, sweeps
from scalebench.report.figures.memory import MEMORY, MEMORY_AXES, capacity_sentence, draw_limit
from scalebench.report.figures.mesh import mesh_kind
from scalebench.report.figures.over_steps import LOSS_SCALE, SHARES
from scalebench.report.figures.power import ENERGY, power_kind
from scalebench.report.figures.predictions import (
    PREDICTED_OPERATIONS,
    PREDICTED_STEPS,
    extrapolation_kind,
)
from scalebench.report.figures.races import FRAMEWORKS, STALENESS, race_kind
from scalebench.report.figures.recovery import ELASTIC_LOSS, FAILURE_PHASES, SAVE_COST
from scalebench.report.figures.steps import SCHEDULE, timeline_kind
from scalebench.report.figures.style import Looks
from scalebench.report.tables import (
    communication,
    compression,
    experts,
    frameworks,
    memory,
    pipelines,
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

    def suites(self) -> Iterator[tuple[int, str, Sequence[Row]]]:
        """Yield number, name and rows of each suite."""
        for index, (suite, rows) in enumerate(self.groups.items(), 1):
            yield index, suite, rows

    def chart(self, kind: ChartKind, index: int, rows: Sequence[Row]) -> list[Chart]:
        """Return the figure of a suite, in a list; an empty one where there is none."""
        made = make_chart(kind, f"{self.run_id}-{kind.name}-{index}", rows, self.looks)
        return [made] if made else []

    def charts(self, shown: Sequence[ChartKind], index: int, rows: Sequence[Row]) -> list[Chart]:
        """Return the figures of a suite that there are."""
        return [chart for kind in shown for chart in self.chart(kind, index, rows)]


def sections(material: Material) -> tuple[Section, ...]:
    """Return all sections that have something to show or to say."""
    made = (
        _races(material),
        _of_rows(
            material,
            "lockstep",
            "Lockstep",
            [STALENESS],
            races.lockstep_tables,
            races.lockstep_sentence,
        ),
        _of_rows(
            material,
            "recovery",
            "Recovery",
            [SAVE_COST, FAILURE_PHASES, ELASTIC_LOSS],
            recovery.tables,
        ),
        _checks(material),
        _of_rows(material, "frameworks", "Frameworks", [FRAMEWORKS], frameworks.tables),
        _of_rows(material, "speedup", "Speedup", [scaling.SPEEDUP]),
        _of_rows(material, "efficiency", "Efficiency", [scaling.EFFICIENCY]),
        _of_rows(
            material,
            "budget",
            "Where the lost time goes",
            [BUDGET, WATERFALL, AXIS_BUDGET],
            pages(POP),
        ),
        _model(material),
        _timeline(material),
        _communication(material),
        _experts(material),
        _ranks(material),
        _memory(material),
        _of_rows(
            material,
            "compression",
            "Compression",
            COMPRESSION,
            compression.tables,
            compression.verdict,
        ),
        _power(material),
        _extrapolation(material),
    )
    trained = bool(material.rows) and not wording.of_logs(material.rows)
    return tuple(one for one in made if one.blocks or (one.absent and trained))


def of_suite(found: Sequence[Section], suite: str) -> tuple[tuple[Section, Block], ...]:
    """Return the sections that have something about a suite, each with its block."""
    return tuple(
        (section, block) for section in found for block in section.blocks if block.suite == suite
    )


def _of_rows(
    material: Material,
    name: str,
    title: str,
    shown: Sequence[ChartKind],
    tables: Callable[[Sequence[Row]], Sequence[PlainTable]] = lambda rows: (),
    said: Callable[[Sequence[Row]], str | None] = lambda rows: None,
) -> Section:
    """Return the section of figures, then tables, that need nothing but the rows."""
    blocks = [
        Block(suite, (*material.charts(shown, index, rows), *tables(rows)), said(rows))
        for index, suite, rows in material.suites()
    ]
    return _section(name, title, blocks, shown[0].absent)


def _section(name: str, title: str, blocks: Sequence[Block], absent: str = "") -> Section:
    full = tuple(block for block in blocks if block.parts)
    return Section(name, title, full, "" if full else absent)


def _checks(material: Material) -> Section:
    blocks = []
    for _, suite, rows in material.suites():
        said = script_checks.of_largest(rows)
        lines = tuple((one.about, one.kind, wording.as_sentence(one.sentence)) for one in said)
        table = PlainTable("", "", ("check", "", "what was seen"), lines, frozenset({0, 1, 2}))
        blocks.append(Block(suite, (table,) if lines else ()))
    return _section("checks", "Is the script right?", blocks)


def _races(material: Material) -> Section:
    blocks = []
    for index, suite, rows in material.suites():
        found = material.page_data.races if material.page_data else ()
        kind = race_kind([curve for curve in found if curve.suite == suite])
        blocks.append(Block(suite, (*material.chart(kind, index, rows), *races.tables(rows))))
    return _section("race", "Time to loss", blocks)


def _model(material: Material) -> Section:
    blocks = [
        Block(
            suite,
            (
                *material.chart(PREDICTED_STEPS, index, rows),
                *predictions.tables(rows),
                *material.chart(PREDICTED_OPERATIONS, index, rows),
            ),
        )
        for index, suite, rows in material.suites()
    ]
    return _section(
        "model",
        "Measured against predicted",
        [*blocks, *_link(material)],
        f"Nothing was predicted: {_why_not_predicted(material.rows)}.",
    )


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
    shown = link_kinds(profile, min(rates) if rates else None)
    made = material.charts(shown, 0, material.rows)
    return [Block(NO_LINK, (*made, fit_table(profile)))]


def _timeline(material: Material) -> Section:
    blocks, absent = [], ""
    for index, suite, rows in material.suites():
        parts: list[ChartOrTable] = []
        if material.page_data is not None:
            found = [one for one in material.page_data.timelines if one.suite == suite]
            kind = timeline_kind(found)
            parts += material.chart(kind, index, rows)
            absent = kind.absent
        parts += material.chart(SCHEDULE, index, rows)
        parts += pipelines.tables(rows)
        blocks.append(Block(suite, tuple(parts)))
    return _section("timeline", "One step", blocks, absent)


def _communication(material: Material) -> Section:
    blocks = []
    for index, suite, rows in material.suites():
        drawn = material.chart(mesh_kind(rows), index, rows)
        parts: tuple[ChartOrTable, ...] = (
            *drawn,
            *communication.tables(rows),
            *communication.wires_tables(rows),
        )
        said = " ".join(
            filter(None, (communication.sentence(rows), communication.wires_sentence(rows)))
        )
        blocks.append(Block(suite, parts, said or None))
    return _section("communication", "Communication", blocks)


def _experts(material: Material) -> Section:
    blocks = []
    for index, suite, rows in material.suites():
        found = material.page_data.expert_loads if material.page_data else ()
        kind = expert_kind([load for load in found if load.suite == suite])
        drawn = material.chart(kind, index, rows)
        parts: tuple[ChartOrTable, ...] = (*drawn, *experts.tables(rows))
        said = experts.slow_sentence(rows) if drawn else experts.sentence(rows)
        blocks.append(Block(suite, parts, said))
    return _section("experts", "Experts", blocks)


def _ranks(material: Material) -> Section:
    blocks, page_data = [], material.page_data
    for index, suite, rows in material.suites():
        parts: list[ChartOrTable] = []
        if page_data is not None:
            grids = [grid for grid in page_data.grids if grid.suite == suite]
            parts += material.chart(grid_kind(grids), index, rows)
        parts += communication.rank_tables(rows)
        parts += material.charts([scaling.STEPS, SHARES, LOSS_SCALE], index, rows)
        blocks.append(Block(suite, tuple(parts)))
    return _section("steps", "Ranks and steps", blocks, scaling.STEPS.absent)


def _memory(material: Material) -> Section:
    blocks = []
    for index, suite, rows in material.suites():
        if wording.of_logs(rows):  # the table of results has their peaks
            continue
        drawn = material.chart(_memory_kind(material.environment), index, rows)
        counted = memory.tables(rows)
        batches = max_batch_table(rows, material.largest_batches)
        by_axis = material.chart(MEMORY_AXES, index, rows)
        last = [batches] if batches else []
        parts: tuple[ChartOrTable, ...] = (*drawn, *by_axis, *counted, *last)
        blocks.append(Block(suite, parts, None if drawn else MEMORY.absent))
    return _section("memory", "Memory", blocks)


def _memory_kind(environment: Mapping[str, Any]) -> ChartKind:
    """Return the kind of figure of memory, with the capacity of this environment."""

    def draw(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
        figure = MEMORY.draw(rows, looks)
        if figure is not None:
            draw_limit(figure, rows, environment)
        return figure

    return replace(MEMORY, draw=draw, remark=lambda rows: capacity_sentence(rows, environment))


def _power(material: Material) -> Section:
    blocks = []
    for index, suite, rows in material.suites():
        watched = material.page_data.devices if material.page_data else ()
        found = [one for one in watched if one.suite == suite]
        blocks.append(Block(suite, (*material.charts([power_kind(found), ENERGY], index, rows),)))
    on_gpu = any(row.device == "cuda" for row in material.rows)
    why = "The devices were not watched: NVML was not there, or this page was made without the run."
    return _section("power", "Power, clocks, temperature", blocks, why if on_gpu else "")


def _extrapolation(material: Material) -> Section:
    if material.page_data is None:
        return Section("extrapolation", "At more ranks", ())
    extrapolation, blocks, absent = material.page_data.extrapolation, [], ""
    for index, suite, rows in material.suites():
        kind = extrapolation_kind(extrapolation, suite)
        absent = absent or kind.absent
        blocks.append(Block(suite, tuple(material.chart(kind, index, rows))))
    return _section("extrapolation", "At more ranks", blocks, absent)
