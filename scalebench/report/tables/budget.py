"""Where the lost time goes: the loss budgets of a suite as a table, for terminal and Markdown.

Percent of the measured step: the ideal step, which is the efficiency, and the parts sum to 100.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalebench import units
from scalebench.records.rows.budget import PARTS, POP_NAMES, RESIDUAL, AxisLoss, Budget, Part
from scalebench.records.summary import Row
from scalebench.report.tables.layout import (
    CASE,
    FOLDED,
    PLACE,
    RANKS,
    Column,
    Columns,
    Narrowing,
    Screen,
    Table,
    value,
    value_of_each,
)
from scalebench.report.words import causes, wording
from scalebench.report.words.causes import NEGLIGIBLE, budgeted, held_up, inflation_note

TITLE = "where the lost time goes"
UNIT = "percent of the measured step; ideal + parts = 100"
DOUBT = "?"
DOUBTFUL = f"{DOUBT} uncertain, may be zero"
DOUBTFUL_OR_OPEN = f"{DOUBTFUL}, or the parts of the row do not add up"
OPEN = "open"
OPEN_MEANS = (
    "open: the parts do not add up, as traced steps were unlike the others; none is certain"
)
MERGED = "rest"

Pair = tuple[Row, Budget]
Accounted = Sequence[Pair]


@dataclass(frozen=True)
class PartColumn(Column[Pair]):
    """One column: a part, or at narrow widths several of them together."""

    parts: tuple[Part, ...] = ()

    def share(self, budget: Budget) -> float:
        """Return what the column's parts are of the measured step."""
        return sum(budget.share(part) for part in self.parts)

    def largest(self, accounted: Accounted) -> float:
        """Return the largest share in any row, whatever its sign."""
        return max(abs(self.share(budget)) for _, budget in accounted)


def _part_column(header: str, parts: tuple[Part, ...]) -> PartColumn:
    def text(pair: Pair) -> str:
        """Write percent, marked where it is in doubt; a dash without any."""
        row, budget = pair
        if not any(budget.knows(part) for part in parts):
            return wording.DASH
        share = sum(budget.share(part) for part in parts)
        return causes.points(share) + DOUBT * doubtful(row, budget, parts)

    return PartColumn(
        header.replace(" ", "\n"),
        text,
        style=lambda pair: "dim" if doubtful(*pair, parts) else "",
        parts=parts,
    )


def doubtful(row: Row, budget: Budget, parts: Sequence[Part]) -> bool:
    """Whether one of the parts is written as a number that is no cause.

    It may be zero, or the parts do not add up: then none is certain. What is
    unexplained is what it is.
    """
    return any(
        abs(budget.share(part)) >= NEGLIGIBLE
        and part is not RESIDUAL
        and not (budget.closes and causes.certain(row, budget, part))
        for part in parts
    )


def columns_of(accounted: Accounted) -> tuple[Column[Pair], ...]:
    """Return the table's columns; parts that are negligible in every row have none."""
    parts = [_part_column(part.name, (part,)) for part in PARTS]
    parts = [c for c in parts if accounted and c.largest(accounted) >= NEGLIGIBLE]
    if not parts:
        return ()
    is_open = any(not budget.closes for _, budget in accounted)
    return (
        *PLACE,
        Column("ideal", lambda pair: causes.points(pair[1].ideal), style=lambda _: "bold"),
        *parts,
        *([_CLOSING] if is_open else []),
    )


_CLOSING: Column[Pair] = Column(
    "", lambda pair: "" if pair[1].closes else OPEN, style=lambda _: "yellow"
)


def footnotes(rows: Sequence[Row], accounted: Accounted) -> list[str]:
    """Explain the signs of the table, what tracing cost, and who holds the others up."""
    columns = [c for c in columns_of(accounted) if isinstance(c, PartColumn)]
    doubt = any(doubtful(*pair, column.parts) for column in columns for pair in accounted)
    is_open = any(not budget.closes for _, budget in accounted)
    marked = DOUBTFUL_OR_OPEN if is_open else DOUBTFUL
    signs = [text for text, needed in ((marked, doubt), (OPEN_MEANS, is_open)) if needed]
    cost = causes.tracing_cost([row for row, _ in accounted])
    bound = causes.clock_bound(accounted)
    late = [
        f"{wording.place(row)}: {said[0].lower()}{said[1:-1]}"
        for row in rows
        for said in held_up(row)
    ]
    split = [note for row, _ in accounted if (note := inflation_note(row))]
    whole = [*split, *(text for text in (cost, bound) if text)]
    dashes = [f"{wording.DASH} {text}" for text in causes.not_apart(accounted)]
    return [*signs, *dashes, *whole, *late]


def missing(rows: Sequence[Row]) -> list[str]:
    """Say why no row that was measured has a loss budget."""
    reasons = [row.unavailable.get("budget") for row in rows if row.step_s is not None]
    told = dict.fromkeys(wording.plain(reason) for reason in reasons if reason)
    return [f"no cause of the lost time is known: {reason}" for reason in told]


def show_budgets(rows: Sequence[Row], screen: Screen) -> None:
    """Show the budgets of a suite below its headline table; or why there are none."""
    accounted = budgeted(rows)
    if not accounted:
        screen.lines(missing(rows), "dim")
        return
    columns = tuple(_aligned(column, accounted) for column in columns_of(accounted))
    if not columns:
        return
    screen.line()
    screen.title(TITLE, UNIT)
    shown = screen.table(columns, accounted, _narrowing(columns, accounted))
    for column in shown:
        if isinstance(column, PartColumn) and len(column.parts) > 1:
            names = wording.joined([part.name for part in column.parts])
            screen.line(f"{MERGED}: {names}, together at this width", "dim")
    screen.lines(footnotes(rows, accounted), "dim")


def _narrowing(columns: Columns, accounted: Accounted) -> list[Narrowing]:
    """Fold the cases; then put one more of the smallest parts to those that share a column."""

    def merge(columns: Columns) -> Columns:
        parts = [c for c in columns if isinstance(c, PartColumn)]
        parts.sort(key=lambda c: (len(c.parts) == 1, c.largest(accounted)))
        gone = parts[:2]
        together = tuple(part for part in PARTS if any(part in c.parts for c in gone))
        merged = _aligned(_part_column(MERGED, together), accounted)
        kept = [c for c in columns if c not in gone]
        last = len(kept) - (kept[-1] is _CLOSING)
        return (*kept[:last], merged, *kept[last:])

    return [*FOLDED, *[merge] * (sum(isinstance(c, PartColumn) for c in columns) - 1)]


def _aligned(column: Column[Pair], accounted: Accounted) -> Column[Pair]:
    write, parts = column.text, column.parts if isinstance(column, PartColumn) else ()
    if not any(doubtful(*pair, parts) for pair in accounted):
        return column
    return replace(column, text=lambda pair: write(pair) + " " * (not doubtful(*pair, parts)))


NO_AXIS = "other groups"
"""Operations of a group that is no dimension of the mesh."""


Loss = tuple[Row, AxisLoss]


def losses(rows: Sequence[Row]) -> list[Loss]:
    """Return every dimension of every row whose budget has them, in order."""
    return [
        (row, one)
        for row in rows
        if row.budget is not None and row.world_size > 1
        for one in row.budget.by_axis or ()
    ]


def name_of(loss: AxisLoss) -> str:
    """Return a dimension's name."""
    return wording.plain(loss.axis, 40) if loss.axis is not None else NO_AXIS


def share_of(of: Loss) -> float:
    """Return exposed communication along a dimension as a part of the measured step."""
    row, loss = of
    return loss.exposed_s.value / row.budget.measured_s if row.budget is not None else 0.0


def efficiency(row: Row) -> float | None:
    """Return the budget's efficiency; None: there is no budget."""
    return None if row.budget is None else row.budget.ideal


def points(of: Loss) -> str:
    """Write it in percent of the step; marked where it may be zero."""
    row, loss = of
    sure = row.budget is not None and row.budget.closes and loss.exposed_s.excludes_zero
    return causes.points(share_of(of)) + DOUBT * (share_of(of) >= NEGLIGIBLE and not sure)


AXIS_COLUMNS: tuple[Column[Loss], ...] = (
    *PLACE,
    Column("axis", lambda of: name_of(of[1]), numeric=False),
    Column("transfer", lambda of: units.seconds_or_zero(of[1].exposed_transfer_s)),
    value("waiting", lambda of: of[1].wait_s, units.seconds_or_zero),
    Column("% of step", points),
    value("efficiency", lambda of: efficiency(of[0]), units.percent),
    value("without it", lambda of: of[1].efficiency_without, units.percent),
)


AXIS_BUDGET = Table(
    "Efficiency by axis",
    AXIS_COLUMNS,
    losses,
    remark="exposed communication per step; percent of the measured step",
    about=(
        "Exposed communication along each dimension of the mesh, scaled to clean steps: the parts "
        "of all dimensions sum to the row's transfer and waiting. Without it: the efficiency if "
        "these operations took no time that computation does not hide, and all else were the same."
        f" {DOUBT}: uncertain, may be zero, or the parts of the row do not add up."
    ),
)


def axis_sentence(rows: Sequence[Row]) -> str | None:
    """Say which dimension costs most, in the row where it costs most; None: no row has any."""
    found = losses(rows)
    if not found:
        return None
    most = max(found, key=share_of)
    row, loss = most
    if loss.efficiency_without is None or row.budget is None:
        return None
    return (
        f"Axis {name_of(loss)} costs most: {causes.points(share_of(most))} % of the step of "
        f"{wording.plain(row.case, 64)} on {wording.ranks(row)}; without it, efficiency would be "
        f"{units.percent(loss.efficiency_without)} instead of {units.percent(row.budget.ideal)}."
    )


POP = Table(
    "POP's efficiencies",
    (
        CASE,
        RANKS,
        *value_of_each(
            {name: header.replace(" ", "\n") for name, header in POP_NAMES.items()},
            lambda row, name: getattr(row.pop, name),
            lambda one: units.percent(one.value),
        ),
    ),
    lambda rows: [row for row in rows if row.pop is not None and row.world_size > 1],
    remark="of traced steps",
    notes=lambda rows: (
        "global = parallel × computation scaling; parallel = load balance × communication; "
        "communication = serialisation × transfer (POP Centre of Excellence, standard metrics)",
        *dict.fromkeys(
            f"no {POP_NAMES[name]}: {wording.plain(why, 200)}"
            for row in rows
            if row.pop is not None
            for name, why in row.pop.unavailable.items()
            if name in ("transfer_efficiency", "computation_scaling")
        ),
    ),
    folded=True,
)
