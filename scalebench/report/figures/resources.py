"""Memory, power, clocks, temperature and energy as figures."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeGuard

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data import DeviceSeries
from scalebench.records.summary import Row
from scalebench.report.figures.charts import (
    ChartKind,
    Lanes,
    bars,
    diamonds,
    lay,
    legend,
    texts_behind,
    view_mark,
    views,
)
from scalebench.report.figures.mesh import COLOR_OF, SEVERAL
from scalebench.report.figures.scaling import case_line
from scalebench.report.figures.style import (
    CATEGORY_COLORS,
    COLORS,
    DASHES,
    NEUTRAL,
    Looks,
    row_name,
    safe,
    style,
)
from scalebench.report.tables import memory
from scalebench.report.tables.layout import CASE, PLACE, RANKS, Column, texts, value
from scalebench.report.tables.memory import CATEGORIES, Divided, Peak, peaks
from scalebench.report.words import wording
from scalebench.report.words.wording import place

PREDICTION = "predicted"

GAP = "\N{NO-BREAK SPACE}" * 3
ROOM = 0.22
"""Part of the longest bar that is kept free behind it for its number."""
PANELS = {
    "power_w": ("power, W", 1.0),
    "sm_clock_hz": ("clock, GHz", 1e9),
    "temperature_c": ("°C", 1.0),
}
"""Series → axis title and what it is divided by."""

THROTTLED, CLEAN = "throttled", "clean window"
BANDS = {THROTTLED: ("#E69F00", 0.35), CLEAN: ("#56B4E9", 0.16)}
BETWEEN_PANELS = 0.06


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


def power_kind(devices: Sequence[DeviceSeries]) -> ChartKind:
    """Return the kind of figure with the devices of one row at a time."""
    return ChartKind(
        "power",
        "Power, clocks, temperature",
        lambda *_: power_figure(devices) if devices else None,
        lambda _: conclude(devices),
        COLUMNS,
        lambda _: devices,
        lambda figure: legend(figure, dict.fromkeys(BANDS, "")),
        "The first launch of each row, start-up included.",
        "Needs an NVIDIA GPU; the processors' power is not measured.",
        choose=lambda _, figure: views(figure, "case", _names(devices)),
    )


def _names(devices: Sequence[DeviceSeries]) -> list[str]:
    return list(dict.fromkeys(map(place, devices)))


def power_figure(devices: Sequence[DeviceSeries]) -> go.Figure:
    """Draw power, clock and temperature under one another."""
    shown = [name for name in PANELS if any(name in one.series for one in devices)]
    figure, first = go.Figure(), _names(devices)[0]
    numbers: dict[str, int] = {}
    for one in devices:
        number = numbers[place(one)] = numbers.get(place(one), -1) + 1
        for panel, series in enumerate(shown):
            if series in one.series:
                figure.add_trace(_line(one, series, panel, number, place(one) == first))
        if number == 0:
            for trace in _bands(one, len(shown)):
                trace.visible = place(one) == first
                figure.add_trace(trace)
    tall = 150 * len(shown) + 70
    style(figure, "power", height=tall, hovermode="closest", margin={"t": 30})
    height = (1 - BETWEEN_PANELS * (len(shown) - 1)) / len(shown)
    for panel, series in enumerate(shown):
        top = 1 - panel * (height + BETWEEN_PANELS)
        span = [v / PANELS[series][1] for o in devices for _, v in o.series.get(series, ())]
        figure.update_layout(
            {
                "yaxis" if panel == 0 else f"yaxis{panel + 1}": {
                    "domain": [max(top - height, 0.0), top],
                    "title": {"text": PANELS[series][0]},
                    "range": [0, 1.08 * max(span)],
                    "automargin": True,
                }
            }
        )
    last = "y" if len(shown) == 1 else f"y{len(shown)}"
    figure.update_xaxes(title="s after the launch's first reading", anchor=last, automargin=True)
    return figure


def _line(one: DeviceSeries, series: str, panel: int, number: int, visible: bool) -> go.Scatter:
    color, scale = COLORS[number % len(COLORS)], PANELS[series][1]
    return go.Scatter(
        x=[round(t, 3) for t, _ in one.series[series]],
        y=[float(f"{v / scale:.5g}") for _, v in one.series[series]],
        yaxis="y" if panel == 0 else f"y{panel + 1}",
        mode="lines",
        line={"color": color, "width": 1.4, "dash": list(DASHES)[number % len(DASHES)]},
        visible=visible,
        meta=view_mark(place(one)),
        legendgroup=f"device {number}",
        hovertemplate=f"<b>{safe(one.device, 60)}</b><br>%{{x:.3g}} s: %{{y:.4g}}<extra></extra>",
    )


def _bands(one: DeviceSeries, panels: int) -> list[go.Scatter]:
    """Return the clean windows and the throttled stretches, over the whole height of a panel."""
    spans = {
        CLEAN: [(start, end, CLEAN) for start, end in one.windows],
        THROTTLED: [(t.start_s, t.end_s, ", ".join(t.reasons)) for t in one.throttled],
    }
    traces = []
    for name, found in spans.items():
        if not found:
            continue
        color, opacity = BANDS[name]
        top = 1.08 * max((v for _, v in one.series.get("power_w", ((0, 1.0),))), default=1.0)
        traces.append(
            go.Scatter(
                x=[x for start, end, _ in found for x in (start, start, end, end, None)],
                y=[y for _ in found for y in (0, top, top, 0, None)],
                mode="lines",
                line={"width": 0},
                fill="toself",
                fillcolor=color,
                opacity=opacity,
                meta=view_mark(place(one)),
                name=name,
                legendgroup=name,
                hoveron="fills",
                text=safe("; ".join(dict.fromkeys(text for *_, text in found)), 120),
                hoverinfo="text",
            )
        )
    return traces


def conclude(devices: Sequence[DeviceSeries]) -> str:
    """Say whether a device was throttled, or else how hot the hottest was."""
    held = [one for one in devices if one.throttled]
    if held:
        one = max(held, key=_throttled_s)
        return (
            f"{wording.plain(one.device, 60)} held its clock down for"
            f" {units.seconds(_throttled_s(one))} in {place(one)}:"
            f" {', '.join(dict.fromkeys(r for t in one.throttled for r in t.reasons))}."
        )
    return f"No device held its clock down in {len(_names(devices))} rows."


def _throttled_s(one: DeviceSeries) -> float:
    return sum(t.end_s - t.start_s for t in one.throttled)


def _reading(
    header: str, series: str, pick: Callable[[list[float]], float], unit: str
) -> Column[DeviceSeries]:
    def read(one: DeviceSeries) -> float | None:
        values = [v / PANELS[series][1] for _, v in one.series.get(series, ())]
        return pick(values) if values else None

    return value(header, read, lambda found: f"{found:.3g} {unit}")


COLUMNS: tuple[Column[DeviceSeries], ...] = (
    CASE,
    RANKS,
    Column("device", lambda one: wording.plain(one.device, 60)),
    _reading("mean power", "power_w", fmean, "W"),
    _reading("clock low", "sm_clock_hz", min, "GHz"),
    _reading("clock high", "sm_clock_hz", max, "GHz"),
    _reading("hottest", "temperature_c", max, "°C"),
    Column("throttled", lambda one: units.seconds(_throttled_s(one)) if one.throttled else "never"),
)


def _with_energy(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.energy_j_per_sample]


def _energy_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    known = _with_energy(rows)
    if not known:
        return None
    figure = go.Figure()
    for case, group in wording.by_case(known).items():
        points = [(row.world_size, row, row.energy_j_per_sample) for row in group]
        figure.add_trace(case_line(case, looks[case], points, 1.0, " J"))
    sizes = sorted({row.world_size for row in known})
    style(figure, "energy")
    figure.update_xaxes(
        title="N", type="log", tickvals=sizes, ticktext=[str(n) for n in sizes], automargin=True
    )
    figure.update_yaxes(title="J per sample", rangemode="tozero", automargin=True)
    return figure


def _conclude_energy(rows: Sequence[Row]) -> str:
    known = _with_energy(rows)
    largest = max(row.world_size for row in known)
    best = min(
        (row for row in known if row.world_size == largest),
        key=lambda r: r.energy_j_per_sample.value if r.energy_j_per_sample else 0.0,
    )
    assert best.energy_j_per_sample is not None
    return (
        f"On {wording.ranks(best)} {wording.plain(best.case, 64)} takes least,"
        f" {wording.plus_minus(best.energy_j_per_sample)} J per sample."
    )


ENERGY = ChartKind(
    "energy",
    "Energy per sample",
    _energy_figure,
    _conclude_energy,
    (
        CASE,
        RANKS,
        value(
            "energy per sample", lambda r: r.energy_j_per_sample, lambda e: f"{wording.point(e)} J"
        ),
        value(
            "95 % interval",
            lambda r: r.energy_j_per_sample,
            lambda e: wording.interval(e) or "none",
        ),
    ),
    _with_energy,
    legend,
)
