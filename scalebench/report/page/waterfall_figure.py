"""The loss budget as a waterfall: from the ideal step to the measured one, in ms and in percent.

One row at a time; the bars of the parts hang one below the other, with their numbers under their
names, where there is room at any width.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench.records.rows.budget import PARTS, RESIDUAL, Budget, Part, agreeing
from scalebench.records.summary import Row
from scalebench.report.page import budget_figure
from scalebench.report.page.charts import ChartKind, Choices, add_in_views, views
from scalebench.report.page.figure_style import HATCHES, Looks, hover, safe, style
from scalebench.report.page.palette import NEUTRAL, PART_COLORS
from scalebench.report.words import causes, wording
from scalebench.report.words.attributed import NEGLIGIBLE, budgeted

BAR_PX = 42
BAR = 0.66
ROOM = 0.05
"""Of the longest bar, kept free behind it."""

Accounted = list[tuple[Row, Budget]]


def waterfall_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw the budget of every row as a view of its own; None without any budget."""
    accounted = in_order(rows)
    if not accounted:
        return None
    parts = budget_figure.drawn_parts(rows)
    names = _labels(*accounted[0], parts)
    figure = go.Figure()
    add_in_views(figure, accounted, lambda of: wording.place(of[0]), lambda of: [_bars(*of, parts)])
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


def _bars(row: Row, budget: Budget, parts: Sequence[Part]) -> go.Bar:
    base, lengths, colors = [0.0], [1e3 * budget.ideal_s], [NEUTRAL]
    end, hatched, hovers = 1e3 * budget.ideal_s, [False], [f"ideal: {_ms(budget.ideal_s)}"]
    for part in parts:
        length = 1e3 * budget.share(part) * budget.measured_s
        base.append(end + min(length, 0.0))
        lengths.append(abs(length))
        end += length
        colors.append(PART_COLORS[part.key])
        hatched.append(_doubtful(row, budget, part))
        hovers.append(f"{part.name}: {budget_figure.told(part, row, budget)}")
    base.append(0.0)
    lengths.append(1e3 * budget.measured_s)
    colors.append("#5b6570")
    hatched.append(False)
    hovers.append(f"measured: {_ms(budget.measured_s)}")
    name = wording.place(row)
    return go.Bar(
        x=[round(length, 6) for length in lengths],
        base=[round(start, 6) for start in base],
        y=list(range(len(base))),
        orientation="h",
        width=BAR,
        **hover(f"<b>{safe(name, 90)}</b><br>{text}" for text in hovers),
        marker={
            "color": colors,
            "pattern": {"shape": ["/" if one else "" for one in hatched], **HATCHES},
        },
    )


def _doubtful(row: Row, budget: Budget, part: Part) -> bool:
    """Whether a part that can be seen cannot be told from zero."""
    if part is RESIDUAL or not budget.knows(part) or abs(budget.share(part)) < NEGLIGIBLE:
        return False
    return not causes.certain(row, budget, part)


def _labels(row: Row, budget: Budget, parts: Sequence[Part]) -> list[str]:
    """Return the names of the bars, their numbers below."""
    told = [_told(part, budget, _doubtful(row, budget, part)) for part in parts]
    named = [
        ("ideal", f"{_ms(budget.ideal_s)} · {causes.points(budget.ideal)}"),
        *zip((part.name for part in parts), told, strict=True),
        ("measured", f"{_ms(budget.measured_s)} · 100"),
    ]
    return [f"{name}<br><b>{numbers}</b>" for name, numbers in named]


def _told(part: Part, budget: Budget, doubt: bool) -> str:
    share = budget.share(part)
    if not budget.knows(part):
        return f"with {next((p.name for p in PARTS if p.key == part.held_by), 'another part')}"
    if abs(share) < NEGLIGIBLE:
        return "0"
    sign = "+" if share > 0 else ""
    return f"{sign}{_ms(share * budget.measured_s)} · {sign}{causes.points(share)}{'?' * doubt}"


def _reach(budget: Budget, parts: Sequence[Part]) -> float:
    """Return how far the bars of a budget reach, ms."""
    end, furthest = budget.ideal_s, budget.ideal_s
    for part in parts:
        end += budget.share(part) * budget.measured_s
        furthest = max(furthest, end)
    return 1e3 * max(furthest, budget.measured_s)


def _ms(seconds: float) -> str:
    return f"{wording.signed(seconds * 1e3, 2 if abs(seconds) < 0.1 else 1)} ms"


def choose(rows: Sequence[Row], figure: go.Figure) -> Choices | None:
    """Return a view for each row, each with an axis of its own."""
    accounted = in_order(rows)
    parts = budget_figure.drawn_parts(rows)
    reach = [_reach(budget, parts) * (1 + ROOM) for _, budget in accounted]
    return views(
        figure,
        "case and N",
        [wording.place(row) for row, _ in accounted],
        [
            {"xaxis.range": [0, round(end, 6)], "yaxis.ticktext": _labels(row, budget, parts)}
            for end, (row, budget) in zip(reach, accounted, strict=True)
        ],
    )


def conclude(rows: Sequence[Row]) -> str:
    """Conclude the view that is shown at first."""
    (row, budget), *_ = in_order(rows)
    largest = [part for part in PARTS if part is not RESIDUAL and causes.certain(row, budget, part)]
    where, ideal = wording.place(row), _ms(budget.ideal_s)
    told = f"Of the {_ms(budget.measured_s)} step of {where}, {ideal} are"
    if not budget.closes:
        return f"{told} ideal; the parts do not explain the rest."
    takes = [part for part in largest if budget.share(part) > NEGLIGIBLE]
    if not takes:
        return f"{told} ideal; the measurement is too noisy to say where the rest goes."
    most = max(takes, key=budget.share)
    seconds = budget.share(most) * budget.measured_s
    return f"{told} ideal; {agreeing(causes.name(most, budget), 'takes')} {_ms(seconds)}, the most."


WATERFALL = ChartKind(
    "waterfall",
    "From ideal to measured",
    waterfall_figure,
    conclude,
    budget_figure.COLUMNS,
    lambda rows: budget_figure.lines([row for row, _ in in_order(rows)]),
    note="In bold: ms per step, and percent of the measured step. Hatched and ?: uncertain, may be"
    " zero.",
    choose=choose,
)
