"""What each dimension of a mesh costs: on the terminal, in a sentence and as a figure."""

import pytest

from scalebench.records.rows.budget import AxisLoss
from scalebench.report import render_table
from scalebench.report.page.axis_budget_figure import AXIS_BUDGET
from scalebench.report.page.charts import make_chart
from scalebench.report.tables import axis_budget, communication
from scalebench.report.tables.listing import pages
from scalebench.stats import Estimate
from tests.builders.summaries import make_budget, make_row, make_summary


def loss(axis, transfer_s, wait_s, low=0.001, **changes):
    exposed_s = transfer_s + (wait_s or 0.0)
    interval = {"low": low, "high": 2 * exposed_s - low}
    return AxisLoss(
        axis=axis,
        exposed_transfer_s=transfer_s,
        wait_s=wait_s,
        exposed_s=Estimate(value=exposed_s, n=3, **interval),
        efficiency_without=0.08 / (0.1 - exposed_s),
    ).model_copy(update=changes)


def row(*losses, **changes):
    """80 of 100 ms are ideal; the dimensions have 16 of the other 20."""
    parts = {"exposed_transfer": 12.0, "wait": 4.0, "other_idle": 4.0}
    budget = make_budget(0.8, 0.1, parts).model_copy(update={"by_axis": list(losses)})
    return make_row(case="mesh-case", world_size=4, budget=budget, **changes)


TENSOR, DATA = loss("tensor", 0.006, 0.004), loss("data", 0.006, 0.0, low=-0.001)


def test_every_dimension_has_a_line_with_its_time_its_points_and_the_efficiency_without_it():
    text = render_table(make_summary([row(TENSOR, DATA)]), 120, verbose=True)
    table = text.split(axis_budget.AXIS_BUDGET.title)[1].split("\n\n")[0].splitlines()
    (tensor,) = [line for line in table if " tensor " in line]
    assert tensor.split()[-9:] == ["6.00", "ms", "4.00", "ms", "10.0", "80.0", "%", "88.9", "%"]
    (data,) = [line for line in table if " data " in line]
    assert "6.0?" in data and "85.1 %" in data
    assert axis_budget.AXIS_BUDGET.title not in render_table(make_summary([row(TENSOR, DATA)]), 120)


def test_points_of_a_budget_that_is_open_are_in_doubt():
    found = row(TENSOR)
    open_budget = found.budget.model_copy(update={"closes": False})
    assert axis_budget.points((found, TENSOR)) == "10.0"
    assert axis_budget.points((found.model_copy(update={"budget": open_budget}), TENSOR)) == "10.0?"


def test_where_waits_are_not_known_there_is_a_dash():
    (table,) = pages(axis_budget.AXIS_BUDGET)([row(loss("tensor", 0.01, None))])
    (line,) = table.lines
    assert line[3:5] == ("10.0 ms", "\N{EN DASH}")


def test_groups_that_are_no_dimension_have_a_name():
    assert axis_budget.name_of(loss(None, 0.01, 0.0)) == "other groups"


def test_the_costliest_dimension_is_named_with_what_the_efficiency_would_be():
    assert axis_budget.sentence([row(DATA, TENSOR)]) == (
        "Axis tensor costs most: 10.0 % of the step of mesh-case on 4 CPU ranks; without it, "
        "efficiency would be 88.9 % instead of 80.0 %."
    )
    assert axis_budget.sentence([make_row()]) is None


def test_the_bars_of_a_row_fill_its_step():
    found = row(TENSOR, DATA)
    figure = AXIS_BUDGET.draw([found], {})
    bars = {bar.name: bar.x[0] for bar in figure.data if bar.type == "bar"}
    assert list(bars) == ["efficiency", "tensor", "data", "all else"]
    assert bars["tensor"] == pytest.approx(10.0) and bars["data"] == pytest.approx(6.0)
    assert sum(bars.values()) == pytest.approx(100.0)
    assert [entry.name for entry in AXIS_BUDGET.key(figure)] == list(bars)
    assert make_chart(AXIS_BUDGET, "x", [found], {}).table[0][2] == "tensor"


def test_a_row_without_a_mesh_has_no_bar_and_no_table():
    without = make_row(budget=make_budget(0.8, 0.1), world_size=4)
    assert AXIS_BUDGET.draw([without], {}) is None
    assert axis_budget.AXIS_BUDGET.title not in [
        one.title for one in communication.tables([without])
    ]
