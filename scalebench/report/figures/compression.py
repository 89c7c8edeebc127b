"""Compression: what is sent against what it does to the loss, and where it begins to pay."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.strategies import LossComparison
from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, lay, legend
from scalebench.report.figures.style import (
    NEUTRAL,
    Looks,
    hover,
    row_name,
    safe,
    step_text,
    style,
    whiskers,
    wide_axis,
)
from scalebench.report.tables import compression
from scalebench.report.tables.layout import CASE, RANKS, Column, value, value_of_each
from scalebench.report.words import wording

LINK = "this link"
BITS = 8


def shown(rows: Sequence[Row]) -> list[Row]:
    """Return the compressing rows of the largest size that is not oversubscribed, with a loss."""
    known = [r for r in compression.compressed(rows) if _known_losses(r) and r.step_s is not None]
    known = [r for r in known if not r.oversubscribed] or known
    largest = max((row.world_size for row in known), default=0)
    return [row for row in known if row.world_size == largest]


def _known_losses(row: Row) -> LossComparison | None:
    return row.compression.losses if row.compression else None


def _losses(row: Row) -> LossComparison:
    """Return the losses of a row that is drawn; see `shown`."""
    found = _known_losses(row)
    assert found is not None
    return found


def _payload_bytes(row: Row) -> int:
    return row.compression.payload_bytes if row.compression else 0


def _scatter(
    rows: Sequence[Row], looks: Looks, place: Callable[[Row], tuple[float, float]]
) -> go.Figure:
    figure = go.Figure()
    for row in rows:
        look = looks[wording.case_key(row)]
        x, y = place(row)
        figure.add_trace(
            go.Scatter(
                x=[x],
                y=[y],
                mode="markers",
                name=safe(row.case, 64),
                legendgroup=safe(f"{row.suite}/{row.case}", 200),
                marker={
                    "symbol": look.hollow if compression.is_bound(row) else look.symbol,
                    "size": 12, "color": look.color, "line": {"width": 2, "color": look.color},
                },
                **hover([_text(row)]),
            )
        )  # fmt: skip
    figure.update_layout(hovermode="closest")
    return figure


def _text(row: Row) -> str:
    losses = _losses(row)
    return (
        f"{row_name(row)}<br>"
        f"{units.bytes_(_payload_bytes(row))} per rank and step, step {step_text(row)}<br>"
        f"loss {losses.loss_after_steps:.4g} after {losses.equal_steps} steps,"
        f" {losses.loss_after_s:.4g} after {units.seconds(losses.equal_s)}"
    )


def _bytes_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    drawn = [row for row in shown(rows) if not compression.is_bound(row)]
    if len(drawn) < 2:
        return None
    figure = _scatter(
        drawn, looks, lambda r: (_payload_bytes(r) / 1e6, _losses(r).loss_after_steps)
    )
    style(figure, "bytes-loss")
    sent = [_payload_bytes(row) / 1e6 for row in drawn]
    figure.update_xaxes(title="MB per rank and step", automargin=True, **wide_axis(sent))
    figure.update_yaxes(title=f"loss after {_losses(drawn[0]).equal_steps} steps", automargin=True)
    return figure


def _conclude_bytes(rows: Sequence[Row]) -> str:
    drawn = [row for row in shown(rows) if not compression.is_bound(row)]
    least = min(drawn, key=_payload_bytes)
    losses = _losses(least)
    return (
        f"{wording.plain(least.case, 64)} sends least,"
        f" {units.bytes_(_payload_bytes(least))} per step; after"
        f" {losses.equal_steps} steps its loss is {losses.loss_after_steps:.4g}, with the"
        f" exact all-reduce {losses.loss_of_none_after_steps:.4g}."
    )


def _time_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    drawn = shown(rows)
    if len(drawn) < 2:
        return None
    figure = _scatter(
        drawn,
        looks,
        lambda r: (1e3 * (r.step_s.value if r.step_s else 0.0), _losses(r).loss_after_s),
    )
    style(figure, "time-loss")
    figure.update_xaxes(title="ms per step", rangemode="tozero", automargin=True)
    equal = units.seconds(_losses(drawn[0]).equal_s)
    figure.update_yaxes(title=f"loss after {equal} of training", automargin=True)
    return figure


def _conclude_time(rows: Sequence[Row]) -> str:
    drawn = [row for row in shown(rows) if not compression.is_bound(row)] or shown(rows)
    best = min(drawn, key=lambda row: _losses(row).loss_after_s)
    losses = _losses(best)
    began = f"After {units.seconds(losses.equal_s)} of training"
    chance = "One run, so small differences are chance."
    if losses.loss_after_s == losses.loss_of_none_after_s:
        lowest = f"the exact all-reduce has the lowest loss, {losses.loss_after_s:.4g}"
        return f"{began} {lowest}. {chance}"
    return (
        f"{began} {wording.plain(best.case, 64)} has the lowest loss, {losses.loss_after_s:.4g};"
        f" the exact all-reduce has {losses.loss_of_none_after_s:.4g}. {chance}"
    )


_COLUMNS: tuple[Column[Row], ...] = (
    CASE,
    RANKS,
    Column("sent per step", lambda row: units.bytes_(_payload_bytes(row))),
    value("step", lambda row: row.step_s, lambda found: units.seconds(found.value)),
    Column("loss after equal steps", lambda row: f"{_losses(row).loss_after_steps:.4g}"),
    Column("after equal time", lambda row: f"{_losses(row).loss_after_s:.4g}"),
    Column("time to the exact loss", lambda row: _to_target(_losses(row).time_to_target_s)),
)


def _to_target(seconds: float | None) -> str:
    return "not reached" if seconds is None else units.seconds(seconds)


def _break_even(row: Row) -> tuple[float, float, float] | None:
    """Return break-even bandwidth and its ends, bit/s; None: unknown, or it never pays."""
    found = compression.break_even_of(row)
    if found is None or found.value <= 0:
        return None
    ends = (found.value, found.low or found.value, found.high or found.value)
    most, low, high = (BITS * max(end, 1.0) for end in ends)
    return most, low, high


def _lines(rows: Sequence[Row]) -> list[Row]:
    methods = [row for row in compression.compressed(rows) if not compression.is_bound(row)]
    known = [row for row in methods if _break_even(row)]
    largest = max((row.world_size for row in known if not row.oversubscribed), default=None)
    return [row for row in known if largest is None or row.world_size == largest]


def _break_even_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    drawn = _lines(rows)
    if not drawn:
        return None
    placed, figure = lay(drawn), go.Figure()
    for y, row in zip(placed.places, drawn, strict=True):
        most, low, high = _break_even(row) or (0.0, 0.0, 0.0)
        look = looks[wording.case_key(row)]
        figure.add_trace(
            go.Scatter(
                x=[most / 1e6],
                y=[y],
                error_x=whiskers([(most / 1e6, low / 1e6, high / 1e6)], look.color, 1.6, 5),
                mode="markers",
                marker={"symbol": look.symbol, "size": 10, "color": look.color},
                **hover([
                    f"{row_name(row)}<br>pays below"
                    f" {units.bit_rate(most)} ({units.bit_rate(low)} to {units.bit_rate(high)})"
                ]),
            )
        )  # fmt: skip
    link = compression.link_of(drawn[0], rows)
    if link is not None:
        figure.add_trace(
            go.Scatter(
                x=[link / 1e6] * 2, y=[0.1, placed.bottom], mode="lines", name=LINK,
                line={"color": NEUTRAL, "width": 1.6, "dash": "dot"},
                hovertemplate=f"{LINK}: {units.bit_rate(link)}<extra></extra>",
            )
        )  # fmt: skip
    style(figure, "break-even")
    placed.draw(figure)
    ends = [end / 1e6 for row in drawn for end in _break_even(row) or ()]
    ends += [] if link is None else [link / 1e6]
    figure.update_xaxes(
        title="bandwidth of a rank's link, Mbit/s", automargin=True, **wide_axis(ends)
    )
    return figure


def _conclude_break_even(rows: Sequence[Row]) -> str:
    drawn = _lines(rows)
    best = max(drawn, key=lambda row: (_break_even(row) or (0.0,))[0])
    below, _, _ = _break_even(best) or (0.0, 0.0, 0.0)
    said = f"{wording.plain(best.case, 64)} pays below {units.bit_rate(below)}"
    most = ", the most of all methods" if len(drawn) > 1 else ""
    link = compression.link_of(best, rows)
    gives = "" if link is None else f"; this link gives {units.bit_rate(link)}"
    return f"{said}{most}{gives}."


COMPRESSION = (
    ChartKind(
        "bytes-loss",
        "Bytes against loss",
        _bytes_figure,
        _conclude_bytes,
        _COLUMNS,
        shown,
        legend,
        "Left and low is better.",
    ),
    ChartKind(
        "time-loss",
        "Time against loss",
        _time_figure,
        _conclude_time,
        _COLUMNS,
        shown,
        legend,
        "Left and low is better. Hollow: nothing is communicated, the bound of any method.",
    ),
    ChartKind(
        "break-even",
        "Break-even bandwidth",
        _break_even_figure,
        _conclude_break_even,
        (
            CASE,
            RANKS,
            *value_of_each(
                {0: "pays below", 1: "low", 2: "high"},
                lambda row, end: (_break_even(row) or (0.0, 0.0, 0.0))[end],
                units.bit_rate,
            ),
        ),
        _lines,
        legend,
        "Serial limit, 95 % intervals: on links slower than its mark a method wins.",
    ),
)
"""The figures of compressed training."""
