"""Exposed communication by the dimension of the mesh whose group carried it."""

import pytest

from scalebench.analysis.summarise import summarise
from scalebench.spec import Mesh
from tests.builders.runs import make_inspection, make_run
from tests.builders.tracing.traced import (
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)


def plain():
    trace = make_trace(compute=[(0, 90)])
    return make_traced_result(make_traced_record(0, trace), case="plain")


def pair(*operations, compute=(0, 40), repeat=0, **changes):
    """Two ranks, steps of 80 ms; each operation is axis, its starts on both ranks, its end."""
    records = []
    for rank in range(2):
        own = [
            make_operation(starts[rank], end, ordinal=place, axis=axis, kind=kind, group=axis)
            for place, (axis, kind, starts, end) in enumerate(operations)
        ]
        trace = make_trace(own, compute=[compute], steps=[(0, 80)], **changes)
        records.append(make_traced_record(rank, trace, 80))
    return make_traced_result(*records, case="mesh", strategy=Mesh(tensor=2), repeat=repeat)


def budget_of(*results):
    summary = summarise(make_run([make_inspection(results[0].cell), *results]))
    return next(row for row in summary.rows if row.world_size == 2).budget


TENSOR = ("tensor", "all_reduce", (40, 50), 56)
DATA = ("data", "all_reduce", (60, 60), 64)


def test_parts_by_dimension_sum_to_the_budget_over_rounds_that_differ():
    second = pair(("tensor", "all_reduce", (40, 41), 60), DATA, repeat=1)
    plain_again = plain().model_copy(update={"cell": plain().cell.model_copy(update={"repeat": 1})})
    budget = budget_of(plain(), pair(TENSOR, DATA), plain_again, second)
    parts = budget.by_axis
    assert sum(one.exposed_transfer_s for one in parts) == pytest.approx(budget.exposed_transfer_s)
    assert sum(one.wait_s for one in parts) == pytest.approx(budget.wait_s)
    tensor = parts[0]
    assert tensor.exposed_s.value == pytest.approx(tensor.exposed_transfer_s + tensor.wait_s)
    assert tensor.exposed_s.n == 2 and tensor.exposed_s.half_width > 0
