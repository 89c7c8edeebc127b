"""The loss budget as a waterfall: from the ideal step to the measured one, in ms and in points.

One row at a time; the bars of the parts hang one below the other, so that their labels have room
at any width.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench.report import budget_figure, causes, wording
from scalebench.report.attributed import NEGLIGIBLE, PARTS, RESIDUAL, Budget, Part, budgeted
from scalebench.report.charts import Choices, view_mark, views
from scalebench.report.figure_style import Looks, safe, style
from scalebench.report.palette import NEUTRAL, PART_COLORS
from scalebench.summary import Row

BAR_PX = 34
BAR = 0.66
ROOM = 0.42
"""Of the longest bar, kept free behind the bars for the numbers."""

Accounted = list[tuple[Row, Budget]]


def waterfall_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw the budget of every row as a view of its own; None without any budget."""
    accounted = in_order(rows)
    if not accounted:
        return None
    parts = budget_figure.drawn_parts(rows)
    names = ["ideal", *(part.header for part in parts), "measured"]
    figure = go.Figure()
    for index, (row, budget) in enumerate(accounted):
        figure.add_traces(_bars(row, budget, parts, visible=index == 0))
    style(figure, "waterfall")
    reach = max(_reach(budget, parts) for _, budget in accounted[:1])
    figure.update_layout(
        height=len(names) * BAR_PX + 84, hovermode="closest", margin={"t": 30}, bargap=0
    )
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=names,
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        automargin=True,
    )
    figure.update_xaxes(title="ms per step", range=[0, reach * (1 + ROOM)], automargin=True)
    return figure


def in_order(rows: Sequence[Row]) -> Accounted:
    """Return the rows with a budget, several ranks first, the largest gap first."""
    found = [pair for pair in budgeted(rows) if pair[0].world_size > 1] or budgeted(rows)
    return sorted(found, key=lambda pair: (pair[0].oversubscribed, -pair[1].gap))


def _bars(row: Row, budget: Budget, parts: Sequence[Part], visible: bool) -> list[go.Bar]:
    base, lengths, colors, texts = [0.0], [1e3 * budget.ideal_s], [NEUTRAL], []
    end, hatched, hovers = 1e3 * budget.ideal_s, [False], [f"ideal: {_ms(budget.ideal_s)}"]
    texts.append(f" {_ms(budget.ideal_s)} · {causes.points(budget.ideal)}")
    for part in parts:
        length = 1e3 * budget.share(part) * budget.measured_s
        base.append(end + min(length, 0.0))
        lengths.append(abs(length))
        end += length
        colors.append(PART_COLORS[part.key])
        known = budget.knows(part)
        doubt = known and part is not RESIDUAL and not causes.certain(row, budget, part)
        visible_part = abs(budget.share(part)) >= NEGLIGIBLE
        hatched.append(doubt and visible_part)
        texts.append(_told(part, budget, doubt and visible_part) if known else " with transfer")
        hovers.append(f"{part.header}: {budget_figure.told(part, row, budget)}")
    base.append(0.0)
    lengths.append(1e3 * budget.measured_s)
    colors.append("#5b6570")
    hatched.append(False)
    texts.append(f" {_ms(budget.measured_s)} · 100")
    hovers.append(f"measured: {_ms(budget.measured_s)}")
    name = view_name(row)
    return [
        go.Bar(
            x=[round(length, 6) for length in lengths],
            base=[round(start, 6) for start in base],
            y=list(range(len(base))),
            orientation="h",
            width=BAR,
            meta=view_mark(name),
            visible=visible,
            text=texts,
            textposition="outside",
            textfont={"size": 13},
            cliponaxis=False,
            customdata=[[f"<b>{safe(name, 90)}</b><br>{hover}"] for hover in hovers],
            hovertemplate="%{customdata[0]}<extra></extra>",
            marker={
                "color": colors,
                "pattern": {
                    "shape": ["/" if one else "" for one in hatched],
                    "fgcolor": "#3c4650", "fgopacity": 0.55, "size": 6, "solidity": 0.18,
                    "fillmode": "overlay",
                },
            },
        )
    ]  # fmt: skip


def _told(part: Part, budget: Budget, doubt: bool) -> str:
    share = budget.share(part)
    sign = "+" if share > 0 else ""
    mark = "?" if doubt else ""
    return (
        f" {sign}{_ms(share * budget.measured_s)} · {sign}{causes.points(share)}{mark}"
        if abs(share) >= NEGLIGIBLE
        else " 0"
    )


def _reach(budget: Budget, parts: Sequence[Part]) -> float:
    """Return how far the bars of a budget reach, ms."""
    end, furthest = budget.ideal_s, budget.ideal_s
    for part in parts:
        end += budget.share(part) * budget.measured_s
        furthest = max(furthest, end)
    return 1e3 * max(furthest, budget.measured_s)


def _ms(seconds: float) -> str:
    return f"{wording.signed(seconds * 1e3, 2 if abs(seconds) < 0.1 else 1)} ms"


def view_name(row: Row) -> str:
    """Name the view of a row."""
    return wording.place(row)


def choose(rows: Sequence[Row], figure: go.Figure) -> Choices | None:
    """Return a view for each row, each with an axis of its own."""
    accounted = in_order(rows)
    parts = budget_figure.drawn_parts(rows)
    reach = [_reach(budget, parts) * (1 + ROOM) for _, budget in accounted]
    return views(
        figure,
        "case and N",
        [view_name(row) for row, _ in accounted],
        [{"xaxis.range": [0, round(r, 6)]} for r in reach],
    )


def conclude(rows: Sequence[Row]) -> str:
    """Conclude the view that is shown at first."""
    (row, budget), *_ = in_order(rows)
    largest = [part for part in PARTS if part is not RESIDUAL and causes.certain(row, budget, part)]
    told = f"Of the {_ms(budget.measured_s)} step of {view_name(row)}, {_ms(budget.ideal_s)} are"
    if not budget.closes:
        return f"{told} ideal; the parts do not explain the rest."
    takes = [part for part in largest if budget.share(part) > NEGLIGIBLE]
    if not takes:
        return f"{told} ideal; no part of the rest can be told from zero."
    most = max(takes, key=budget.share)
    seconds = budget.share(most) * budget.measured_s
    return f"{told} ideal; {causes.name(most, budget)} takes {_ms(seconds)}, the most."


def tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the parts of each budget as they stand in the bars' table."""
    return budget_figure.tabulate([row for row, _ in in_order(rows)])


PARTS_NOTE = (
    "Bars: ms per step; behind them also points of the measured step. Hatched and ?: cannot be"
    " told from zero."
)
