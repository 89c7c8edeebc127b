"""The mesh as the page draws it: every rank has a cell, every group a line."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rows.communication import AxisFigures
from scalebench.report.page.charts import make_chart
from scalebench.report.page.mesh_figure import mesh_kind, places
from tests.builders.summaries import make_row

FIGURES = {"count": 1.0, "num_bytes": 1e6, "total_s": 0.01, "exposed_s": 0.01, "wait_s": None}


def axis(name, groups, wire_bytes=1e6, **changes):
    figures = FIGURES | changes
    return AxisFigures(
        axis=name, num_ranks=len(groups[0]), groups=groups, wire_bytes=wire_bytes, **figures
    )


TENSOR = axis("tensor", [[0, 1], [2, 3], [4, 5], [6, 7]], 4e6)
SHARD = axis("shard", [[0, 2], [1, 3], [4, 6], [5, 7]])
PIPELINE = axis("pipeline", [[0, 4], [1, 5], [2, 6], [3, 7]])
TIED = axis("pipeline_tied", [[0, 4], [1, 5], [2, 6], [3, 7]])
ROW = {"world_size": 8, "strategy": "mesh", "axes": [TENSOR, SHARD, PIPELINE, TIED]}


def groups_of(sizes, number):
    """Return the groups along a dimension, the innermost being number 0."""
    stride, size, whole = prod(sizes[:number]), sizes[number], prod(sizes)
    firsts = [rank for rank in range(whole) if rank // stride % size == 0]
    return [[first + stride * place for place in range(size)] for first in firsts]


@given(sizes=st.lists(st.integers(2, 3), min_size=2, max_size=4))
def test_every_rank_has_a_cell_of_its_own(sizes):
    axes = [axis(f"axis {n}", groups_of(sizes, n)) for n in range(len(sizes))]
    at = places(axes, prod(sizes))
    assert len(at) == len(set(at.values())) == prod(sizes)
    apart = min(
        max(abs(x - u), abs(y - v))
        for rank, (x, y) in at.items()
        for other, (u, v) in at.items()
        if rank < other
    )
    assert apart >= 1 - 1e-9


def test_a_group_is_a_line_whose_width_is_what_a_rank_sends():
    row = make_row(**ROW)
    kind = mesh_kind([row])
    figure = kind.draw([row], {})
    lines = {one.name: one for one in figure.data if one.mode == "lines"}
    assert lines.keys() == {"tensor", "shard", "pipeline", "pipeline_tied"}
    assert lines["tensor"].line.width > lines["shard"].line.width
    cells = figure.data[-1]
    assert list(cells.text) == [str(rank) for rank in range(8)]
    assert "a rank sends most along tensor: 4.00 MB a step" in kind.conclude([row])
    assert ("shard", "0, 2; 1, 3; 4, 6; 5, 7") in [
        one[2:4] for one in make_chart(kind, "mesh", [row], {}).table
    ]


def test_a_row_without_a_mesh_has_no_figure():
    row = make_row(axes=None)
    assert mesh_kind([row]).draw([row], {}) is None
