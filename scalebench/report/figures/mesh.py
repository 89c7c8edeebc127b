"""A mesh of ranks, one case at a time: ranks as cells, groups as lines, traffic as their width."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.steps import AxisFigures
from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, Choices, add_in_views, legend, views
from scalebench.report.figures.style import COLORS, NEUTRAL, style
from scalebench.report.tables.layout import Column, placed, value
from scalebench.report.words import notes, wording
from scalebench.report.words.wording import place

AXES = ("tensor", "shard", "data", "pipeline", "context", "expert", "replicas")
COLOR_OF = {axis: COLORS[number] for number, axis in enumerate(AXES)}
SEVERAL = COLORS[-1]
"""Of groups along several dimensions at once, or of some of the ranks along one."""

MOST_RANKS = 64
UNIT_PX = 90
GAP = 0.7
"""Between blocks of cells, in cells."""
BOW = 0.22
"""How far a line leaves the straight way, so that it does not run through other cells."""
THINNEST_PX, THICKEST_PX = 1.5, 9.0

Place = tuple[float, float]


def mesh_kind(rows: Sequence[Row]) -> ChartKind:
    """Return the kind of figure with the mesh of each row that has one of several dimensions."""
    found = [row for row in rows if _simple(row) and row.world_size <= MOST_RANKS]
    return ChartKind(
        "mesh",
        "The mesh",
        lambda *_: _draw(found) if found else None,
        lambda _: conclude(found[0]),
        COLUMNS,
        lambda _: [(row, axis) for row in found for axis in row.axes or ()],
        legend,
        "Each cell is a rank. A line joins the ranks of a group; the more a rank sends along it in"
        " a step, the thicker it is.",
        choose=lambda _, figure: _choose(figure, found),
    )


def _simple(row: Row) -> list[AxisFigures]:
    """Return the dimensions whose groups make up the mesh, the innermost first."""
    told = [one for one in row.axes or () if one.groups and one.num_ranks > 1 and one.axis in AXES]
    return sorted(told, key=lambda one: _stride((one.groups or [[0]])[0]))


def _stride(group: Sequence[int]) -> int:
    return group[1] - group[0] if len(group) > 1 else 0


def places(axes: Sequence[AxisFigures], world_size: int) -> dict[int, Place]:
    """Return where each rank is drawn: dimensions go right and down by turns, blocks in blocks.

    The innermost of ``axes`` is first.
    """
    at = {rank: [0.0, 0.0] for rank in range(world_size)}
    reach = [1.0, 1.0]
    for number, axis in enumerate(axes):
        way = number % 2
        for group in axis.groups or ():
            for index, rank in enumerate(group):
                if rank in at:
                    at[rank][way] += index * reach[way]
        reach[way] = reach[way] * axis.num_ranks + GAP
    return {rank: (x, y) for rank, (x, y) in at.items()}


def _draw(rows: Sequence[Row]) -> go.Figure:
    figure = go.Figure()
    add_in_views(figure, rows, place, _traces)
    style(figure, "mesh", height=_height(rows[0]), hovermode="closest", margin={"t": 30})
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    figure.update_xaxes(**hidden, range=_range(rows[0], 0))
    figure.update_yaxes(**hidden, range=_range(rows[0], 1)[::-1])
    return figure


def _traces(row: Row) -> Iterator[go.Scatter]:
    at = places(_simple(row), row.world_size)
    most = max((one.wire_bytes or 0.0 for one in row.axes or ()), default=0.0)
    for axis in row.axes or ():
        if axis.groups and axis.num_ranks > 1:
            yield _lines(axis, at, most)
    ranks = sorted(at)
    yield go.Scatter(
        x=[at[rank][0] for rank in ranks],
        y=[at[rank][1] for rank in ranks],
        mode="markers+text",
        text=[str(rank) for rank in ranks],
        marker={
            "symbol": "square",
            "size": 26,
            "color": "#FFFFFF",
            "line": {"color": NEUTRAL, "width": 1.5},
        },
        textfont={"color": "#222222"},
        hovertemplate="rank %{text}<extra></extra>",
        showlegend=False,
    )


def _lines(axis: AxisFigures, at: Mapping[int, Place], most: float) -> go.Scatter:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for group in axis.groups or ():
        for first, second in pairwise(group):
            (x0, y0), (x1, y1) = at[first], at[second]
            upright = x0 == x1
            bow = _bow(axis, max(abs(x1 - x0), abs(y1 - y0)))
            middle = (
                (x0 + x1) / 2 + (bow if upright else 0.0),
                (y0 + y1) / 2 + (0.0 if upright else bow),
            )
            xs += [x0, middle[0], x1, None]
            ys += [y0, middle[1], y1, None]
    name = wording.plain(axis.axis, 40)
    part = (axis.wire_bytes or 0.0) / most if most else 0.0
    sent = "not known" if axis.wire_bytes is None else units.bytes_(axis.wire_bytes)
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        name=name,
        legendgroup=name,
        line={
            "color": COLOR_OF.get(axis.axis, SEVERAL),
            "width": THINNEST_PX + (THICKEST_PX - THINNEST_PX) * part,
            "shape": "spline",
        },
        text=[f"axis {name}: a rank sends {sent} in a step"] * len(xs),
        hovertemplate="%{text}<extra></extra>",
    )


def _bow(axis: AxisFigures, reach: float) -> float:
    """Return how far a line leaves the straight way, to which side; neighbours need not."""
    if axis.axis not in AXES:
        return -BOW
    return BOW if reach > 1 else 0.0


def _range(row: Row, way: int) -> list[float]:
    ends = [at[way] for at in places(_simple(row), row.world_size).values()]
    return [min(ends) - 0.6, max(ends) + 0.6]


def _height(row: Row) -> int:
    low, high = _range(row, 1)
    return int(min(max(UNIT_PX * (high - low), 150), 600)) + 60


def _choose(figure: go.Figure, rows: Sequence[Row]) -> Choices | None:
    layouts = [
        {"height": _height(row), "xaxis.range": _range(row, 0), "yaxis.range": _range(row, 1)[::-1]}
        for row in rows
    ]
    return views(figure, "case", list(map(place, rows)), layouts)


def conclude(row: Row) -> str:
    """Say along which dimension most is sent, and where the time goes."""
    most = max(row.axes or (), key=lambda one: one.wire_bytes or 0.0)
    sent = units.bytes_(most.wire_bytes or 0.0)
    said = (
        f"In {place(row)}, a rank sends most along {wording.plain(most.axis, 40)}: {sent} a step."
    )
    lost = notes.axis_sentence(row)
    return f"{said} {lost}" if lost else said


COLUMNS: tuple[Column[tuple[Row, AxisFigures]], ...] = placed(
    Column("axis", lambda one: one.axis),
    Column(
        "groups of ranks", lambda one: "; ".join(", ".join(map(str, g)) for g in one.groups or ())
    ),
    value("sent", lambda one: one.wire_bytes, units.bytes_),
    Column("exposed", lambda one: units.seconds_or_zero(one.exposed_s or 0.0)),
)
