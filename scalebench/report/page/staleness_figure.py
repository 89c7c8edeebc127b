"""How stale gradients were: a line for each case with parameter servers."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, safe, style
from scalebench.report.tables import lockstep
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.words import wording

HEIGHT_PX = 220


def _counted(rows: Sequence[Row]) -> list[tuple[Row, dict[int, int]]]:
    found = lockstep.looked_at(rows)
    return [(row, figures.staleness) for row, figures in found if figures.staleness]


def _figure(rows: Sequence[Row], looks: Looks) -> go.Figure:
    figure = go.Figure()
    for row, counts in _counted(rows):
        look, total = looks[row.suite, row.case], sum(counts.values())
        steps = list(range(max(counts) + 1))
        name = safe(wording.place(row), 80)
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=[100 * counts.get(one, 0) / total for one in steps],
                name=name,
                mode="lines+markers",
                line={"color": look.color, "width": 2, "dash": look.dash},
                marker={"symbol": look.symbol, "size": 7, "color": look.color},
                hovertemplate=f"{name}: %{{y:.3g}} % of the gradients are %{{x}} steps old"
                "<extra></extra>",
            )
        )
    style(figure, "staleness")
    figure.update_layout(height=HEIGHT_PX, hovermode="closest")
    figure.update_xaxes(title="steps old", rangemode="tozero", automargin=True)
    figure.update_yaxes(title="% of gradients", rangemode="tozero", automargin=True)
    return figure


def conclude(rows: Sequence[Row]) -> str | None:
    """Say whose gradients are the stalest; None: nobody's were counted."""
    found = [(row, row.lockstep.mean_staleness) for row, _ in _counted(rows) if row.lockstep]
    known = [(row, mean) for row, mean in found if mean is not None]
    if not known:
        return None
    row, mean = max(known, key=lambda pair: pair[1])
    return (
        f"The gradients of {wording.place(row)} are {mean:.2f} steps old in the mean; equal ranks"
        f" without a bound make {row.world_size - 1}."
    )


STALENESS = ChartKind(
    "staleness",
    "Staleness of gradients",
    lambda rows, looks: _figure(rows, looks) if _counted(rows) else None,
    conclude,
    (*PLACE, *texts("staleness", "gradients")),
    lambda rows: [(row, *of) for row, counts in _counted(rows) for of in sorted(counts.items())],
    legend,
    "Steps that the servers made while a gradient was computed: 0 is lockstep.",
)
