"""The loss budget as a figure: what each row's step takes beyond the ideal one, part by part.

Bars start where the ideal step ends: to the right what takes time, to the left what gives time
back, so that a part's length can be read at any efficiency and a negative part is no riddle.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench.records.rows.budget import PARTS, RESIDUAL, Budget, Part
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import HATCHES, Looks, row_name, style
from scalebench.report.page.lanes import bars, lay, texts_behind
from scalebench.report.page.palette import NEUTRAL, PART_COLORS
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.words import causes, wording
from scalebench.report.words.attributed import NEGLIGIBLE, budgeted

NOTE = (
    "Zero is where the ideal step ends. Right of it: what takes time; left of it: what gives time "
    "back. Behind each bar: all that is lost. Hatched: uncertain, may be zero. Open: the parts do "
    "not add up to the step; the marks of the row say why."
)

NUMBER_ROOM, OPEN_ROOM = 0.12, 0.26
"""Part of the bars' reach that is kept free behind them, for a number, and for ``3.0 open``."""

Lanes = Sequence[tuple[float, Row, Budget]]


def budget_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw the parts of every budget side by side from the ideal step's end; None without any."""
    accounted = budgeted(rows)
    parts = drawn_parts(rows)
    if not parts:
        return None
    figure = go.Figure()
    placed = lay([row for row, _ in accounted])
    lanes = [(y, *pair) for y, pair in zip(placed.places, accounted, strict=True)]
    for part in parts:
        figure.add_trace(_bars(part, lanes))
    figure.add_trace(_gaps(lanes))
    style(figure, "budget")
    placed.draw(figure)
    low, high = _reach([budget for _, budget in accounted])
    all_close = all(budget.closes for _, budget in accounted)
    room = (NUMBER_ROOM if all_close else OPEN_ROOM) * (high - low)
    figure.update_xaxes(
        title="percent of the measured step",
        range=[low - (room / 3 if low < 0 else 0), high + room],
        zeroline=True,
        zerolinewidth=1.5,
        zerolinecolor=NEUTRAL,
        automargin=True,
    )
    return figure


def drawn_parts(rows: Sequence[Row]) -> list[Part]:
    """Return the parts that are not negligible in every row, in the order of the bars."""
    budgets = [budget for _, budget in budgeted(rows)]
    return [
        part for part in PARTS if any(abs(budget.share(part)) >= NEGLIGIBLE for budget in budgets)
    ]


def _bars(part: Part, lanes: Lanes) -> go.Bar:
    """One part in every lane; hatched where it cannot be told from zero."""
    sure = [part is RESIDUAL or causes.certain(row, budget, part) for _, row, budget in lanes]
    visible = [abs(budget.share(part)) >= NEGLIGIBLE for _, _, budget in lanes]
    return bars(
        part.name,
        PART_COLORS[part.key],
        [round(100 * budget.share(part), 4) for _, _, budget in lanes],
        [place for place, _, _ in lanes],
        [f"{row_name(row)}<br>{part.name}: {told(part, row, budget)}" for _, row, budget in lanes],
        {
            "line": {"color": NEUTRAL, "width": [0.7 * seen for seen in visible]},
            "pattern": {"shape": ["" if certain else "/" for certain in sure], **HATCHES},
        },
        legendgroup=part.key,
    )


def _gaps(lanes: Lanes) -> go.Scatter:
    """Write behind each bar what is missing to ideal."""
    ends = [sum(max(budget.share(part), 0.0) for part in PARTS) * 100 for _, _, budget in lanes]
    text = [
        f" {causes.points(budget.gap)}{'' if budget.closes else ' open'}" for *_, budget in lanes
    ]
    return texts_behind(ends, [place for place, _, _ in lanes], text)


def _reach(budgets: Sequence[Budget]) -> tuple[float, float]:
    """Return how far the bars reach to both sides, percent."""
    shares = [[100 * budget.share(part) for part in PARTS] for budget in budgets]
    left = min(sum(min(share, 0.0) for share in row) for row in shares)
    right = max(sum(max(share, 0.0) for share in row) for row in shares)
    return left, right


def told(part: Part, row: Row, budget: Budget) -> str:
    """Write a part with its interval: ``"5.4 % (3.0 to 7.8)"``."""
    found = budget.estimate(part)
    text = f"{causes.points(budget.share(part))} %"
    if part is RESIDUAL or found is None:
        return text
    if found.low is None or found.high is None:
        return f"{text} (no interval)"
    span = f"{causes.points(found.low)} to {causes.points(found.high)}"
    doubt = "" if causes.certain(row, budget, part) else ", uncertain"
    return f"{text} ({span}{doubt})"


def conclude(rows: Sequence[Row]) -> str:
    """Conclude the figure of one suite: the largest part that can be told from zero."""
    accounted = budgeted(rows)
    closing = [(row, budget) for row, budget in accounted if budget.closes]
    if not closing:
        return "No cause is named: traced steps were unlike the others, so they explain nothing."
    found = largest_loss(rows)
    if found is None:
        where = "" if len(closing) == len(accounted) else " where the parts add up"
        return f"No large loss is certain{where}."
    share, cause, row = found
    return (
        f"The largest certain loss is {cause}: {causes.points(share)} % of the step of"
        f" {wording.plain(row.case, 64)} on {wording.ranks(row)}."
    )


def largest_loss(rows: Sequence[Row]) -> tuple[float, str, Row] | None:
    """Return the largest part that can be told from zero, as a part of the step.

    Returns:
        The part, its cause and its row; None: no part that is worth a name can be told from zero.
    """
    takes = [
        (budget.share(part), causes.name(part, budget), row)
        for row, budget in budgeted(rows)
        if budget.closes
        for part in PARTS
        if part is not RESIDUAL
        and budget.share(part) >= causes.least_share(budget)
        and causes.certain(row, budget, part)
    ]
    return max(takes, key=lambda found: found[0], default=None)


def remarks(rows: Sequence[Row]) -> list[str]:
    """Say below the figure where waiting is part of transfer, and how certain waits are."""
    accounted = budgeted(rows)
    bound = causes.clock_bound(accounted)
    said = [*causes.not_apart(accounted), *([bound] if bound else [])]
    return [f"{text[0].upper()}{text[1:]}." for text in said]


def lines(rows: Sequence[Row]) -> list[tuple[Row, str, str, str, str]]:
    """Return row, part, ms and percent of the step, and interval of every part of each budget."""
    found: list[tuple[Row, str, str, str, str]] = []
    for row, budget in budgeted(rows):
        found.append((row, "ideal", _ms(budget.ideal_s), causes.points(budget.ideal), ""))
        for part in drawn_parts(rows):
            if not budget.knows(part):
                found.append((row, part.name, wording.DASH, wording.DASH, wording.DASH))
                continue
            share = budget.share(part)
            written = told(part, row, budget).partition(" %")[2].strip(" ()")
            length = _ms(share * budget.measured_s)
            found.append((row, part.name, length, causes.points(share), written))
        found.append((row, "measured", _ms(budget.measured_s), "100.0", ""))
    return found


def _ms(seconds: float) -> str:
    return f"{wording.signed(seconds * 1e3, 3)} ms"


COLUMNS = (*PLACE, *texts("part", "per step", "% of step", "95 % interval"))
BUDGET = ChartKind(
    "budget",
    "All rows side by side",
    budget_figure,
    conclude,
    COLUMNS,
    lines,
    lambda figure: legend(figure, {part.name: part.meaning for part in PARTS}),
    NOTE,
    "This needs traced steps of a row and of its plain baseline: run without --no-trace.",
    remarks,
)
