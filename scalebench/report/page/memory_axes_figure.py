"""Memory by axis as a figure: what is left to a rank, and what each axis takes off one process."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, KeyEntry, legend
from scalebench.report.page.figure_style import Looks, row_name, style
from scalebench.report.page.lanes import Lanes, bars, diamonds, lay, texts_behind
from scalebench.report.page.memory_figure import GAP, ROOM, STEPS
from scalebench.report.page.mesh_figure import COLOR_OF, SEVERAL
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.tables import memory_axes
from scalebench.report.tables.memory_axes import Divided

LEFT, MEASURED = "left to a rank", "measured"
MEANINGS = {
    LEFT: "By the laws of the axes.",
    MEASURED: "The peak of the fullest rank.",
}
PALE = 0.55
"""Opacity of what is not held."""


def memory_axes_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw what is left and what each axis takes off, stacked; None without any mesh."""
    drawn = memory_axes.divided(rows)
    if not drawn:
        return None
    lanes = lay([row for row, _ in drawn])
    longest = max(max(found.one_process_bytes, row.peak_memory_bytes or 0) for row, found in drawn)
    scale, unit = next(step for step in STEPS if longest >= step[0])
    figure = go.Figure()
    left = [found.rank_bytes for _, found in drawn]
    figure.add_trace(_bars(LEFT, (NEUTRAL, 1.0), drawn, lanes, left, scale))
    for axis in dict.fromkeys(one.axis for _, found in drawn for one in found.savings):
        sizes = [
            sum(one.total_bytes for one in found.savings if one.axis == axis) for _, found in drawn
        ]
        color = COLOR_OF.get(axis, SEVERAL)
        figure.add_trace(_bars(axis, (color, PALE), drawn, lanes, sizes, scale))
    figure.add_trace(_measured(drawn, lanes, scale))
    ends = [found.one_process_bytes / scale for _, found in drawn]
    told = [f"{GAP}{units.bytes_(found.one_process_bytes)}" for _, found in drawn]
    figure.add_trace(texts_behind(ends, lanes.places, told))
    style(figure, "memory-axes")
    lanes.draw(figure)
    figure.update_xaxes(
        title=f"peak of the fullest rank, {unit}",
        range=[0, (1 + ROOM) * longest / scale],
        automargin=True,
    )
    return figure


def _bars(
    name: str,
    look: tuple[str, float],
    drawn: Sequence[Divided],
    lanes: Lanes,
    sizes: Sequence[int],
    scale: float,
) -> go.Bar:
    color, opacity = look
    taken = "" if name == LEFT else " takes off"
    texts = [
        f"{row_name(row)}<br>{name}{taken}: {units.bytes_or_zero(size)}"
        for (row, _), size in zip(drawn, sizes, strict=True)
    ]
    lengths = [size / scale for size in sizes]
    return bars(name, color, lengths, lanes.places, texts, opacity=opacity)


def _measured(drawn: Sequence[Divided], lanes: Lanes, scale: float) -> go.Scatter:
    """Mark the measured peaks."""
    known = [
        (place, row, row.peak_memory_bytes)
        for place, (row, _) in zip(lanes.places, drawn, strict=True)
        if row.peak_memory_bytes
    ]
    texts = [f"{row_name(row)}<br>measured: {units.bytes_(size)}" for _, row, size in known]
    ends, places = [size / scale for _, _, size in known], [place for place, _, _ in known]
    marks = diamonds(MEASURED, "#222222", ends, places, texts)
    return marks.update(marker_line={"width": 1.5, "color": "#ffffff"})


def _key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    named = dict.fromkeys((trace.name for trace in figure.data if trace.name), "")
    return legend(figure, named | MEANINGS)


MEMORY_AXES = ChartKind(
    "memory-axes",
    memory_axes.MEMORY_AXES.title,
    memory_axes_figure,
    memory_axes.sentence,
    memory_axes.COLUMNS,
    memory_axes.divided,
    _key,
    "The whole bar, with the number behind it: the predicted peak of one process on the whole"
    " batch. In colour: what each axis takes off, by its law. Grey: what is left to a rank.",
)
