"""The calibrated link: bus bandwidth over message size with the fitted line, and what is left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import plotly.graph_objects as go

from scalebench import units
from scalebench.costmodel.links.fitted import LinkFit, Regime
from scalebench.costmodel.links.laws import busbw_factor
from scalebench.costmodel.links.profile import CalibratedPoint, LinkProfile
from scalebench.report.figures.charts import ChartKind, KeyEntry, legend
from scalebench.report.figures.style import (
    COLORS,
    DASHES,
    SYMBOLS,
    hover,
    reference_line,
    safe,
    style,
)
from scalebench.report.tables.layout import Column, PlainTable, value
from scalebench.report.words import wording
from scalebench.spec.base import BACKEND, EITHER_PLACE

POINTS = 80
EDGE = 0.09
"""Of the axis, kept free on both sides for the outermost labels."""

MOST_DRAWN = 10
"""Sweeps that a figure can hold; of more, only the usual ones are drawn at first."""

RATE = "the link's set rate"


@dataclass(frozen=True)
class Sweep:
    """The points of one operation at one N, with their fit.

    Attributes:
        among: All fits next to it: what tells it from them is in its name.
    """

    fit: LinkFit
    points: tuple[CalibratedPoint, ...]
    among: tuple[LinkFit, ...] = ()

    @property
    def name(self) -> str:
        """``"all_reduce, N=2"``, and dtype, algorithm and place where there are others."""
        fit = self.fit
        same = [f for f in self.among if (f.op, f.world_size) == (fit.op, fit.world_size)]
        parts = [wording.plain(fit.op, 40), f"N={fit.world_size}"]
        parts += [
            wording.plain(_word(name, getattr(fit, name)), 40)
            for name in ("dtype", "algorithm", "in_place", "link")
            if len({getattr(other, name) for other in same}) > 1
        ]
        return ", ".join(parts)

    @property
    def factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return busbw_factor(self.fit.op, self.fit.world_size)

    @property
    def largest(self) -> CalibratedPoint:
        """The point of the largest message."""
        return max(self.points, key=lambda point: point.size_bytes)


def sweeps(profile: LinkProfile) -> list[Sweep]:
    """Return the fitted sweeps whose bus bandwidth is defined."""
    found = []
    for fit in profile.fits:
        points = [p for p in profile.points if p.busbw_byte_per_s and _belongs(p, fit)]
        if points:
            found.append(Sweep(fit, tuple(sorted(points, key=lambda p: p.size_bytes))))
    among = tuple(sweep.fit for sweep in found)
    return [replace(sweep, among=among) for sweep in found]


def _word(name: str, value: object) -> str:
    if name == "in_place":
        return "in place" if value else "out of place"
    return str(value)


def _belongs(point: CalibratedPoint, fit: LinkFit) -> bool:
    names = ("op", "world_size", "dtype", "algorithm", "in_place", "link")
    return all(getattr(point, name) == getattr(fit, name) for name in names)


def link_kind(profile: LinkProfile, rate_bit_per_s: float | None) -> ChartKind:
    """Return the kind of figure of a calibrated link.

    At least one sweep of ``profile`` is fitted; ``rate_bit_per_s``: what the link was set to, if it
    was.
    """
    found = sweeps(profile)
    rate = None if rate_bit_per_s is None else rate_bit_per_s / 8
    return ChartKind(
        "busbw",
        "Bus bandwidth of the link",
        lambda *_: _busbw(found, rate),
        lambda _: _conclude(found, rate),
        COLUMNS,
        lambda _: [(sweep, point) for sweep in found for point in sweep.points],
        _key,
        "Bus bandwidth as nccl-tests defines it; lines: the fitted α–β law.",
    )


def _key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    """Return the key; what is not drawn at first is offered."""
    return tuple(
        replace(
            entry,
            shown=any(figure.data[int(i)].visible is not False for i in entry.traces.split(",")),
        )
        for entry in legend(figure)
    )


def _hide_all_but_usual(figure: go.Figure, found: Sequence[Sweep]) -> None:
    """Draw no more than the backend's operations at the largest N, where there are many sweeps."""
    if len(found) <= MOST_DRAWN:
        return
    largest = max(sweep.fit.world_size for sweep in found)
    usual = {
        sweep.name
        for sweep in found
        if sweep.fit.world_size == largest
        and sweep.fit.algorithm == BACKEND
        and not (sweep.fit.in_place and sweep.fit.op in EITHER_PLACE)
    }
    for trace in figure.data:
        if trace.legendgroup and trace.legendgroup not in usual:
            trace.visible = False


def _busbw(found: Sequence[Sweep], rate: float | None) -> go.Figure:
    figure = go.Figure()
    for place, sweep in enumerate(found):
        color, symbol = _look(place)
        size = np.geomspace(sweep.points[0].size_bytes, sweep.largest.size_bytes, POINTS)
        fitted = [sweep.factor * s / sweep.fit.predict(float(s)).time_s for s in size]
        figure.add_trace(
            go.Scatter(
                x=[round(float(s)) for s in size],
                y=[float(f"{f / 1e6:.5g}") for f in fitted],
                mode="lines",
                line={"color": color, "width": 1.6, "dash": list(DASHES)[place % 4]},
                name=safe(sweep.name, 200),
                legendgroup=sweep.name,
                hoverinfo="skip",
            )
        )
        figure.add_trace(_points(sweep, color, symbol))
    _hide_all_but_usual(figure, found)
    if rate is not None:
        figure.add_trace(reference_line(_sizes(found), [rate / 1e6] * 2, RATE, width=1.4))
    style(figure, "busbw")
    _sizes_axis(figure, found)
    figure.update_yaxes(title="bus bandwidth, MB/s", rangemode="tozero", automargin=True)
    return figure


def _points(sweep: Sweep, color: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=[p.size_bytes for p in sweep.points],
        y=[(p.busbw_byte_per_s or 0.0) / 1e6 for p in sweep.points],
        error_y={
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": color,
            "array": [_band(sweep, p, p.low_s) for p in sweep.points],
            "arrayminus": [-_band(sweep, p, p.high_s) for p in sweep.points],
        },
        mode="markers",
        legendgroup=sweep.name,
        marker={"symbol": symbol, "size": 8, "color": color},
        **hover(_text(sweep, p) for p in sweep.points),
    )  # fmt: skip


def _band(sweep: Sweep, point: CalibratedPoint, end_s: float | None) -> float:
    """Return how far the interval's end lies from the point's bandwidth, MB/s."""
    if end_s is None:
        return 0.0
    return (sweep.factor * point.size_bytes / end_s - (point.busbw_byte_per_s or 0.0)) / 1e6


def _sizes_axis(figure: go.Figure, found: Sequence[Sweep]) -> None:
    sizes = sorted({p.size_bytes for s in found for p in s.points})
    ticks = [sizes[int(i)] for i in np.linspace(0, len(sizes) - 1, min(len(sizes), 4)).round()]
    figure.update_layout(hovermode="closest")
    ends = np.log10([sizes[0], sizes[-1]])
    room = EDGE * (ends[1] - ends[0])
    figure.update_xaxes(
        title="message size",
        type="log",
        range=[float(ends[0] - room), float(ends[1] + room)],
        tickvals=ticks,
        ticktext=[units.bytes_(t) for t in ticks],
        automargin=True,
    )


def _sizes(found: Sequence[Sweep]) -> list[int]:
    """Return the smallest and the largest size."""
    return [
        min(sweep.points[0].size_bytes for sweep in found),
        max(sweep.largest.size_bytes for sweep in found),
    ]


def _look(place: int) -> tuple[str, str]:
    symbols = list(SYMBOLS)
    return COLORS[place % len(COLORS)], symbols[place % len(symbols)]


def residual(sweep: Sweep, point: CalibratedPoint) -> float:
    """Return measured over fitted time, minus 1."""
    return point.time_s / sweep.fit.predict(point.size_bytes).time_s - 1


def _text(sweep: Sweep, point: CalibratedPoint) -> str:
    return (
        f"<b>{safe(sweep.name, 60)}</b>, {units.bytes_(point.size_bytes)}<br>"
        f"{units.seconds(point.time_s)}, busbw {_rate(point.busbw_byte_per_s or 0.0)}<br>"
        f"measured over fitted {wording.signed(100 * residual(sweep, point))} %"
    )


def _rate(byte_per_s: float) -> str:
    return f"{units.bytes_(byte_per_s)}/s"


def _conclude(found: Sequence[Sweep], rate: float | None) -> str:
    fastest = max(found, key=lambda sweep: sweep.largest.busbw_byte_per_s or 0.0)
    busbw = fastest.largest.busbw_byte_per_s or 0.0
    of_rate = "" if rate is None else f", {units.percent(busbw / rate)} of {_rate(rate)}"
    return (
        f"The largest message moves fastest in {fastest.name}: {_rate(busbw)} of bus bandwidth"
        f"{of_rate}."
    )


COLUMNS: tuple[Column[tuple[Sweep, CalibratedPoint]], ...] = (
    Column("operation", lambda of: wording.plain(of[0].fit.op, 40)),
    Column("N", lambda of: str(of[0].fit.world_size)),
    Column("size", lambda of: units.bytes_(of[1].size_bytes)),
    Column("time", lambda of: units.seconds(of[1].time_s)),
    Column("busbw", lambda of: _rate(of[1].busbw_byte_per_s or 0.0)),
    Column("fitted", lambda of: units.seconds(of[0].fit.predict(of[1].size_bytes).time_s)),
    Column("measured over fitted", lambda of: f"{wording.signed(100 * residual(*of))} %"),
)


def _bandwidth_interval(regime: Regime) -> str:
    low, high = regime.bandwidth_low_byte_per_s, regime.bandwidth_high_byte_per_s
    return wording.DASH if not low or not high else f"{_rate(low)} to {_rate(high)}"


def _span(write: Callable[[float], str], low: float, high: float) -> str:
    return f"{write(low)} to {write(high)}"


FITS: tuple[Column[tuple[LinkFit, Regime]], ...] = (
    Column("operation", lambda of: wording.plain(of[0].op, 40), numeric=False),
    Column("N", lambda of: str(of[0].world_size)),
    Column(
        "sizes", lambda of: _span(units.bytes_, of[1].min_bytes, of[1].max_bytes), numeric=False
    ),
    Column("α", lambda of: units.seconds(of[1].alpha_s)),
    Column("interval", lambda of: _span(units.seconds, of[1].alpha_low_s, of[1].alpha_high_s)),
    value("B", lambda of: of[1].bandwidth_byte_per_s, _rate),
    Column("interval", lambda of: _bandwidth_interval(of[1])),
    Column("off", lambda of: units.percent(of[1].error_ratio)),
    Column("law", lambda of: wording.plain(of[0].law, 40), numeric=False),
)


def fit_table(profile: LinkProfile) -> PlainTable:
    """Return α, B and their intervals of every fitted range of sizes."""
    return PlainTable.of(
        "The fitted link",
        "Latency α and bandwidth B of the law named, 95 % intervals; off: of measured times.",
        FITS,
        [(fit, regime) for fit in profile.fits for regime in fit.regimes],
        folded=True,
    )
