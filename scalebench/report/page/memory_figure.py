"""Memory as a figure: what the fullest rank of each row held at its peak, and the prediction."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, row_name, style
from scalebench.report.page.lanes import Lanes, bars, diamonds, lay, texts_behind
from scalebench.report.page.palette import CATEGORY_COLORS, NEUTRAL
from scalebench.report.tables import memory
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.tables.memory import CATEGORIES, Category, Peak

PREDICTION = "predicted"

STEPS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
GAP = "\N{NO-BREAK SPACE}" * 3
ROOM = 0.22
"""Part of the longest bar that is kept free behind it for its number."""


def memory_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw the categories of every peak that was told apart; None without any."""
    drawn = apart(rows)
    if not drawn:
        return None
    lanes = lay([found.row for found in drawn])
    longest = max(max(found.total, found.predicted or 0) for found in drawn)
    scale, unit = next(step for step in STEPS if longest >= step[0])
    figure = go.Figure()
    for index, category in shown_categories(rows):
        figure.add_trace(_bars(category, index, drawn, lanes, scale))
    figure.add_trace(_predictions(drawn, lanes, scale))
    figure.add_trace(_totals(drawn, lanes, scale))
    style(figure, "memory")
    lanes.draw(figure)
    figure.update_xaxes(
        title=f"peak of the fullest rank, {unit}",
        range=[0, (1 + ROOM) * longest / scale],
        automargin=True,
    )
    return figure


def apart(rows: Sequence[Row]) -> list[Peak]:
    """Return the peaks of which the categories are known."""
    return [found for found in memory.peaks(rows) if found.parts]


def shown_categories(rows: Sequence[Row]) -> list[tuple[int, Category]]:
    """Return the categories that hold something in any row, with their place in `Peak.parts`."""
    drawn = apart(rows)
    return [
        (index, category)
        for index, category in enumerate(CATEGORIES)
        if any(found.parts[index] for found in drawn)
    ]


def _bars(
    category: Category, index: int, drawn: Sequence[Peak], lanes: Lanes, scale: float
) -> go.Bar:
    edges = [0.7 * (found.parts[index] > 0) for found in drawn]
    return bars(
        category.name,
        CATEGORY_COLORS[category.key],
        [found.parts[index] / scale for found in drawn],
        lanes.places,
        [f"{row_name(found.row)}<br>{category.name}: {told(found, index)}" for found in drawn],
        {"line": {"color": NEUTRAL, "width": edges}},
    )


def _predictions(drawn: Sequence[Peak], lanes: Lanes, scale: float) -> go.Scatter:
    """Mark the predicted peaks."""
    known = [(y, f) for y, f in zip(lanes.places, drawn, strict=True) if f.predicted is not None]
    texts = [
        f"{row_name(found.row)}<br>predicted: {units.bytes_(found.predicted or 0)},"
        f" {memory.error(found)} off the measured {units.bytes_(found.total)}"
        for _, found in known
    ]
    ends = [(found.predicted or 0) / scale for _, found in known]
    marks = diamonds(PREDICTION, NEUTRAL, ends, [y for y, _ in known], texts)
    return marks.update(marker_line={"width": 1.5, "color": "#ffffff"})


def _totals(drawn: Sequence[Peak], lanes: Lanes, scale: float) -> go.Scatter:
    """Write each peak behind its bar."""
    ends = [max(found.total, found.predicted or 0) / scale for found in drawn]
    return texts_behind(
        ends, lanes.places, [f"{GAP}{units.bytes_(found.total)}" for found in drawn]
    )


def told(found: Peak, index: int) -> str:
    """Write a category: ``"3.50 MB, 11.5 % of the peak"``."""
    part = found.parts[index]
    return f"{units.bytes_(part)}, {units.percent(part / found.total)} of the peak"


def lines(rows: Sequence[Row]) -> list[tuple[Row, str, str, str]]:
    """Return row and every category of each peak: bytes and percent of the peak."""
    found: list[tuple[Row, str, str, str]] = []
    for peak in apart(rows):
        named = [(category.name, peak.parts[index]) for index, category in shown_categories(rows)]
        named += [("peak", peak.total)]
        named += [] if peak.predicted is None else [(PREDICTION, peak.predicted)]
        found += [
            (peak.row, name, f"{size:,} B", f"{100 * size / peak.total:.1f} %")
            for name, size in named
        ]
    return found


MEANINGS = {category.name: category.meaning for category in CATEGORIES} | {
    PREDICTION: "The peak that the strategy's law predicts."
}
MEMORY = ChartKind(
    "memory",
    "Memory",
    memory_figure,
    memory.sentence,
    (*PLACE, *texts("category", "bytes", "of the peak")),
    lines,
    lambda figure: legend(figure, MEANINGS),
    absent="Which categories the peak is made of is not known: the inspecting launch did not count"
    " them.",
)
"""The figure of the section of memory, which has tables of its own."""
