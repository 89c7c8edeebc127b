"""Memory as a figure: what the fullest rank of each row held at its peak, and the prediction."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.page.figure_style import Looks, row_name, style
from scalebench.report.page.lanes import BAR, lay, texts_behind
from scalebench.report.page.palette import CATEGORY_COLORS, NEUTRAL
from scalebench.report.tables import memory
from scalebench.report.tables.memory import CATEGORIES, Category, Peak
from scalebench.report.words import wording

PREDICTION = "predicted"
PREDICTION_MEANS = "The peak that the strategy's law predicts."
PREDICTION_SYMBOL = "diamond"

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
        figure.add_trace(_bars(category, index, drawn, lanes.places, scale))
    figure.add_trace(_predictions(drawn, lanes.places, scale))
    figure.add_trace(_totals(drawn, lanes.places, scale))
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
    category: Category, index: int, drawn: Sequence[Peak], places: Sequence[float], scale: float
) -> go.Bar:
    return go.Bar(
        x=[found.parts[index] / scale for found in drawn],
        y=list(places),
        customdata=[
            [f"{row_name(found.row)}<br>{category.name}: {told(found, index)}"] for found in drawn
        ],
        hovertemplate="%{customdata[0]}<extra></extra>",
        orientation="h",
        width=BAR,
        name=category.name,
        marker={
            "color": CATEGORY_COLORS[category.key],
            "line": {
                "color": NEUTRAL,
                "width": [0.7 * (found.parts[index] > 0) for found in drawn],
            },
        },
    )


def _predictions(drawn: Sequence[Peak], places: Sequence[float], scale: float) -> go.Scatter:
    """Mark the predicted peaks."""
    known = [(y, f) for y, f in zip(places, drawn, strict=True) if f.predicted is not None]
    return go.Scatter(
        x=[(found.predicted or 0) / scale for _, found in known],
        y=[y for y, _ in known],
        customdata=[
            [f"{row_name(found.row)}<br>predicted: {units.bytes_(found.predicted or 0)},"
             f" {memory.error(found)} off the measured {units.bytes_(found.total)}"]
            for _, found in known
        ],
        hovertemplate="%{customdata[0]}<extra></extra>",
        mode="markers",
        name=PREDICTION,
        cliponaxis=False,
        marker={
            "symbol": PREDICTION_SYMBOL, "size": 11, "color": NEUTRAL,
            "line": {"width": 1.5, "color": "#ffffff"},
        },
    )  # fmt: skip


def _totals(drawn: Sequence[Peak], places: Sequence[float], scale: float) -> go.Scatter:
    """Write each peak behind its bar."""
    ends = [max(found.total, found.predicted or 0) / scale for found in drawn]
    return texts_behind(ends, places, [f"{GAP}{units.bytes_(found.total)}" for found in drawn])


def told(found: Peak, index: int) -> str:
    """Write a category: ``"3.50 MB, 11.5 % of the peak"``."""
    part = found.parts[index]
    return f"{units.bytes_(part)}, {units.percent(part / found.total)} of the peak"


def conclude(rows: Sequence[Row]) -> str:
    """Conclude the figure of one suite."""
    return memory.sentence(rows) or "No peak was counted."


def tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return case, N and every category of each peak: bytes and percent of the peak."""
    lines: list[tuple[str, ...]] = []
    for found in apart(rows):
        place = (wording.plain(found.row.case, 64), str(found.row.world_size))
        for index, category in shown_categories(rows):
            part = found.parts[index]
            share = f"{100 * part / found.total:.1f} %"
            lines.append((*place, category.name, f"{part:,} B", share))
        lines.append((*place, "peak", f"{found.total:,} B", "100.0 %"))
        if found.predicted is not None:
            share = f"{100 * found.predicted / found.total:.1f} %"
            lines.append((*place, PREDICTION, f"{found.predicted:,} B", share))
    return lines
