"""The dimension of the mesh on which time is lost is named."""

from scalebench.records.rows.communication import AxisFigures
from scalebench.report.words import axes
from tests.builders.summaries import make_row

FIGURES = {"count": 11.0, "num_bytes": 6e6, "total_s": 0.05, "exposed_s": 0.04}
TENSOR = AxisFigures(
    axis="tensor", num_ranks=2, wire_bytes=6e6, predicted_wire_bytes=6e6, wait_s=0.01, **FIGURES
)
DATA = AxisFigures(axis="data", num_ranks=4, wire_bytes=9e6, wait_s=None, **FIGURES)


SLOW = AxisFigures(
    **{**FIGURES, "total_s": 0.5, "exposed_s": 0.4},
    axis="shard",
    num_ranks=2,
    wire_bytes=6e6,
    wait_s=0,
)


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
