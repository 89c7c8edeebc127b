"""The view of one row: what its suite's figures and tables say of this case at this N."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.analysis.page_data import PageData
from scalebench.records.summary import Row
from scalebench.report.figures.budget import conclude_waterfall
from scalebench.report.figures.charts import Chart, Choice
from scalebench.report.figures.heat import conclude_heat
from scalebench.report.figures.predictions import conclude_steps
from scalebench.report.figures.steps import conclude_timeline
from scalebench.report.figures.style import CATEGORY_COLORS, Look, Looks, row_name, safe
from scalebench.report.findings.findings import Finding, judge_case
from scalebench.report.page.cards import IntervalBar, Segment, Strip, Track, strip, widest
from scalebench.report.page.offline import row_address
from scalebench.report.tables import axes, communication, compression, memory, predictions, races
from scalebench.report.tables.columns import present
from scalebench.report.tables.layout import PlainTable
from scalebench.report.words import notes, wording
from scalebench.report.words.causes import budgeted
from scalebench.report.words.notes import Mark, details, explain, marks

NOT_FACTS = ("case", "n", "marks")
"""Columns of the results that a row's own view says elsewhere."""


@dataclass(frozen=True)
class RowChart:
    """A view of one of the suite's figures, as the view of a row draws it again.

    Attributes:
        caption: What it says of this row; empty: nothing that the row's view does not say.
    """

    id: str
    source: Chart
    choice: Choice
    caption: str

    @property
    def height(self) -> int:
        """Pixels."""
        return self.choice.height or self.source.height


@dataclass(frozen=True)
class RowSection:
    """One subject of a row's view.

    Attributes:
        sentence: Above figures and tables; empty: they have their own.
        absent: Why there is nothing; empty: there is something.
    """

    name: str
    title: str
    sentence: str = ""
    strip: Strip | None = None
    charts: tuple[RowChart, ...] = ()
    tables: tuple[PlainTable, ...] = ()
    absent: str = ""

    @property
    def full(self) -> bool:
        """Whether there is anything to show or to say."""
        return bool(self.sentence or self.strip or self.charts or self.tables or self.absent)


@dataclass(frozen=True)
class RowView:
    """One row.

    Attributes:
        texts: Beginnings of what figures say on hover about it.
        siblings: Of the same case: N, address, whether it is this one.
        facts: Name, number and detail, as in the table of results.
    """

    id: str
    row: Row
    look: Look
    link: str
    suite_link: str
    place: str
    where: str
    label: str
    texts: tuple[str, ...]
    siblings: tuple[tuple[int, str, bool], ...]
    facts: tuple[tuple[str, str, str, str], ...]
    bar: IntervalBar | None
    strip: Strip | None
    finding: Finding
    sections: tuple[RowSection, ...]
    marks: tuple[tuple[Mark, str], ...]
    operations: tuple[str, ...]


def row_views(
    suite_id: str,
    suite_link: str,
    rows: Sequence[Row],
    looks: Looks,
    charts: Mapping[str, Sequence[Chart]],
    page_data: PageData | None,
    prefix: Sequence[str] = (),
) -> tuple[RowView, ...]:
    """Return the views of a suite's rows."""
    track, full = Track.of(rows), widest(rows)
    groups = wording.by_case(rows)
    found = []
    for index, row in enumerate(rows, 1):
        row_id = f"{suite_id}-row-{index}"
        place = wording.place(row)
        found.append(
            RowView(
                id=row_id,
                row=row,
                look=looks[wording.case_key(row)],
                link=row_address(row, prefix),
                suite_link=suite_link,
                place=place,
                where=wording.ranks(row),
                label=wording.strategy_label(row),
                texts=(row_name(row), f"<b>{safe(place, 90)}</b>"),
                siblings=tuple(
                    (one.world_size, row_address(one, prefix), one is row)
                    for one in groups[wording.case_key(row)]
                ),
                facts=_facts(row, rows),
                bar=track.bar(row.efficiency) if row.efficiency else None,
                strip=strip(row, full),
                finding=judge_case([row], rows),
                sections=tuple(
                    one
                    for one in _sections(row_id, row, charts, page_data)
                    if one.full and not (one.absent and wording.of_logs([row]))
                ),
                marks=tuple((explain(name), details(row, name)) for name in marks(row)),
                operations=_operations(row),
            )
        )
    return tuple(found)


def _facts(row: Row, rows: Sequence[Row]) -> tuple[tuple[str, str, str, str], ...]:
    return tuple(
        (
            column.key,
            column.name,
            (column.beside_detail or column.text)(row) if column.detail(row) else column.text(row),
            column.detail(row),
        )
        for column in present(rows)
        if column.key not in NOT_FACTS and column.text(row) not in ("", wording.DASH)
    )


def _operations(row: Row) -> tuple[str, ...]:
    kinds = (wording.plain(one.kind, 40) for one in row.communication or ())
    return tuple(dict.fromkeys(kinds))


def _sections(
    row_id: str, row: Row, charts: Mapping[str, Sequence[Chart]], page_data: PageData | None
) -> list[RowSection]:
    drawn = _drawn(row_id, row, charts, page_data)
    of_ranks = tuple(drawn("steps"))
    return [
        _race(row),
        _budget(row, tuple(drawn("budget"))),
        _step(row, tuple(drawn("timeline")), page_data),
        RowSection(
            "communication",
            "Communication",
            _communication_words(row),
            charts=tuple(drawn("communication")),
            tables=(*communication.tables([row]), *communication.wires_tables([row])),
        ),
        RowSection("lockstep", "Lockstep", tables=races.lockstep_tables([row])),
        RowSection(
            "experts", "Experts", axes.sentence([row]) or "", tables=axes.expert_tables([row])
        ),
        RowSection(
            "memory", "Memory", strip=_memory_strip(row), tables=memory.tables([row])
        ),
        RowSection(
            "steps", "Ranks and steps", charts=of_ranks, tables=communication.rank_tables([row])
        ),
        _predicted(row),
        RowSection("compression", "Compression", tables=compression.tables([row])),
        RowSection("power", "Power, clocks, temperature", charts=tuple(drawn("power"))),
    ]  # fmt: skip


def _communication_words(row: Row) -> str:
    said = (
        communication.sentence([row]),
        notes.axis_sentence(row),
        communication.wires_sentence([row]),
    )
    return " ".join(filter(None, said))


def _drawn(
    row_id: str, row: Row, charts: Mapping[str, Sequence[Chart]], page_data: PageData | None
) -> Callable[[str], list[RowChart]]:
    place = wording.place(row)

    def of_section(name: str) -> list[RowChart]:
        found: list[RowChart] = []
        for chart in charts.get(name, ()):
            for choice in chart.choices.views if chart.choices else ():
                if choice.name == place or choice.name.startswith(f"{place}, "):
                    caption = _caption(chart, row, page_data)
                    kind = f"{chart.id.split('-')[-2]}-{len(found) + 1}"
                    found.append(RowChart(f"{row_id}-{kind}", chart, choice, caption))
        return found

    return of_section


def _caption(chart: Chart, row: Row, page_data: PageData | None) -> str:
    """Say what a figure shows of a row; empty: it says it itself."""
    if page_data is None or "-heat-" not in chart.id:
        return ""
    key = (row.suite, row.case, row.world_size)
    grids = [one for one in page_data.grids if (one.suite, one.case, one.world_size) == key]
    return conclude_heat(grids[0]) if grids else ""


def _race(row: Row) -> RowSection:
    said = races.sentence(row, row.race) if row.race is not None else ""
    return RowSection("race", "Time to loss", said, tables=races.tables([row]))


def _budget(row: Row, charts: tuple[RowChart, ...]) -> RowSection:
    title = "Where the lost time goes"
    if not budgeted([row]):
        reason = row.unavailable.get("budget", "")
        return RowSection("budget", title, absent=wording.plain(reason, 300))
    return RowSection("budget", title, conclude_waterfall([row]), charts=charts)


def _step(row: Row, charts: tuple[RowChart, ...], page_data: PageData | None) -> RowSection:
    title = "One step"
    stages = axes.tables([row])
    if charts and page_data is not None:
        key = (row.suite, row.case, row.world_size)
        shown = [one for one in page_data.timelines if (one.suite, one.case, one.world_size) == key]
        said = conclude_timeline(shown) if shown else ""
        return RowSection("timeline", title, said, charts=charts, tables=stages)
    others = [
        one.world_size
        for one in (page_data.timelines if page_data else ())
        if (one.suite, one.case) == wording.case_key(row)
    ]
    absent = f"The page has one step of this case at N={others[0]}." if others else ""
    return RowSection("timeline", title, tables=stages, absent=absent)


def _predicted(row: Row) -> RowSection:
    title = "Measured against predicted"
    if row.prediction_error is None:
        reason = row.unavailable.get("predicted_step_s", "") if row.world_size > 1 else ""
        return RowSection("model", title, absent=wording.plain(reason, 300))
    return RowSection("model", title, conclude_steps([row]), tables=predictions.tables([row]))


def _memory_strip(row: Row) -> Strip | None:
    """Return the peak of the row's fullest rank by category."""
    found = memory.peak(row)
    if found is None or not found.parts:
        return None
    held = {name: size for name, size in found.parts.items() if size}
    segments = tuple(
        Segment(
            *(name, name, CATEGORY_COLORS[name]),
            *(round(100 * size / found.total, 2), units.bytes_(size), True),
        )
        for name, size in held.items()
    )
    told = ", ".join(f"{name} {units.bytes_(size)}" for name, size in held.items())
    total = units.bytes_(found.total)
    return Strip(segments, f"{total} at the peak: {told}.", total)
