"""Memory as a figure: what the fullest rank holds, by category and by axis, and the capacity."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, legend
from scalebench.report.figures.lanes import Lanes, bars, diamonds, lay, texts_behind
from scalebench.report.figures.mesh import COLOR_OF, SEVERAL
from scalebench.report.figures.style import CATEGORY_COLORS, NEUTRAL, Looks, row_name, style
from scalebench.report.tables import memory
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.tables.memory import CATEGORIES, Divided, Peak, peaks
from scalebench.report.words import wording

PREDICTION = "predicted"

GAP = "\N{NO-BREAK SPACE}" * 3
ROOM = 0.22
"""Part of the longest bar that is kept free behind it for its number."""


def memory_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw the categories of every peak that was separated; None without any."""
    drawn = apart(rows)
    if not drawn:
        return None
    lanes = lay([found.row for found in drawn])
    longest = max(max(found.total, found.predicted or 0) for found in drawn)
    scale, unit = next(step for step in units.BYTE_STEPS if longest >= step[0])
    figure = go.Figure()
    for category in shown_categories(rows):
        figure.add_trace(_bars(category, drawn, lanes, scale))
    predicted = [
        (
            place,
            found.predicted / scale,
            f"{row_name(found.row)}<br>predicted: {units.bytes_(found.predicted)},"
            f" {memory.error(found)} off the measured {units.bytes_(found.total)}",
        )
        for place, found in zip(lanes.places, drawn, strict=True)
        if found.predicted is not None
    ]
    figure.add_trace(_marks(PREDICTION, NEUTRAL, predicted))
    ends = [max(found.total, found.predicted or 0) / scale for found in drawn]
    told = [f"{GAP}{units.bytes_(found.total)}" for found in drawn]
    figure.add_trace(texts_behind(ends, lanes.places, told))
    return _in_lanes(figure, "memory", lanes, longest, (scale, unit))


def _in_lanes(
    figure: go.Figure, name: str, lanes: Lanes, longest: float, axis: tuple[float, str]
) -> go.Figure:
    """Return a figure with lanes and axis drawn; ``longest``: bytes; ``axis``: one of `STEPS`."""
    scale, unit = axis
    style(figure, name)
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


def shown_categories(rows: Sequence[Row]) -> list[str]:
    """Return the categories that hold something in any row."""
    drawn = apart(rows)
    return [name for name in CATEGORIES if any(found.parts[name] for found in drawn)]


def _marks(name: str, color: str, found: Sequence[tuple[float, float, str]]) -> go.Scatter:
    """Return marks on the bars; ``found``: place, end and text of each."""
    places, ends, told = zip(*found, strict=True) if found else ((), (), ())
    marks = diamonds(name, color, ends, places, told)
    return marks.update(marker_line={"width": 1.5, "color": "#ffffff"})


def _bars(category: str, drawn: Sequence[Peak], lanes: Lanes, scale: float) -> go.Bar:
    edges = [0.7 * (found.parts[category] > 0) for found in drawn]
    return bars(
        category,
        CATEGORY_COLORS[category],
        [found.parts[category] / scale for found in drawn],
        lanes.places,
        [f"{row_name(found.row)}<br>{category}: {written(found, category)}" for found in drawn],
        {"line": {"color": NEUTRAL, "width": edges}},
    )


def written(found: Peak, category: str) -> str:
    """Write a category: ``"3.50 MB, 11.5 % of the peak"``."""
    part = found.parts[category]
    return f"{units.bytes_(part)}, {units.percent(part / found.total)} of the peak"


def lines(rows: Sequence[Row]) -> list[tuple[Row, str, str, str]]:
    """Return row and every category of each peak: bytes and percent of the peak."""
    found: list[tuple[Row, str, str, str]] = []
    for peak in apart(rows):
        named = [(category, peak.parts[category]) for category in shown_categories(rows)]
        named += [("peak", peak.total)]
        named += [] if peak.predicted is None else [(PREDICTION, peak.predicted)]
        found += [
            (peak.row, name, f"{size:,} B", f"{100 * size / peak.total:.1f} %")
            for name, size in named
        ]
    return found


MEANINGS = CATEGORIES | {PREDICTION: "The peak that the strategy's law predicts."}
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


LEFT, MEASURED = "left to a rank", "measured"
AXIS_MEANINGS = {LEFT: "By the laws of the axes.", MEASURED: "The peak of the fullest rank."}
PALE = 0.55
"""Opacity of what is not held."""


def memory_axes_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw what is left and what each axis takes off, stacked; None without any mesh."""
    drawn = memory.divided(rows)
    if not drawn:
        return None
    lanes = lay([row for row, _ in drawn])
    longest = max(max(found.one_process_bytes, row.peak_memory_bytes or 0) for row, found in drawn)
    scale, unit = next(step for step in units.BYTE_STEPS if longest >= step[0])
    figure = go.Figure()
    left = [found.rank_bytes for _, found in drawn]
    figure.add_trace(_axis_bars(LEFT, (NEUTRAL, 1.0), drawn, lanes, left, scale))
    for axis in dict.fromkeys(one.axis for _, found in drawn for one in found.savings):
        sizes = [
            sum(one.total_bytes for one in found.savings if one.axis == axis) for _, found in drawn
        ]
        color = COLOR_OF.get(axis, SEVERAL)
        figure.add_trace(_axis_bars(axis, (color, PALE), drawn, lanes, sizes, scale))
    measured = [
        (place, size / scale, f"{row_name(row)}<br>measured: {units.bytes_(size)}")
        for place, (row, _) in zip(lanes.places, drawn, strict=True)
        if (size := row.peak_memory_bytes)
    ]
    figure.add_trace(_marks(MEASURED, "#222222", measured))
    ends = [found.one_process_bytes / scale for _, found in drawn]
    told = [f"{GAP}{units.bytes_(found.one_process_bytes)}" for _, found in drawn]
    figure.add_trace(texts_behind(ends, lanes.places, told))
    return _in_lanes(figure, "memory-axes", lanes, longest, (scale, unit))


def _axis_bars(
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


MEMORY_AXES = ChartKind(
    "memory-axes",
    memory.MEMORY_AXES.title,
    memory_axes_figure,
    memory.axes_sentence,
    memory.AXIS_COLUMNS,
    memory.divided,
    lambda figure: legend(figure, AXIS_MEANINGS),
    "The whole bar, with the number behind it: the predicted peak of one process on the whole"
    " batch. In colour: what each axis takes off, by its law. Grey: what is left to a rank.",
)


NEAR = 0.1
"""Of the capacity: a peak above this is drawn next to it; below, the bars would be too short."""


def device_bytes(environment: Mapping[str, Any]) -> int | None:
    """Return the memory of the smallest device; None: there is none, or it is not known."""
    devices = environment.get("devices")
    known = [
        device["memory_bytes"]
        for device in (devices if isinstance(devices, list) else ())
        if isinstance(device, Mapping) and _is_size(device.get("memory_bytes"))
    ]
    return min(known, default=None)


def machine_bytes(environment: Mapping[str, Any]) -> int | None:
    """Return what all CPU ranks together may hold; None: it is not known."""
    told = (environment.get("memory_bytes"), environment.get("cgroup_memory_bytes"))
    limits: list[int] = [limit for limit in told if _is_size(limit)]
    return min(limits, default=None)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def capacity_sentence(rows: Sequence[Row], environment: Mapping[str, Any]) -> list[str]:
    """Hold the fullest row against the capacity; nothing where one of them is not known."""
    found = peaks(rows)
    on_gpu = [peak for peak in found if peak.row.device == "cuda"]
    capacity = device_bytes(environment) if on_gpu else machine_bytes(environment)
    if not found or capacity is None:
        return []
    if on_gpu:
        fullest = max(on_gpu, key=lambda peak: peak.total)
        return [
            f"A device has {units.bytes_(capacity)}; the fullest rank holds"
            f" {units.percent(fullest.total / capacity)} of it, in {wording.place(fullest.row)}."
        ]
    fullest = max(found, key=_together)
    held = _together(fullest)
    return [
        f"All ranks share the machine's {units.bytes_(capacity)}; those of"
        f" {wording.place(fullest.row)} together hold {units.bytes_(held)} of live tensors,"
        f" {units.percent(held / capacity)} of it."
    ]


def _together(peak: Peak) -> int:
    return peak.total * peak.row.world_size


def draw_limit(figure: go.Figure, rows: Sequence[Row], environment: Mapping[str, Any]) -> None:
    """Draw the device's capacity as a line where the peaks come near it."""
    found = [peak for peak in peaks(rows) if peak.row.device == "cuda"]
    capacity = device_bytes(environment)
    if not found or capacity is None or max(peak.total for peak in found) < NEAR * capacity:
        return
    scale = _axis_unit(figure)
    figure.add_vline(
        x=capacity / scale,
        line={"color": NEUTRAL, "width": 1.6, "dash": "dot"},
        annotation={"text": "device", "font": {"size": 13}},
    )
    figure.update_xaxes(range=[0, 1.08 * capacity / scale])


def _axis_unit(figure: go.Figure) -> float:
    """Return bytes per unit of the figure's axis, which its title names."""
    unit = str(figure.layout.xaxis.title.text).rpartition(" ")[2]
    return next(size for size, name in units.BYTE_STEPS if name == unit)
