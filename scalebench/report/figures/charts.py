"""A figure as the page shows it: conclusion, key, text and table; and bars that lie in lanes."""

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import plotly.graph_objects as go

from scalebench.grouping import by_key
from scalebench.records.summary import Row
from scalebench.report.figures import style
from scalebench.report.figures.style import AREA, DASHES, NEUTRAL, SYMBOLS, hover, lane_axis, safe
from scalebench.report.tables.layout import Column, cells, names
from scalebench.report.words import wording
from scalebench.report.words.wording import case_key

LANE_PX = 30
HEADING = 1.05
BAR = 0.62
STEP = 0.85
EVERY_VIEW = "in every view"
"""The ``meta`` of a trace that all views of a figure have."""

Item = TypeVar("Item")
_JSON_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


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


@dataclass(frozen=True)
class KeyEntry:
    """One entry of a chart's key.

    Attributes:
        traces: Indices of the traces that it shows and hides, joined by commas.
        path: The marker as an SVG path.
        dash: SVG dash array of the line; None: no line.
        hollow: The marker is an outline.
        meaning: One line that explains the entry; empty: the name is enough.
        shown: Whether its traces are drawn before anybody has asked for them.
    """

    name: str
    color: str
    path: str
    dash: str | None
    traces: str
    hollow: bool = False
    meaning: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Choice:
    """One of several views of a figure, of which the first is shown at first.

    Attributes:
        traces: Indices of the traces that belong to the view, joined by commas; empty: all.
        layout: Changes of plotly's layout as JSON that is safe inside an attribute.
        height: Pixels; None: no other than before.
    """

    name: str
    traces: str = ""
    layout: str = "{}"
    height: int | None = None


@dataclass(frozen=True)
class Choices:
    """The views of a figure, under a label."""

    label: str
    views: tuple[Choice, ...]


@dataclass(frozen=True)
class Chart:
    """One figure on the page.

    Attributes:
        spec: plotly data and layout as JSON that is safe inside a script element.
        label: Text alternative.
        height: Pixels.
        remarks: What has to be known of these rows to read it.
        choices: Views of it to choose from; None: there is one.
    """

    id: str
    suite: str
    conclusion: str
    label: str
    spec: str
    height: int
    key: tuple[KeyEntry, ...]
    header: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()
    choices: Choices | None = None
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class ChartKind:
    """How one kind of figure is made for a suite: a plot, a sentence, a table.

    Attributes:
        draw: Returns None where there is nothing to draw; nothing else is asked for then.
        absent: How to get what there is nothing of.
    """

    name: str
    title: str
    draw: Callable[[Sequence[Row], style.Looks], go.Figure | None]
    conclude: Callable[[Sequence[Row]], str | None]
    columns: Sequence[Column[Any]]
    lines: Callable[[Sequence[Row]], Sequence[Any]]
    key: Callable[[go.Figure], tuple[KeyEntry, ...]] | None = None
    note: str = ""
    absent: str = ""
    remark: Callable[[Sequence[Row]], list[str]] | None = None
    choose: Callable[[Sequence[Row], go.Figure], Choices | None] | None = None


def json_for_script(text: str) -> str:
    """Return JSON that cannot end, or hide the end of, the script element around it."""
    return text.translate(_JSON_ESCAPES)


def make_chart(
    kind: ChartKind, chart_id: str, rows: Sequence[Row], looks: style.Looks
) -> Chart | None:
    """Make one kind of chart for the rows of a suite, or None when it would be empty."""
    figure = kind.draw(rows, looks)
    if figure is None:
        return None
    conclusion = kind.conclude(rows) or ""
    suite = wording.plain(rows[0].suite, 64) if rows else "links"
    return Chart(
        id=chart_id,
        suite=suite,
        conclusion=conclusion,
        label=f"{kind.title}, {suite}: {conclusion} The numbers are in the table below.",
        spec=plot_json(figure),
        height=int(figure.layout.height),
        key=kind.key(figure) if kind.key else (),
        header=names(kind.columns),
        table=tuple(cells(kind.columns, line) for line in kind.lines(rows)),
        remarks=tuple(kind.remark(rows)) if kind.remark else (),
        choices=kind.choose(rows, figure) if kind.choose else None,
        title=kind.title,
        note=kind.note,
    )


def plot_json(figure: go.Figure) -> str:
    """Return a figure as plotly's JSON that is safe inside a script element."""
    plot: dict[str, Any] = figure.to_plotly_json()
    plot["layout"].pop("template", None)
    plot["layout"] = style.with_style(plot["layout"])
    return json_for_script(json.dumps(plot, separators=(",", ":"), allow_nan=False))


def legend(figure: go.Figure, meanings: Mapping[str, str] | None = None) -> tuple[KeyEntry, ...]:
    """Return the key that the traces' ``name`` and ``legendgroup`` ask for.

    Each group is one entry, under the first name in it; without a name it has none.

    Args:
        figure: Its traces are looked at as they are drawn.
        meanings: Name → a line that explains it, in the order of the entries; those without one
            stay in the order of the traces.
    """
    groups = by_key(
        (trace.legendgroup or trace.name, index)
        for index, trace in enumerate(figure.data)
        if trace.x
    )
    entries = []
    for group in groups.values():
        traces = [figure.data[index] for index in group]
        named = next((trace for trace in traces if trace.name), None)
        if named is not None:
            name, members = html.unescape(named.name), ",".join(map(str, group))
            meaning = (meanings or {}).get(name, "")
            sample = _sample(named, traces)
            entries.append(KeyEntry(name=name, traces=members, meaning=meaning, **sample))
    place = {name: index for index, name in enumerate(meanings or ())}
    return tuple(sorted(entries, key=lambda entry: place.get(entry.name, 0)))


def _sample(named: Any, traces: Sequence[Any]) -> dict[str, Any]:
    """Return how an entry looks: as the trace that names it, with the first marker among all."""
    if named.type == "bar" or named.fill:
        color = named.marker.color if named.type == "bar" else named.fillcolor
        return {"color": color, "path": AREA, "dash": None}
    has_line = "lines" in named.mode
    symbols = [trace.marker.symbol for trace in traces if "markers" in trace.mode]
    firsts = [symbol if isinstance(symbol, str) else symbol[0] for symbol in symbols]
    known = [first for one in firsts if (first := one.removesuffix("-open")) in SYMBOLS]
    return {
        "color": named.line.color if has_line else named.marker.color,
        "path": SYMBOLS[known[0]] if known else "",
        "dash": DASHES[named.line.dash or "solid"] if has_line else None,
        "hollow": not has_line and str(named.marker.symbol).endswith("-open"),
    }


def view_mark(name: str) -> str:
    """Return the ``meta`` of the traces that belong to the view of this name."""
    return style.safe(name, 200)


def add_in_views(
    figure: go.Figure,
    items: Sequence[Item],
    name: Callable[[Item], str],
    traces: Callable[[Item], Iterable[Any]],
) -> None:
    """Add the traces of every item as a view of this name; only the first is visible."""
    for index, item in enumerate(items):
        for trace in traces(item):
            figure.add_trace(trace.update(visible=index == 0, meta=view_mark(name(item))))


def views(
    figure: go.Figure,
    label: str,
    names: Sequence[str],
    layouts: Sequence[dict[str, Any]] | None = None,
) -> Choices | None:
    """Return a view for each name, of the traces that have its mark; None without a name.

    Of a single one there is nothing to choose; its name says what the figure is about.

    The first of ``names`` is shown at first; ``layouts`` are changes of plotly's layout.
    """
    if not names:
        return None
    found = [
        Choice(
            name,
            ",".join(
                str(i) for i, t in enumerate(figure.data) if t.meta in (view_mark(name), EVERY_VIEW)
            ),
            json.dumps(layout),
            layout.get("height"),
        )
        for name, layout in zip(names, layouts or [{}] * len(names), strict=True)
    ]
    return Choices(label, tuple(found))
