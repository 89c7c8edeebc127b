"""Communication by the dimension of the mesh that carried it, on the terminal and on the page."""

from scalebench.records.rows.communication import AxisFigures, OperationFigures
from scalebench.report import render_table
from scalebench.report.tables import communication
from scalebench.report.words import axes
from tests.builders.summaries import make_row, make_summary

FIGURES = {"count": 11.0, "num_bytes": 6e6, "total_s": 0.05, "exposed_s": 0.04}
TENSOR = AxisFigures(
    axis="tensor", num_ranks=2, wire_bytes=6e6, predicted_wire_bytes=6e6, wait_s=0.01, **FIGURES
)
DATA = AxisFigures(axis="data", num_ranks=4, wire_bytes=9e6, wait_s=None, **FIGURES)
ALL_REDUCES = OperationFigures(
    kind="all_reduce", ordinal=None, phase="forward", hidden_s=0.01, **FIGURES
)


def test_every_axis_has_a_line_with_what_it_sent_and_how_long_it_took():
    row = make_row(axes=[TENSOR, DATA], communication=[ALL_REDUCES])
    text = render_table(make_summary([row]), 120, verbose=True)
    assert "Communication by axis" in text
    (tensor,) = [line for line in text.splitlines() if " tensor " in line and "Axis" not in line]
    told = [tensor.count(text) for text in ("6.00 MB", "50.0 ms", "40.0 ms", "10.0 ms")]
    assert told == [3, 1, 1, 1]
    (data,) = [line for line in text.splitlines() if " data " in line]
    assert "9.00 MB" in data and "10.0 ms" not in data
    on_the_page = [one.title for one in communication.tables([row])]
    assert "Communication by axis" in on_the_page
    assert "Communication by axis" not in render_table(make_summary([row]), 120)


def test_rows_without_a_mesh_have_no_such_table():
    row = make_row(communication=[ALL_REDUCES])
    assert "by axis" not in render_table(make_summary([row]), 120, verbose=True)
    assert "Communication by axis" not in [one.title for one in communication.tables([row])]


SLOW = AxisFigures(
    **{**FIGURES, "total_s": 0.5, "exposed_s": 0.4},
    axis="shard",
    num_ranks=2,
    wire_bytes=6e6,
    wait_s=0,
)


def test_the_axis_on_which_the_time_is_lost_is_named_with_its_rate():
    row = make_row(axes=[TENSOR, SLOW])
    assert axes.sentence(row) == (
        "Axis shard has 90.9 % of the exposed communication: it moves 12.0 MB/s, the others "
        "120 MB/s or more. Its links are slower, or its ranks wait; another order of the mesh may "
        "help."
    )
    text = render_table(make_summary([row]), 120, verbose=True)
    assert "Axis shard has 90.9 %" in text


def test_axes_as_fast_as_each_other_are_not_called_slow():
    row = make_row(axes=[TENSOR, DATA])
    assert axes.sentence(row) == "Axis tensor has 50.0 % of the exposed communication."
    assert axes.sentence(make_row(axes=[SLOW])) is None


def recorded(name, wire_bytes, total_s, exposed_s):
    return AxisFigures(
        axis=name,
        num_ranks=2,
        count=1.0,
        num_bytes=None,
        wire_bytes=wire_bytes,
        total_s=total_s,
        exposed_s=exposed_s,
        wait_s=None,
    )


def test_a_slow_link_between_racks_shows_as_the_axis_that_crosses_it():
    """Recorded on four virtual hosts in two racks: 400 Mbit/s inside, 10 Mbit/s between them.

    The cases are shard-tensor of suite mesh on gpt-tiny, and the same in the other order: ranks 0
    and 2 are in different racks.
    """
    axes_of_run = [
        recorded("shard", 1277184, 2.922, 2.922),
        recorded("tensor", 2665472, 1.907, 1.026),
    ]
    said = axes.sentence(make_row(world_size=4, axes=axes_of_run))
    assert said is not None and said.startswith(
        "Axis shard has 74.0 % of the exposed communication"
    )
    assert "it moves 437 kB/s, the others 1.40 MB/s or more" in said
    outside = [recorded("shard", 1277184, 0.287, 0.287), recorded("tensor", 2665472, 6.573, 2.469)]
    said = axes.sentence(make_row(world_size=4, axes=outside))
    assert said is not None and said.startswith("Axis tensor has 89.6 % of the exposed")
    assert "it moves 406 kB/s, the others 4.45 MB/s or more" in said
