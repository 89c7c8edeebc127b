"""What now and then changes while a job trains: shares of the batch, the scale of the loss."""

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, legend
from scalebench.report.figures.style import DASHES, Looks, safe, style
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.words.wording import place

HEIGHT_PX = 220

Moves = Sequence[tuple[int, float]]
"""From which step on a value was in force, and the value."""


def _over_steps(
    name: str,
    title: str,
    axis: str,
    moves_of: Callable[[Row], Mapping[str, Moves]],
    conclude: Callable[[Row], str],
    note: str,
) -> ChartKind:
    """Return the kind of figure of values that now and then change during the first launch."""

    def moves(rows: Sequence[Row]) -> list[tuple[Row, str, int, float]]:
        found = [(row, moves_of(row)) for row in rows]
        return [(r, who, *at) for r, of in found for who, steps in of.items() for at in steps]

    def draw(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
        figure, last = go.Figure(), max((step for _, _, step, _ in moves(rows)), default=0)
        for row in rows:
            look = looks[row.suite, row.case]
            for number, (who, steps) in enumerate(moves_of(row).items()):
                label = f"{safe(place(row), 80)} {who}".strip()
                figure.add_scatter(
                    x=[*(step for step, _ in steps), last + 1],
                    y=[*(number for _, number in steps), steps[-1][1]],
                    name=label,
                    mode="lines",
                    line={"color": look.color, "shape": "hv", "dash": list(DASHES)[number % 4]},
                    hovertemplate=f"{label}, step %{{x}}: %{{y:g}}<extra></extra>",
                )
        style(figure, name, height=HEIGHT_PX, hovermode="closest")
        figure.update_xaxes(title="step, warm-up included", automargin=True)
        figure.update_yaxes(title=axis, rangemode="tozero", automargin=True)
        return figure if figure.data else None

    return ChartKind(
        name,
        title,
        draw,
        lambda rows: " ".join(conclude(row) for row in rows if moves_of(row)),
        (*PLACE, *texts("of", "from step", axis)),
        lambda rows: [(row, who, step, f"{value:g}") for row, who, step, value in moves(rows)],
        legend,
        note,
    )


def _share_moves(row: Row) -> Mapping[str, Moves]:
    found = row.balance.history if row.balance else []
    ranks = range(row.world_size if found else 0)
    return {f"rank {rank}": [(step, of[rank]) for step, of in found] for rank in ranks}


SHARES = _over_steps(
    "shares",
    "Shares of the global batch",
    "samples",
    _share_moves,
    lambda row: (
        f"{place(row)}: shares changed {row.balance.num_changes} times and ended at"
        f" {', '.join(map(str, row.balance.shares))} samples."
        if row.balance
        else ""
    ),
    "Samples of each rank in a step, in the first launch.",
)
LOSS_SCALE = _over_steps(
    "loss-scale",
    "Scale of the loss",
    "scale",
    lambda row: {"": row.loss_scale} if row.loss_scale else {},
    lambda row: (
        f"{place(row)}: the scale ended at {row.loss_scale[-1][1]:g};"
        f" {row.num_skipped_steps or 0} steps of the measurement were skipped."
        if row.loss_scale
        else ""
    ),
    "Of float16, in the first launch. Where it falls, the step before was skipped.",
)
