"""Exposed communication by the dimension of the mesh whose group carried it."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.budget import exposed_by_axis
from scalebench.analysis.summarise import summarise
from scalebench.spec import Mesh
from tests.builders.runs import make_inspection, make_run
from tests.builders.traced import (
    flat,
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


def along(*operations, rank=0, **changes):
    found = exposed_by_axis(LaunchAttribution(pair(*operations, **changes)), rank)
    return {axis: (one.transfer_s, one.wait_s) for axis, one in found.items()}


def close(*seconds):
    return pytest.approx(seconds)


def budget_of(*results):
    summary = summarise(make_run([make_inspection(results[0].cell), *results]))
    return next(row for row in summary.rows if row.world_size == 2).budget


TENSOR = ("tensor", "all_reduce", (40, 50), 56)
DATA = ("data", "all_reduce", (60, 60), 64)


def test_each_dimension_has_its_transfer_and_its_wait():
    found = along(TENSOR, DATA)
    assert found["tensor"] == close(0.006, 0.010)
    assert found["data"] == close(0.004, 0.0)


def test_two_dimensions_in_flight_at_once_have_equal_parts():
    """From 50 to 56 both transfer: 3 ms each; the second goes on alone for 4 ms."""
    found = along(("tensor", "all_reduce", (50, 50), 56), ("data", "all_gather", (50, 50), 60))
    assert found["tensor"] == close(0.003, 0.0)
    assert found["data"] == close(0.007, 0.0)


def test_a_wait_belongs_to_the_operation_that_somebody_is_late_to():
    """Rank 0 waits along tensor from 44 to 50; data is in flight since 40, with all its ranks."""
    found = along(("tensor", "all_reduce", (44, 50), 52), ("data", "all_gather", (40, 40), 52))
    assert found["tensor"] == close(0.001, 0.006)
    assert found["data"] == close(0.005, 0.0)


def test_messages_between_stages_count_while_they_block():
    """The annotation lasts for 20 ms; the rank stood still for 3 of them."""
    found = along(DATA, ("pipeline", "send", (40, 40), 60), blocked=flat([(41, 44)]))
    assert found == {"data": close(0.004, 0.0), "pipeline": close(0.003, 0.0)}


def test_the_parts_sum_to_those_of_the_breakdown():
    spans = (
        TENSOR,
        DATA,
        ("shard", "all_gather", (42, 47), 63),
        ("shard", "reduce_scatter", (63, 70), 75),
    )
    for rank in range(2):
        parts = along(*spans, rank=rank).values()
        launch = LaunchAttribution(pair(*spans))
        of_rank = launch.breakdowns[rank]
        assert sum(transfer for transfer, _ in parts) == pytest.approx(of_rank.exposed_transfer_s)
        assert sum(wait for _, wait in parts) == pytest.approx(of_rank.wait_s)


def test_the_budget_says_what_each_dimension_takes():
    """The ideal step is 50 ms of 80; without waiting 16 ms along tensor it would be of 64."""
    budget = budget_of(plain(), pair(TENSOR, DATA))
    tensor, data = budget.by_axis
    assert (tensor.axis, data.axis) == ("tensor", "data")
    assert (tensor.exposed_transfer_s, tensor.wait_s) == close(0.006, 0.010)
    assert (data.exposed_transfer_s, data.wait_s) == close(0.004, 0.0)
    assert tensor.exposed_s.value == pytest.approx(0.016)
    assert tensor.efficiency_without == pytest.approx(50 / 64)
    assert data.efficiency_without == pytest.approx(50 / 76)


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


def test_where_waits_are_not_known_all_of_it_is_transfer():
    """A broadcast of unknown root takes 10 of 80 ms."""
    budget = budget_of(plain(), pair(TENSOR, ("data", "broadcast", (60, 60), 70)))
    tensor, data = budget.by_axis
    assert budget.wait_s is None
    assert (tensor.exposed_transfer_s, tensor.wait_s) == (pytest.approx(0.016), None)
    assert data.exposed_transfer_s == pytest.approx(0.010)
    assert budget.exposed_transfer_s == pytest.approx(0.026)
