"""What each dimension of a mesh costs: its exposed communication as a part of the loss budget."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from scalebench import units
from scalebench.records.rows.budget import AxisLoss
from scalebench.records.summary import Row
from scalebench.report.tables.layout import CASE_WIDTHS, PLACE, Column, fit, folded, table, value
from scalebench.report.tables.listing import PlainTable
from scalebench.report.tables.terminal import titled
from scalebench.report.words import causes, wording
from scalebench.report.words.attributed import NEGLIGIBLE

TITLE = "Efficiency by axis"
UNIT = "exposed communication per step; percent of the measured step"
NO_AXIS = "other groups"
"""Operations of a group that is no dimension of the mesh."""
DOUBT = "?"

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


def _time(seconds: float) -> str:
    return units.seconds(seconds) if seconds else "0"


COLUMNS: tuple[Column[Loss], ...] = (
    *PLACE,
    Column("axis", lambda of: name_of(of[1]), numeric=False),
    Column("transfer", lambda of: _time(of[1].exposed_transfer_s)),
    value("waiting", lambda of: of[1].wait_s, _time),
    Column("% of step", points),
    value("efficiency", lambda of: efficiency(of[0]), units.percent),
    value("without it", lambda of: of[1].efficiency_without, units.percent),
)


def axis_budget_parts(rows: Sequence[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    """Return what a terminal shows below the communication of a suite; nothing without a mesh."""
    found = losses(rows)
    if not found:
        return []
    columns = fit(COLUMNS, found, width, ascii_only, folded(*CASE_WIDTHS[1:]))
    return [Text(""), titled(TITLE, UNIT, ascii_only), table(columns, found, ascii_only)]


def axis_budget_table(rows: Sequence[Row]) -> PlainTable:
    """Return the same as a table of the page."""
    return PlainTable.of(
        TITLE,
        "Exposed communication along each dimension of the mesh, scaled to clean steps: the parts "
        "of all dimensions sum to the row's transfer and waiting. Without it: the efficiency if "
        "these operations took no time that computation does not hide, and all else were the same."
        f" {DOUBT}: uncertain, may be zero, or the parts of the row do not add up.",
        COLUMNS,
        losses(rows),
    )


def sentence(rows: Sequence[Row]) -> str | None:
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
