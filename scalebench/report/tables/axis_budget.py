"""What each dimension of a mesh costs: its exposed communication as a part of the loss budget."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.budget import AxisLoss
from scalebench.records.summary import Row
from scalebench.report.tables.layout import PLACE, Column, value
from scalebench.report.tables.listing import Table
from scalebench.report.words import causes, wording
from scalebench.report.words.attributed import NEGLIGIBLE

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


COLUMNS: tuple[Column[Loss], ...] = (
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
    COLUMNS,
    losses,
    remark="exposed communication per step; percent of the measured step",
    about=(
        "Exposed communication along each dimension of the mesh, scaled to clean steps: the parts "
        "of all dimensions sum to the row's transfer and waiting. Without it: the efficiency if "
        "these operations took no time that computation does not hide, and all else were the same."
        f" {DOUBT}: uncertain, may be zero, or the parts of the row do not add up."
    ),
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
