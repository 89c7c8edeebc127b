"""Memory by axis on the page: table, sentence, figure."""

from scalebench.records.rows.memory import AxisSaving, MemoryByAxis
from scalebench.report.page.memory_figure import MEMORY_AXES
from scalebench.report.tables import memory, memory_axes
from tests.builders.summaries import make_row

BY_AXIS = MemoryByAxis(
    one_process_bytes=30_000_000,
    savings=[
        AxisSaving(axis="data", num_ranks=2, state_bytes=0, activations_bytes=10_000_000),
        AxisSaving(axis="tensor", num_ranks=2, state_bytes=3_000_000, activations_bytes=5_000_000),
    ],
    rank_bytes=12_000_000,
)
ROW = make_row(
    case="mesh-case",
    world_size=4,
    memory_by_axis=BY_AXIS,
    peak_memory_bytes=12_500_000,
    predicted_memory_bytes=12_400_000,
)


def test_a_line_says_what_each_axis_takes_off_and_what_is_left():
    (table,) = [one for one in memory.tables([ROW]) if one.title == memory_axes.MEMORY_AXES.title]
    minus = "\N{MINUS SIGN}"
    assert table.lines == (
        (
            *("mesh-case", "4", "30.0 MB", f"data {minus}10.0 MB, tensor {minus}8.00 MB"),
            *("12.0 MB", "12.4 MB", "12.5 MB", f"{minus}4.0 %"),
        ),
    )


def test_the_axis_that_takes_most_off_is_named():
    assert memory_axes.sentence([make_row(), ROW]) == (
        "mesh-case on 4 CPU ranks leaves a rank 40.0 % of what one process would hold; axis data "
        "takes off most, 10.0 MB."
    )


def test_the_bars_add_up_to_one_process():
    figure = MEMORY_AXES.draw([ROW], {})
    bars = {bar.name: bar.x[0] for bar in figure.data if bar.type == "bar"}
    assert bars == {"left to a rank": 12.0, "data": 10.0, "tensor": 8.0}
    (measured,) = [one for one in figure.data if one.name == "measured"]
    assert list(measured.x) == [12.5]
    assert [entry.name for entry in MEMORY_AXES.key(figure)] == [*bars, "measured"]


def test_rows_without_a_mesh_have_neither():
    assert MEMORY_AXES.draw([make_row()], {}) is None
    assert memory_axes.MEMORY_AXES.title not in [one.title for one in memory.tables([make_row()])]
