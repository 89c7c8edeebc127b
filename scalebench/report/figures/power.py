"""Power, clocks and temperature of a row's devices over one launch; energy per sample over N."""

from collections.abc import Callable, Sequence
from statistics import fmean

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data.telemetry import DeviceSeries
from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, legend, view_mark, views
from scalebench.report.figures.scaling import case_line
from scalebench.report.figures.style import COLORS, DASHES, Looks, safe, style
from scalebench.report.tables.layout import CASE, RANKS, Column, value
from scalebench.report.words import wording
from scalebench.report.words.wording import place

PANELS = {
    "power_w": ("power, W", 1.0),
    "sm_clock_hz": ("clock, GHz", 1e9),
    "temperature_c": ("°C", 1.0),
}
"""Series → axis title and what it is divided by."""

THROTTLED, CLEAN = "throttled", "clean window"
BANDS = {THROTTLED: ("#E69F00", 0.35), CLEAN: ("#56B4E9", 0.16)}
GAP = 0.06


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
    height = (1 - GAP * (len(shown) - 1)) / len(shown)
    for panel, series in enumerate(shown):
        top = 1 - panel * (height + GAP)
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
