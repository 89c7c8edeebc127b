"""The loss budget as figures: what each row's step takes beyond the ideal one, by part and by axis.

Bars start where the ideal step ends: to the right what takes time, to the left what gives time
back, so that a part's length can be read at any efficiency and a negative part is no riddle.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.budget import PARTS, RESIDUAL, Budget, Part, agreeing
from scalebench.records.summary import Row
from scalebench.report.figures import charts
from scalebench.report.figures.charts import Lanes, bars, lay, texts_behind
from scalebench.report.figures.mesh import COLOR_OF, SEVERAL
from scalebench.report.figures.style import (
    HATCHES,
    NEUTRAL,
    PART_COLORS,
    Looks,
    hover,
    lane_axis,
    row_name,
    safe,
    style,
)
from scalebench.report.tables import budget as axis_budget
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.words import causes, wording
from scalebench.report.words.causes import NEGLIGIBLE, budgeted

NOTE = (
    "Zero is where the ideal step ends. Right of it: what takes time; left of it: what gives time "
    "back. Behind each bar: all that is lost. Hatched: uncertain, may be zero. Open: the parts do "
    "not add up to the step; the marks of the row say why."
)

NUMBER_ROOM, OPEN_ROOM = 0.12, 0.26
"""Part of the bars' reach that is kept free behind them, for a number, and for ``3.0 open``."""

BudgetLanes = Sequence[tuple[float, Row, Budget]]


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


def _bars(part: Part, lanes: BudgetLanes) -> go.Bar:
    """One part in every lane; hatched where it may be zero."""
    sure = [causes.certain(row, budget, part) for _, row, budget in lanes]
    visible = [abs(budget.share(part)) >= NEGLIGIBLE for _, _, budget in lanes]
    return bars(
        part.name,
        PART_COLORS[part.key],
        [round(100 * budget.share(part), 4) for _, _, budget in lanes],
        [place for place, _, _ in lanes],
        [
            f"{row_name(row)}<br>{part.name}: {written(part, row, budget)}"
            for _, row, budget in lanes
        ],
        {
            "line": {"color": NEUTRAL, "width": [0.7 * seen for seen in visible]},
            "pattern": {"shape": ["" if certain else "/" for certain in sure], **HATCHES},
        },
        legendgroup=part.key,
    )


def _gaps(lanes: BudgetLanes) -> go.Scatter:
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


def written(part: Part, row: Row, budget: Budget) -> str:
    """Write a part with its interval: ``"5.4 % (3.0 to 7.8)"``."""
    found = budget.estimate(part)
    text = f"{causes.points(budget.share(part))} %"
    if part is RESIDUAL or found is None:
        return text
    span = " to ".join(map(causes.points, found.ends or ()))
    if not span:
        return f"{text} (no interval)"
    doubt = "" if causes.certain(row, budget, part) else ", uncertain"
    return f"{text} ({span}{doubt})"


def conclude(rows: Sequence[Row]) -> str:
    """Conclude the figure of one suite: the largest part that can be told from zero."""
    accounted = budgeted(rows)
    closing = [(row, budget) for row, budget in accounted if budget.closes]
    if not closing:
        return "No cause is named: traced steps were unlike the others, so they explain nothing."
    found = causes.largest_loss(rows)
    if found is None:
        where = "" if len(closing) == len(accounted) else " where the parts add up"
        return f"No large loss is certain{where}."
    share, cause, row = found
    return (
        f"The largest certain loss is {cause}: {causes.points(share)} % of the step of"
        f" {wording.plain(row.case, 64)} on {wording.ranks(row)}."
    )


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
            interval = written(part, row, budget).partition(" %")[2].strip(" ()")
            length = _ms(share * budget.measured_s)
            found.append((row, part.name, length, causes.points(share), interval))
        found.append((row, "measured", _ms(budget.measured_s), "100.0", ""))
    return found


def _ms(seconds: float) -> str:
    return f"{wording.signed(seconds * 1e3, 3)} ms"


COLUMNS = (*PLACE, *texts("part", "per step", "% of step", "95 % interval"))
BUDGET = charts.ChartKind(
    "budget",
    "All rows side by side",
    budget_figure,
    conclude,
    COLUMNS,
    lines,
    lambda figure: charts.legend(figure, {part.name: part.meaning for part in PARTS}),
    NOTE,
    "This needs traced steps of a row and of its plain baseline: run without --no-trace.",
    remarks,
)


BAR_PX = 42
HANGING_BAR = 0.66
HANGING_ROOM = 0.05
"""Of the longest bar, kept free behind it."""

Accounted = list[tuple[Row, Budget]]


def waterfall_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw the budget of every row as a view of its own; None without any budget."""
    accounted = in_order(rows)
    if not accounted:
        return None
    parts = drawn_parts(rows)
    names = _labels(*accounted[0], parts)
    figure = go.Figure()
    charts.add_in_views(
        figure, accounted, lambda of: wording.place(of[0]), lambda of: [_hanging(*of, parts)]
    )
    height = len(names) * BAR_PX + 84
    style(figure, "waterfall", height=height, hovermode="closest", margin={"t": 30}, bargap=0)
    reach = _hanging_reach(accounted[0][1], parts)
    lane_axis(figure, list(enumerate(names)), len(names) - 0.4, -0.6)
    figure.update_xaxes(title="ms per step", range=[0, reach * (1 + HANGING_ROOM)], automargin=True)
    return figure


def in_order(rows: Sequence[Row]) -> Accounted:
    """Return the rows with a budget, several ranks first, the largest gap first."""
    found = [pair for pair in budgeted(rows) if pair[0].world_size > 1] or budgeted(rows)
    return sorted(found, key=lambda pair: (pair[0].oversubscribed, -pair[1].gap))


def _hanging(row: Row, budget: Budget, parts: Sequence[Part]) -> go.Bar:
    base, lengths, colors = [0.0], [1e3 * budget.ideal_s], [NEUTRAL]
    end, hatched, hovers = 1e3 * budget.ideal_s, [False], [f"ideal: {_in_ms(budget.ideal_s)}"]
    for part in parts:
        length = 1e3 * budget.share(part) * budget.measured_s
        base.append(end + min(length, 0.0))
        lengths.append(abs(length))
        end += length
        colors.append(PART_COLORS[part.key])
        hatched.append(_doubtful(row, budget, part))
        hovers.append(f"{part.name}: {written(part, row, budget)}")
    base.append(0.0)
    lengths.append(1e3 * budget.measured_s)
    colors.append("#5b6570")
    hatched.append(False)
    hovers.append(f"measured: {_in_ms(budget.measured_s)}")
    name = wording.place(row)
    return go.Bar(
        x=[round(length, 6) for length in lengths],
        base=[round(start, 6) for start in base],
        y=list(range(len(base))),
        orientation="h",
        width=HANGING_BAR,
        **hover(f"<b>{safe(name, 90)}</b><br>{text}" for text in hovers),
        marker={
            "color": colors,
            "pattern": {"shape": ["/" if one else "" for one in hatched], **HATCHES},
        },
    )


def _doubtful(row: Row, budget: Budget, part: Part) -> bool:
    """Whether a part that can be seen may be zero."""
    seen = budget.knows(part) and abs(budget.share(part)) >= NEGLIGIBLE
    return seen and not causes.certain(row, budget, part)


def _labels(row: Row, budget: Budget, parts: Sequence[Part]) -> list[str]:
    """Return the names of the bars, their numbers below."""
    told = [_numbers(part, budget, _doubtful(row, budget, part)) for part in parts]
    named = [
        ("ideal", f"{_in_ms(budget.ideal_s)} · {causes.points(budget.ideal)}"),
        *zip((part.name for part in parts), told, strict=True),
        ("measured", f"{_in_ms(budget.measured_s)} · 100"),
    ]
    return [f"{name}<br><b>{numbers}</b>" for name, numbers in named]


def _numbers(part: Part, budget: Budget, doubt: bool) -> str:
    share = budget.share(part)
    if not budget.knows(part):
        return f"with {next((p.name for p in PARTS if p.key == part.held_by), 'another part')}"
    if abs(share) < NEGLIGIBLE:
        return "0"
    sign = "+" if share > 0 else ""
    return f"{sign}{_in_ms(share * budget.measured_s)} · {sign}{causes.points(share)}{'?' * doubt}"


def _hanging_reach(budget: Budget, parts: Sequence[Part]) -> float:
    """Return how far the bars of a budget reach, ms."""
    end, furthest = budget.ideal_s, budget.ideal_s
    for part in parts:
        end += budget.share(part) * budget.measured_s
        furthest = max(furthest, end)
    return 1e3 * max(furthest, budget.measured_s)


def _in_ms(seconds: float) -> str:
    return f"{wording.signed(seconds * 1e3, 2 if abs(seconds) < 0.1 else 1)} ms"


def choose(rows: Sequence[Row], figure: go.Figure) -> charts.Choices | None:
    """Return a view for each row, each with an axis of its own."""
    accounted = in_order(rows)
    parts = drawn_parts(rows)
    reach = [_hanging_reach(budget, parts) * (1 + HANGING_ROOM) for _, budget in accounted]
    return charts.views(
        figure,
        "case and N",
        [wording.place(row) for row, _ in accounted],
        [
            {"xaxis.range": [0, round(end, 6)], "yaxis.ticktext": _labels(row, budget, parts)}
            for end, (row, budget) in zip(reach, accounted, strict=True)
        ],
    )


def conclude_waterfall(rows: Sequence[Row]) -> str:
    """Conclude the view that is shown at first."""
    (row, budget), *_ = in_order(rows)
    where, ideal = wording.place(row), _in_ms(budget.ideal_s)
    told = f"Of the {_in_ms(budget.measured_s)} step of {where}, {ideal} are"
    if not budget.closes:
        return f"{told} ideal; the parts do not explain the rest."
    takes = causes.certain_losses(row, NEGLIGIBLE)
    if not takes:
        return f"{told} ideal; the measurement is too noisy to say where the rest goes."
    most = takes[0]
    seconds = budget.share(most) * budget.measured_s
    return (
        f"{told} ideal; {agreeing(causes.name(most, budget), 'takes')} {_in_ms(seconds)}, the most."
    )


WATERFALL = charts.ChartKind(
    "waterfall",
    "From ideal to measured",
    waterfall_figure,
    conclude_waterfall,
    COLUMNS,
    lambda rows: lines([row for row, _ in in_order(rows)]),
    note="In bold: ms per step, and percent of the measured step. Hatched and ?: uncertain, may be"
    " zero.",
    choose=choose,
)


EFFICIENCY, REST = "efficiency", "all else"
PALE = "#D5D9DD"
EFFICIENCY_MEANS = "The ideal step, as a part of the measured one."
REST_MEANS = "The other parts of the loss budget; left of zero where they give time back."


Drawn = list[tuple[Row, Budget]]


def axis_budget_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw efficiency, every dimension's part, and the rest; None without any mesh."""
    drawn = [pair for pair in budgeted(rows) if axis_budget.losses([pair[0]])]
    if not drawn:
        return None
    lanes = lay([row for row, _ in drawn])
    figure = go.Figure()
    figure.add_trace(_axis_bars(EFFICIENCY, NEUTRAL, drawn, lanes, [b.ideal for _, b in drawn]))
    for axis in dict.fromkeys(axis_budget.name_of(one) for _, one in axis_budget.losses(rows)):
        color = COLOR_OF.get(axis, SEVERAL)
        figure.add_trace(_axis_bars(axis, color, drawn, lanes, _shares(axis, drawn)))
    rest = [
        1 - budget.ideal - sum(map(axis_budget.share_of, axis_budget.losses([row])))
        for row, budget in drawn
    ]
    figure.add_trace(_axis_bars(REST, PALE, drawn, lanes, rest))
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


def _axis_bars(
    name: str, color: str, drawn: Drawn, lanes: Lanes, shares: Sequence[float]
) -> go.Bar:
    texts = [
        f"{row_name(row)}<br>{name}: {causes.points(share)} %"
        for (row, _), share in zip(drawn, shares, strict=True)
    ]
    return bars(name, color, [round(100 * share, 4) for share in shares], lanes.places, texts)


AXIS_BUDGET = charts.ChartKind(
    "axis-budget",
    axis_budget.AXIS_BUDGET.title,
    axis_budget_figure,
    axis_budget.axis_sentence,
    axis_budget.AXIS_COLUMNS,
    axis_budget.losses,
    lambda figure: charts.legend(figure, {EFFICIENCY: EFFICIENCY_MEANS, REST: REST_MEANS}),
    "Each axis: exposed communication along it, transfer and waiting. Behind each bar: the"
    " efficiency."
    " Only rows on a mesh.",
)
