"""The loss of a job that loses a rank, goes on with fewer, and has all again later, as a figure."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind
from scalebench.report.page.figure_style import Looks, style
from scalebench.report.page.palette import COLORS, SYMBOLS
from scalebench.report.tables import recovery
from scalebench.report.tables.recovery import elastic_rows
from scalebench.report.words import wording

HEADER = ("case", "N", "steps", "samples/s", "loss of the last step")


def _draw(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    found = elastic_rows(rows)
    if not found:
        return None
    figure = go.Figure()
    symbols = list(SYMBOLS)
    for number, stretch in enumerate(found):
        part = stretch.part
        steps = [part.first_step + i for i in range(len(part.loss))]
        name = f"{wording.plain(stretch.row.case, 64)}, N={part.world_size}"
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=part.loss,
                name=name,
                mode="lines+markers",
                line={"color": COLORS[number % len(COLORS)], "width": 2},
                marker={"symbol": symbols[number % len(symbols)], "size": 7},
                hovertemplate=f"{name}<br>step %{{x}}: loss %{{y:.4f}}<extra></extra>",
            )
        )
    style(figure, "elastic")
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title="step", automargin=True)
    figure.update_yaxes(title="loss", automargin=True)
    return figure


def _tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            wording.plain(one.row.case, 64),
            str(one.part.world_size),
            f"{one.part.first_step} to {one.part.first_step + one.part.num_steps - 1}",
            wording.DASH if one.part.throughput is None else units.count(one.part.throughput),
            f"{one.part.loss[-1]:.4f}" if one.part.loss else wording.DASH,
        )
        for one in elastic_rows(rows)
    ]


ELASTIC_LOSS = ChartKind(
    "elastic",
    "The loss while a rank is missing",
    "",
    _draw,
    lambda rows: " ".join(recovery.over_the_seam(rows)),
    _tabulate,
    HEADER,
    None,
    "Where two lines overlap, steps that were lost are done again.",
)
