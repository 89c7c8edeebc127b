"""Figures whose bars lie in lanes: one lane for each row, under the name of its case."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from scalebench.records.summary import Row
from scalebench.report.figures.style import NEUTRAL, hover, lane_axis, safe
from scalebench.report.words.wording import case_key

LANE_PX = 30
HEADING = 1.05
BAR = 0.62
STEP = 0.85


def write_heading(figure: go.Figure, place: float, text: str) -> None:
    """Write a text at the left edge, in the middle of the lane at ``place``."""
    figure.add_annotation(
        x=0, xref="paper", xanchor="left", y=place, yanchor="middle", showarrow=False,
        text=text, font={"size": 13}, bgcolor="#ffffff", borderpad=2,
    )  # fmt: skip


def texts_behind(ends: Sequence[float], places: Sequence[float], text: Sequence[str]) -> go.Scatter:
    """Write a text behind the end of each bar."""
    return go.Scatter(
        x=list(ends), y=list(places), text=list(text), mode="text", textposition="middle right",
        textfont={"size": 13}, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip


def bars(
    name: str,
    color: str,
    lengths: Iterable[float],
    places: Sequence[float],
    texts: Iterable[str],
    marker: Mapping[str, Any] | None = None,
    **more: Any,
) -> go.Bar:
    """Return a bar in every lane."""
    edge = {"color": NEUTRAL, "width": 0.7}
    return go.Bar(
        x=list(lengths), y=list(places), name=name, orientation="h", width=BAR,
        marker={"color": color, "line": edge} | dict(marker or {}), **hover(texts), **more,
    )  # fmt: skip


def diamonds(
    name: str, color: str, ends: Iterable[float], places: Iterable[float], texts: Iterable[str]
) -> go.Scatter:
    """Return a mark in every lane; arguments as for `bars`."""
    return go.Scatter(
        x=list(ends), y=list(places), name=name, mode="markers", cliponaxis=False,
        marker={"symbol": "diamond", "size": 11, "color": color}, **hover(texts),
    )  # fmt: skip


@dataclass(frozen=True)
class Lanes:
    """Where the rows of a figure lie, from the top; in lanes.

    Attributes:
        rows: The rows, cases together.
        places: Middle of each row's bar.
        headings: Middle of each case's name, and the case.
        bottom: The lower edge.
    """

    rows: tuple[Row, ...]
    places: tuple[float, ...]
    headings: tuple[tuple[float, str], ...]
    bottom: float

    def draw(self, figure: go.Figure) -> None:
        """Write the cases and the sizes, and make the figure as high as its lanes need."""
        for place, case in self.headings:
            write_heading(figure, place, f"<b>{safe(case, 40)}</b>")
        figure.update_layout(
            barmode="relative",
            height=int(self.bottom * LANE_PX + 96),
            hovermode="closest",
            margin={"t": 8},
        )
        sizes = [f"N={row.world_size}" for row in self.rows]
        lane_axis(figure, list(zip(self.places, sizes, strict=True)), self.bottom)


def lay(rows: Sequence[Row]) -> Lanes:
    """Place rows under each other, their case above them."""
    places: list[float] = []
    headings: list[tuple[float, str]] = []
    place, previous = 0.0, None
    for row in rows:
        if case_key(row) != previous:
            headings.append((place + HEADING / 2, row.case))
            place += HEADING
            previous = case_key(row)
        places.append(place + 0.5 * BAR)
        place += STEP
    return Lanes(tuple(rows), tuple(places), tuple(headings), place + 0.1)
