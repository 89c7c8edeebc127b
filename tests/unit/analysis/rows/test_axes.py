"""A row's communication by the dimension of the mesh whose group carried it."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.axes import axes_of_row
from scalebench.spec import Mesh
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result


def rank_of(rank, world_size):
    """Two steps of 80 ms, the first 40 computed; then two operations of 5 ms along tensor.

    All ranks come at the same time. Along data each is a group by itself.
    """
    operations = []
    tensor = {"axis": "tensor", "group": "all", "group_size": world_size}
    data = {"axis": "data", "group": f"ranks {rank}", "group_size": 1}
    for step, begin in enumerate((0, 80)):
        operations += [
            make_operation(begin + 45, begin + 50, step, ordinal=0, **tensor),
            make_operation(begin + 55, begin + 60, step, ordinal=1, **tensor),
            make_operation(begin + 70, begin + 74, step, **data),
        ]
    trace = make_trace(operations, [(0, 40), (80, 120)], [(0, 80), (80, 160)])
    return make_traced_record(rank, trace, 80)


def axes(world_size):
    records = [rank_of(rank, world_size) for rank in range(world_size)]
    strategy = Mesh(tensor=world_size)
    launch = LaunchAttribution(make_traced_result(*records, case="mesh", strategy=strategy))
    return axes_of_row([launch], 0)


def test_figures_are_those_of_one_step_and_of_groups_with_several_ranks():
    (tensor,) = axes(2)
    assert (tensor.axis, tensor.num_ranks, tensor.count) == ("tensor", 2, 2)
    assert (tensor.num_bytes, tensor.wire_bytes) == (2000, 2000)  # 2·(N−1)/N = 1 at N=2
    assert (tensor.total_s, tensor.exposed_s) == pytest.approx((0.01, 0.01))
    assert tensor.wait_s == pytest.approx(0)


def test_at_one_rank_every_group_is_shown():
    tensor, data = axes(1)
    assert (tensor.axis, tensor.count, tensor.wire_bytes) == ("tensor", 2, 0)
    assert (data.axis, data.count, data.total_s) == ("data", 1, pytest.approx(0.004))
