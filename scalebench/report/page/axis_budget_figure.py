"""Efficiency by axis: what each dimension of a mesh takes of the step, one bar for each row."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.budget import Budget
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, KeyEntry, legend
from scalebench.report.page.figure_style import Looks, row_name, style
from scalebench.report.page.lanes import Lanes, bars, lay, texts_behind
from scalebench.report.page.mesh_figure import COLOR_OF, SEVERAL
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.tables import axis_budget
from scalebench.report.words import causes
from scalebench.report.words.attributed import budgeted

EFFICIENCY, REST = "efficiency", "all else"
PALE = "#D5D9DD"
EFFICIENCY_MEANS = "The ideal step, as a part of the measured one."
REST_MEANS = "The other parts of the loss budget; left of zero where they give time back."


Drawn = list[tuple[Row, Budget]]


def axis_budget_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw efficiency, every dimension's part, and the rest; None without any mesh."""
    drawn = _drawn(rows)
    if not drawn:
        return None
    lanes = lay([row for row, _ in drawn])
    figure = go.Figure()
    figure.add_trace(_bars(EFFICIENCY, NEUTRAL, drawn, lanes, [b.ideal for _, b in drawn]))
    for axis in dict.fromkeys(axis_budget.name_of(one) for _, one in axis_budget.losses(rows)):
        color = COLOR_OF.get(axis, SEVERAL)
        figure.add_trace(_bars(axis, color, drawn, lanes, _shares(axis, drawn)))
    rest = [1 - budget.ideal - sum(_all_shares(row)) for row, budget in drawn]
    figure.add_trace(_bars(REST, PALE, drawn, lanes, rest))
    ends = [100 * (1 - min(part, 0.0)) for part in rest]
    told = [f" {units.percent(budget.ideal)}" for _, budget in drawn]
    figure.add_trace(texts_behind(ends, lanes.places, told))
    style(figure, "axis-budget")
    lanes.draw(figure)
    low = 100 * min(0.0, *rest)
    figure.update_xaxes(
        title="percent of the measured step",
        range=[low, 1.12 * max(ends)],
        zeroline=True,
        automargin=True,
    )
    return figure


def _drawn(rows: Sequence[Row]) -> Drawn:
    return [pair for pair in budgeted(rows) if axis_budget.losses([pair[0]])]


def _all_shares(row: Row) -> list[float]:
    return [axis_budget.share_of(of) for of in axis_budget.losses([row])]


def _shares(axis: str, drawn: Drawn) -> list[float]:
    """Return the part of each row's step that a dimension takes."""
    return [
        sum(
            axis_budget.share_of(of)
            for of in axis_budget.losses([row])
            if axis_budget.name_of(of[1]) == axis
        )
        for row, _ in drawn
    ]


def _bars(name: str, color: str, drawn: Drawn, lanes: Lanes, shares: Sequence[float]) -> go.Bar:
    texts = [
        f"{row_name(row)}<br>{name}: {causes.points(share)} %"
        for (row, _), share in zip(drawn, shares, strict=True)
    ]
    return bars(name, color, [round(100 * share, 4) for share in shares], lanes.places, texts)


def _key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    named = dict.fromkeys((trace.name for trace in figure.data if trace.name), "")
    return legend(figure, named | {EFFICIENCY: EFFICIENCY_MEANS, REST: REST_MEANS})


AXIS_BUDGET = ChartKind(
    "axis-budget",
    axis_budget.AXIS_BUDGET.title,
    axis_budget_figure,
    axis_budget.sentence,
    axis_budget.COLUMNS,
    axis_budget.losses,
    _key,
    "Each axis: exposed communication along it, transfer and waiting. Behind each bar: the"
    " efficiency."
    " Only rows on a mesh.",
)
