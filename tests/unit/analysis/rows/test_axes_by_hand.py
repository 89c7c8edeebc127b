"""Communication by the dimension of the mesh, number by number."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.axes import (
    axes_of_row,
    groups_by_axis,
    predicted_operations,
    predicted_wire_bytes,
    wire_bytes_by_axis,
)
from scalebench.costmodel.group_steps import group_operations
from scalebench.costmodel.tensor_layers import Operation
from scalebench.spec import Context, Mesh
from scalebench.spec.presets import GptShape
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.traced import flat, make_operation, make_trace, make_traced_record
from tests.builders.traced import make_traced_result as traced_result
from tests.unit.analysis.rows.test_group_step import DIVIDED, FACTS, MODEL, cell
from tests.unit.analysis.rows.test_group_step import GPT as GPT_OF_GROUPS

ROW = {"axis": "row", "group_size": 3}
COLUMN = {"axis": "column", "kind": "all_gather"}


def operations(rank, begin, step):
    """In a step of 100 ms: 30 ms along row, 15 along column, one of a single rank, one of none."""
    late = 4 if rank == 2 else 0
    column = {"group": "ranks 0,1", "group_size": 2} if rank < 2 else {"group": "ranks 2"}
    alone = {"axis": "alone", "group": f"ranks {rank}", "group_size": 1}
    return [
        make_operation(
            begin + 20 + late, begin + 40, step, num_bytes=600, sequence=2 * step, **ROW
        ),
        make_operation(begin + 50, begin + 60, step, num_bytes=300, sequence=2 * step + 1, **ROW),
        make_operation(
            begin + 70,
            begin + 85,
            step,
            num_bytes=80,
            sequence=step,
            **{"group_size": 1, **COLUMN, **column},
        ),
        make_operation(begin + 90, begin + 95, step, ordinal=3, **alone),
        make_operation(begin + 96, begin + 97, step, ordinal=4, group_size=3, sequence=900 + step),
    ]


def record(rank):
    """Three alike steps: 30 of 100 ms are computed, of which 5 hide what goes along row."""
    begins = (0, 100, 200)
    found = [op for step, begin in enumerate(begins) for op in operations(rank, begin, step)]
    compute = [span for a in begins for span in ((a, a + 25), (a + 90, a + 95))]
    return make_traced_record(rank, make_trace(found, compute, [(a, a + 100) for a in begins]))


def launch():
    return LaunchAttribution(traced_result(*map(record, range(3)), rank_batch=11))


def test_every_figure_of_a_dimension():
    row, column = axes_of_row([launch()], 0)
    assert (row.axis, row.num_ranks, row.count) == ("row", 3, 2.0)
    assert (row.num_bytes, row.wire_bytes) == (900.0, pytest.approx(1200.0))  # 2 · 2/3
    assert (row.total_s, row.exposed_s) == pytest.approx((0.030, 0.025))
    assert row.wait_s == pytest.approx(0)  # rank 2 comes at 24 ms, until 25 it is computed
    assert (row.groups, row.predicted_wire_bytes) == (None, None)
    assert column.groups == [[0, 1], [2]]
    assert (column.axis, column.num_ranks, column.count) == ("column", 2, 1.0)
    assert (column.num_bytes, column.wire_bytes) == (80.0, 40.0)
    assert (column.total_s, column.exposed_s) == pytest.approx((0.015, 0.015))


def test_encoding_hides_and_waiting_is_a_part_of_what_is_exposed():
    """Rank 1 computes until 19 ms alone, and waits for rank 2 from 20 to 24."""
    records = [record(rank) for rank in (0, 1, 2)]
    compute = flat([(0, 19), (100, 119), (200, 219)])
    own = records[1].trace.model_copy(update={"compute": compute, "codec": flat([(52, 53)])})
    records[1] = records[1].model_copy(update={"trace": own})
    row, _, *_ = axes_of_row([LaunchAttribution(traced_result(*records, rank_batch=11))], 1)
    assert row.total_s == pytest.approx(0.030)
    assert row.exposed_s == pytest.approx(0.030 - 0.001 / 3)
    assert row.wait_s == pytest.approx(0.004)


def test_only_typical_steps_count():
    """Of five steps, 100, 60, 110, 300 and 120 ms long, the three in the middle."""
    ends = [100, 160, 270, 570, 690]
    steps = tuple(zip([0, *ends[:-1]], ends, strict=True))

    def of(rank):
        found = [
            make_operation(
                begin + 1, begin + 1 + 10 * (i + 1), i, num_bytes=2**i, sequence=i, **ROW
            )
            for i, (begin, _) in enumerate(steps)
        ]
        return make_traced_record(rank, make_trace(found, (), steps))

    (row,) = axes_of_row([LaunchAttribution(traced_result(*map(of, range(3)), rank_batch=9))], 2)
    assert (row.count, row.num_bytes) == (1.0, (1 + 4 + 16) / 3)
    assert row.total_s == row.exposed_s == pytest.approx((0.010 + 0.030 + 0.050) / 3)


def test_figures_are_means_over_launches_that_have_the_dimension():
    twice = launch()
    bare = [
        make_traced_record(
            rank,
            make_trace([make_operation(20, 30, num_bytes=None, sequence=0, **ROW)], [(0, 10)]),
        )
        for rank in range(3)
    ]
    other = LaunchAttribution(traced_result(*bare, rank_batch=11))
    row, column = axes_of_row([twice, other], 0)
    assert (row.count, row.num_bytes, row.wire_bytes) == (1.5, None, None)
    assert (row.total_s, row.exposed_s) == pytest.approx((0.020, 0.0175))
    assert (column.count, column.num_bytes) == (1.0, 80.0)
    # Where wait and transfer are not apart, the wait is not known.
    moved = [r.model_copy(update={"trace": r.trace.model_copy(update={"clock_error_s": 1.0})})
             for r in bare]  # fmt: skip
    row, _ = axes_of_row([twice, LaunchAttribution(traced_result(*moved, rank_batch=11))], 0)
    assert row.wait_s is None and row.exposed_s == pytest.approx(0.0175)


def test_a_kind_without_a_law_has_bytes_in_no_dimension():
    odd = [make_operation(1, 2, kind="strange", sequence=0, group_size=3, axis="row")]
    records = [make_traced_record(rank, make_trace(odd)) for rank in range(3)]
    (row,) = axes_of_row([LaunchAttribution(traced_result(*records, rank_batch=11))], 0)
    assert (row.num_bytes, row.wire_bytes, row.count) == (None, None, 1.0)


def test_a_group_of_unknown_size_is_that_of_all_ranks():
    odd = [make_operation(1, 2, sequence=0, group_size=None, axis="row")]
    records = [make_traced_record(rank, make_trace(odd)) for rank in range(3)]
    (row,) = axes_of_row([LaunchAttribution(traced_result(*records, rank_batch=11))], 0)
    assert (row.num_ranks, row.wire_bytes) == (3, 0.0)  # as if by itself: nothing is sent


def test_groups_are_told_by_their_ranks():
    def trace(*groups):
        return make_trace(
            [
                make_operation(i, i + 1, group=name, axis=axis)
                for i, (axis, name) in enumerate(groups)
            ]
        )

    found = groups_by_axis(
        {
            0: trace(("tensor", "ranks 0,1"), ("data", "ranks 0,2"), ("tensor", "ranks 0,1")),
            3: trace(("tensor", "ranks 10,3"), ("data", "world"), (None, "ranks 5"), ("x", None)),
            2: trace(("tensor", "ranks 2,3")),
        }
    )
    assert found == {"tensor": [[0, 1], [2, 3], [10, 3]], "data": [[0, 2]]}


def operation(op, num_bytes, num_ranks, axis):
    return Operation(op=op, num_bytes=num_bytes, num_ranks=num_ranks, axis=axis, phase="forward")


def test_bytes_by_dimension_follow_the_rings_law():
    found = wire_bytes_by_axis(
        [
            operation("all_reduce", 900, 3, "tensor"),
            operation("all_gather", 500, 5, "data"),
            operation("reduce_scatter", 700, 7, "tensor"),
        ]
    )
    assert found == {"tensor": pytest.approx(1200 + 600), "data": pytest.approx(400)}


GPT = GptShape(name="g", layers=2, heads=4, width=64, context=64, batch_size=8)


def test_a_strategy_without_groups_or_a_law_sends_nothing_by_dimension():
    plain = make_result(make_cell("ddp", 3, rank_batch=11))
    assert predicted_operations(plain) == [] and predicted_wire_bytes(plain) == {}
    context = make_cell("context", 2, strategy=Context(), workload=GPT)
    assert predicted_operations(make_result(context)) == []  # no facts
    assert predicted_operations(make_result(context, ranks=[])) == []
    mesh = make_cell("mesh", 2, strategy=Mesh(tensor=2), workload=GPT)
    assert predicted_operations(make_result(mesh), 1) == []


def test_what_a_rank_sends_by_the_law_is_told_by_its_own_facts():
    """Only rank 0 knows the layers; it is asked where nobody says whom to ask."""
    ranks = [make_record(rank, facts={} if rank else FACTS) for rank in (0, 1)]
    launched = make_result(cell(2), ranks=ranks)
    operations = group_operations(DIVIDED, MODEL, 2, 8)
    assert predicted_operations(launched) == predicted_operations(launched, 0) == operations
    assert predicted_operations(launched, 1) == predicted_operations(launched, -1) == []
    by_axis = predicted_wire_bytes(launched)
    assert by_axis == predicted_wire_bytes(launched, 0) == wire_bytes_by_axis(operations)
    assert by_axis and predicted_wire_bytes(launched, 1) == {}
    told = LaunchAttribution(
        traced_result(
            *(
                make_traced_record(
                    rank,
                    make_trace([make_operation(1, 2, sequence=0, axis="tensor")]),
                    facts=FACTS if rank else {},
                )
                for rank in (0, 1)
            ),
            strategy=DIVIDED,
            workload=GPT_OF_GROUPS,
            global_batch=8,
            rank_batch=8,
        )
    )
    for rank, expected in ((0, None), (1, by_axis["tensor"])):
        (row,) = axes_of_row([told], rank)
        assert row.predicted_wire_bytes == expected
